"""Log files of child processes: whole lines, bounded size, the last lines in memory."""

from __future__ import annotations

import os
from pathlib import Path

from services.cli.serve.process import WAITING, LogFile


def test_lines_are_appended_to_an_existing_log(tmp_path: Path) -> None:
    for run in (b"first", b"second"):
        log = LogFile(tmp_path / "logs" / "a.log")
        log.write([run, b"line"])
        log.close()
    assert log.path.read_bytes() == b"first\nline\nsecond\nline\n"
    assert log.tail() == ["second", "line"]


def test_a_full_file_is_kept_once(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log", max_bytes=100)
    for number in range(100):
        log.write([b"%09d" % number])
    log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["a.log", "a.log.1"]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    lines = [line for name in reversed(files) for line in (tmp_path / name).read_text().splitlines()]
    assert lines == [f"{number:09d}" for number in range(100 - len(lines), 100)]


def test_a_line_over_the_limit_is_kept_whole(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log", max_bytes=10)
    log.write([b"x" * 50])
    log.write([b"y"])
    log.close()
    assert (tmp_path / "a.log.1").read_bytes() == b"x" * 50 + b"\n"
    assert (tmp_path / "a.log").read_bytes() == b"y\n"


def test_the_tail_is_short_and_survives_bad_bytes(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log")
    log.write([b"%d" % number for number in range(1000)])
    log.write([b"\xff\xfe"])
    log.close()
    assert len(log.tail()) == 20
    assert log.tail()[-2:] == ["999", "\ufffd\ufffd"]


def test_full_disk_loses_output_but_the_reader_continues(tmp_path: Path) -> None:
    log = LogFile(Path("/dev/full"), max_bytes=2**40)
    log.write([b"lost"])
    assert log.tail() == ["lost"]
    log.close()
    log = LogFile(tmp_path / "a.log", max_bytes=10)
    log.write([b"kept"])
    log.close()
    log = LogFile(tmp_path / "a.log", max_bytes=10)
    (tmp_path / "a.log.1").mkdir()  # makes the rotation fail
    log.write([b"this is lost"])
    log.close()
    assert log.path.read_bytes() == b"kept\n"
    (tmp_path / "a.log.1").rmdir()
    log = LogFile(tmp_path / "a.log", max_bytes=10)
    log.write([b"kept again"])
    log.close()
    assert log.path.read_bytes() == b"kept again\n"


def test_a_disk_that_hangs_loses_output_but_the_reader_continues(tmp_path: Path) -> None:
    """Writes to a pipe that nobody reads wait for good, as writes to such a disk do."""
    path = tmp_path / "a.log"
    os.mkfifo(path)
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = LogFile(path)
    for number in range(2 * WAITING):
        log.write([b"%d" % number, b"x" * 65536])
    assert log.tail()[-2] == str(2 * WAITING - 1)
    os.close(end)  # the write that waits fails, and so do the others
    log.close()
