"""Detection of bfloat16, from /proc/cpuinfo of several machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.worker import processor


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("processor : 0\nflags\t\t: fpu avx512f avx512_bf16 amx_bf16\n", True),
        ("processor : 0\nflags\t\t: fpu avx512f avx512bw avx512vl avx512dq\nbugs\t: bf16\n", False),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("Features\t: fp asimd\n", False),
        (None, False),
    ],
)
def test_bfloat16_is_known_by_the_processors_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, expected: bool
) -> None:
    path = tmp_path / "cpuinfo"
    if content is not None:
        path.write_text(content)
    monkeypatch.setattr(processor, "_CPU_INFO", path)
    assert processor.has_bfloat16() is expected
