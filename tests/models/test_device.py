"""Device detection from the machine's files."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from services.models import device
from services.models.device import detect_device, resolve_device


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def build(*, nvidia: bool, system: str, processor: str) -> None:
        driver = tmp_path / "version"
        if nvidia:
            driver.touch()
        monkeypatch.setattr(device, "NVIDIA_DRIVER", driver)
        monkeypatch.setattr(sys, "platform", system)
        monkeypatch.setattr(platform, "machine", lambda: processor)

    return build


@pytest.mark.parametrize(
    ("nvidia", "system", "processor", "expected"),
    [
        (True, "linux", "x86_64", "cuda"),
        (True, "linux", "aarch64", "cuda"),
        (False, "linux", "x86_64", "cpu"),
        (False, "linux", "arm64", "cpu"),
        (False, "darwin", "arm64", "mps"),
        (False, "darwin", "x86_64", "cpu"),
    ],
)
def test_the_device_is_what_the_machine_has(machine, nvidia: bool, system: str, processor: str, expected: str) -> None:
    machine(nvidia=nvidia, system=system, processor=processor)
    assert detect_device() == resolve_device("auto") == expected


@pytest.mark.parametrize("setting", ["cpu", "cuda", "mps"])
def test_an_operators_word_counts_whatever_the_machine_has(machine, setting: str) -> None:
    machine(nvidia=True, system="linux", processor="x86_64")
    assert resolve_device(setting) == setting


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_looking_loads_no_native_library() -> None:
    """A native driver library in the service process would be present at every fork and in every crash."""
    program = """
import pathlib, services.models.device
def libraries():
    return {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
before = libraries()
services.models.device.detect_device()
assert before and libraries() == before
"""
    subprocess.run([sys.executable, "-c", program], check=True)
