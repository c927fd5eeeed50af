"""`python -m monitoring`: writes all generated files."""

from __future__ import annotations

from monitoring.outputs import ROOT, outputs

if __name__ == "__main__":
    for path, text in outputs().items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
        print(path)
