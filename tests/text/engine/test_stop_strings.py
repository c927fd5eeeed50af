"""Text assembly: whole characters, and no part of a stop string."""

import random

from services.text.engine.stop_strings import TextAssembler
from tests.case import case


def assemble(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    text = TextAssembler(stop)
    out = []
    for piece in pieces:
        out.append(text.push(piece))
        if text.stopped:
            return out, True
    out.append(text.flush())
    return out, False


def test_a_character_leaves_when_it_is_complete() -> None:
    data = "né🙂!".encode()
    out, _ = assemble([bytes([byte]) for byte in data])
    assert "".join(out) == "né🙂!"
    assert all("�" not in text for text in out)
    assert out[1:3] == ["", "é"]


def test_an_unfinished_character_at_the_end_is_dropped() -> None:
    out, _ = assemble([b"ab", "🙂".encode()[:3]])
    assert "".join(out) == "ab"


def test_invalid_bytes_become_replacement_characters() -> None:
    out, _ = assemble([b"a\xff", b"b"])
    assert "".join(out) == "a�b"


def test_a_stop_string_across_tokens_never_shows() -> None:
    out, stopped = assemble([b"one", b" E", b"N", b"D", b" two"], ("END",))
    assert stopped
    assert "".join(out) == "one "
    assert not any("E" in text for text in out)


def test_text_that_resembles_a_stop_string_is_sent_later() -> None:
    out, stopped = assemble([b"E", b"N", b"E", b"N", b"X"], ("END",))
    assert not stopped
    assert "".join(out) == "ENENX"


def test_the_first_of_several_stop_strings_wins() -> None:
    out, stopped = assemble([b"a b c d"], ("d", "b"))
    assert stopped
    assert "".join(out) == "a "


def test_random_splits_equal_the_plain_search() -> None:
    for seed in range(30):
        with case(seed=seed):
            rng = random.Random(seed)  # noqa: S311
            text = "".join(rng.choice("abé🙂") for _ in range(40))
            stop = "".join(rng.choice("abé🙂") for _ in range(3))
            data, pieces = text.encode(), []
            while data:
                cut = rng.randint(1, 5)
                pieces.append(data[:cut])
                data = data[cut:]
            out, stopped = assemble(pieces, (stop,))
            assert stopped == (stop in text)
            assert "".join(out) == text.split(stop)[0]
