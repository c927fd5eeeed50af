"""Tables, sizes and progress, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from services.byte_count import bytes_word
from services.cli.models.page import Page, enum_word, seconds_word, shorten, state_word
from services.cli.models.progress import Stage, StageProgress, progress_words

MIB = 1024 * 1024
ROWS = [("m", "1", "why " * 100), ("longer-id", "22", "")]


def page(width: int = 60, *, terminal: bool) -> tuple[Page, io.StringIO]:
    file = io.StringIO()
    return Page(Console(file=file, width=width, force_terminal=terminal, color_system=None, highlight=False)), file


def test_on_a_terminal_the_last_column_is_shortened_and_nothing_is_wrapped() -> None:
    shown, file = page(terminal=True)
    shown.table(("ID", "SIZE", "DETAIL"), ROWS, right=frozenset({"SIZE"}))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert len([line for line in lines if "why" in line]) == 1
    assert "..." in file.getvalue()


def test_elsewhere_nothing_is_shortened() -> None:
    shown, file = page(terminal=False)
    shown.table(("ID", "SIZE", "DETAIL"), ROWS, right=frozenset({"SIZE"}))
    header, first, second = file.getvalue().splitlines()
    assert first.count("why") == 100
    assert first.index("1") == second.index("22") + 1 == header.index("SIZE") + 3


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (138 * MIB, "138 MiB"), (1023 * MIB, "1.0 GiB"),
     (1536 * MIB, "1.5 GiB"), (9_990 * MIB, "9.8 GiB"), (5000 * 1024**4, "5,000 TiB")],
)  # fmt: skip
def test_bytes(count: int, expected: str) -> None:
    assert bytes_word(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.4, "0 s"), (59.4, "59 s"), (75, "1 min 15 s"), (3725, "1 h 2 min")]
)
def test_seconds(seconds: float, expected: str) -> None:
    assert seconds_word(seconds) == expected


def test_a_state_of_a_later_version_is_its_number() -> None:
    assert state_word(1) == "ready"
    assert state_word(99) == "99"


def test_shortened_texts_keep_to_the_width() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abc..."


def test_a_rate_counts_only_what_has_come_meanwhile() -> None:
    reached = Stage("downloading", done=60 * MIB, total=100 * MIB)
    assert progress_words(reached, 5.0, 50 * MIB) == "60 MiB of 100 MiB (60%), 2.0 MiB/s, 20 s left"
    assert progress_words(reached, 0.0, 60 * MIB) == "60 MiB of 100 MiB (60%)"


def test_on_a_terminal_columns_without_content_are_left_out() -> None:
    shown, file = page(terminal=True)
    shown.table(("ID", "ALIASES", "RUNTIME", "DETAIL"), [("m", "-", "llama_cpp", ""), ("n", "", "-", "")])
    assert file.getvalue().splitlines()[0].split() == ["ID", "RUNTIME"]


def test_only_the_names_of_pairs_are_bold() -> None:
    file = io.StringIO()
    Page(Console(file=file, force_terminal=True, color_system="standard", width=60)).pairs([("id", "m"), ("no", "")])
    assert file.getvalue() == "\x1b[1mid  \x1b[0mm\n"


def test_a_bar_on_a_terminal() -> None:
    file = io.StringIO()
    with StageProgress("m", Console(file=file, width=120, force_terminal=True, color_system=None)) as screen:
        screen.show(Stage("pending", "no text service is running"))
        screen.show(Stage("downloading", done=30 * MIB, total=100 * MIB))
        screen.show(Stage("downloading", "m is downloading: 60 % done", done=60 * MIB, total=100 * MIB))
    last = file.getvalue().replace("\r", "\n").splitlines()
    assert any("m downloading" in line and "60 MiB of 100 MiB" in line for line in last)
    assert not any("?" in line for line in last if "\x1b[?" not in line)


def test_a_bar_has_no_figures_until_the_total_is_known() -> None:
    file = io.StringIO()
    with StageProgress("m", Console(file=file, width=120, force_terminal=True, color_system=None)) as screen:
        screen.show(Stage("pending", "no text service is running"))
    assert "m pending: no text service is running" in file.getvalue()
    assert " B" not in file.getvalue()


def test_enum_words_need_the_enums_own_prefix() -> None:
    from allm.models.v1 import model_pb2

    assert enum_word(model_pb2.Modality.DESCRIPTOR, model_pb2.MODALITY_TEXT) == "text"
    assert enum_word(model_pb2.Format.DESCRIPTOR, 0) == "unspecified"


def test_on_a_terminal_rows_that_fit_have_one_line_each() -> None:
    file = io.StringIO()
    shown = Page(Console(file=file, force_terminal=True, color_system=None, width=70))
    rows = [("m" * 20, "unsupported", "why " * 30), ("n", "ready", "short")]
    shown.table(("ID", "STATE", "DETAIL"), rows)
    lines = file.getvalue().splitlines()
    assert len(lines) == 4, lines
    assert lines[2].startswith(f"{'m' * 20}  unsupported  why why")
    assert lines[2].rstrip().endswith("...")
    assert len(lines[2].rstrip()) > 60


def test_on_a_narrow_terminal_what_has_no_room_comes_below() -> None:
    file = io.StringIO()
    shown = Page(Console(file=file, force_terminal=True, color_system=None, width=40))
    shown.table(("ID", "STATE", "DETAIL"), [("m" * 20, "unsupported", "why " * 30), ("n", "ready", "-")])
    header, _, first, second, below = file.getvalue().splitlines()
    assert header.split() == ["ID", "STATE"]
    assert first.split() == ["m" * 20, "unsupported"]
    assert second.split() == ["n", "ready"]
    assert below == f"{'m' * 20}: {('why ' * 30).strip()}"
