"""The result of a part: outcomes and figures, in the form of bench/results/verified, saved after each of them."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = {
    "allm": "allm-server",
    "torch": "torch",
    "transformers": "transformers",
    "triton": "triton",
    "llama-cpp-python": "llama-cpp-python",
    "diffusers": "diffusers",
    "whisper": "openai-whisper",
    "ctranslate2": "ctranslate2",
    "vllm": "vllm",
}


class NotRun(Exception):
    """Something that a part or a check needs is missing; the message says what, and how to get it."""


class Failed(Exception):
    """A check found a mistake; the message is what was seen."""


class Result:
    """The document of a part, in a file of its own. A part that is cut off leaves the outcomes so far."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.path = path
        self.document: dict[str, Any] = {
            "model": "",
            "architecture": "",
            "format": "",
            "quantization": "",
            "size_bytes": 0,
            "source": "made by bench.gpu",
            "weights": "",
            "runtime": "",
            "device": "",
            **head,
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
            "versions": {name: version for name, package in PACKAGES.items() if (version := _version(package))},
            "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "passed": False,
            "finished": False,
            "seconds": 0.0,
            "not_run": "",
            "checks": [],
            "figures": {},
        }
        self._begun = time.monotonic()

    @contextmanager
    def check(self, name: str, compared: str) -> Iterator[list[str]]:
        """Runs a check; the block appends what it saw to the yielded list. Any exception but an exit is an outcome."""
        seen: list[str] = []
        begun = time.monotonic()
        verdict, likely = "passed", ""
        try:
            yield seen
        except NotRun as reason:
            verdict, seen = "skipped", [f"not run: {reason}"]
        except Failed as failure:
            verdict, seen = "failed", [*seen, str(failure)]
        except Exception as error:  # a crash of one check must not hide the others
            verdict, likely = "failed", f"{type(error).__name__}: {error}"
            seen.append(likely)
        self.document["checks"].append(
            {
                "name": name,
                "verdict": verdict,
                "compared": compared,
                "seen": "; ".join(seen),
                "likely": likely,
                "seconds": round(time.monotonic() - begun, 2),
            }
        )
        print(f"  {verdict:8} {name}: {'; '.join(seen)}", flush=True)
        self.save()

    def figure(self, name: str, value: object) -> None:
        """Records a figure."""
        self.document["figures"][name] = value
        self.save()

    def finish(self, not_run: str = "") -> None:
        """Marks the part as finished; `not_run`: why nothing of it could run."""
        self.document["not_run"] = not_run
        self.document["finished"] = True
        self.save()

    def save(self) -> None:
        """Writes the document."""
        verdicts = [each["verdict"] for each in self.document["checks"]]
        self.document["passed"] = "passed" in verdicts and "failed" not in verdicts
        self.document["seconds"] = round(time.monotonic() - self._begun, 1)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(self.path)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
