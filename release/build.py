"""`make release`: writes wheel, source distribution, constraints, SBOM and checksums of the commit HEAD to dist/.

Two runs on one commit write the same bytes, as long as the index keeps the files of the pinned versions.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from release.constraints import NotPinned, closure, requirement
from release.sbom import NAME, sbom
from release.version import version

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
SUMS = "SHA256SUMS"


def main() -> None:
    """Builds, and prints what it has made."""
    if changed := _git("status", "--porcelain").decode():
        print(f"Not in the release, because it is not committed:\n{changed}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "dist")
        try:
            build(Path(folder, "source"), made)
        except NotPinned as problem:
            sys.exit(str(problem))
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(made, DIST)
    print((DIST / SUMS).read_text(encoding="ascii"), end="")


def build(source: Path, made: Path) -> None:
    """Exports HEAD to `source` and writes the release's files to `made`, both new folders. Raises NotPinned."""
    made.mkdir()
    epoch = int(_git("log", "-1", "--format=%ct"))
    _export(source)
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made), str(source)]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout)
    number = version(source)
    files = sums(made)
    packages = closure(source)
    own = requirement(f"{NAME}=={number}", files.values())
    constraints = own + "".join(each.lines() for each in packages)
    (made / f"constraints-{number}.txt").write_text(constraints, encoding="ascii")
    document = sbom(number, files, packages, source / "web/package-lock.json", epoch)
    (made / f"{NAME}-{number}.cdx.json").write_text(document, encoding="utf-8")
    shutil.copy(source / "demo-weights.txt", made / f"demo-weights-{number}.txt")
    lines = [f"{sha256}  {name}\n" for name, sha256 in sums(made).items()]
    (made / SUMS).write_text("".join(lines), encoding="ascii")


def sums(folder: Path) -> Mapping[str, str]:
    """Returns the sha256 of each file of a folder, by name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def _export(source: Path) -> None:
    """Writes the files of HEAD, with modes that do not depend on the machine."""
    with tempfile.TemporaryFile() as file:
        file.write(_git("archive", "--format=tar", "HEAD"))
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            archive.extractall(source, filter="data")


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout


if __name__ == "__main__":
    main()
