"""Each token's logprob arrives with the token's text, however long that text is held back."""

from __future__ import annotations

import random

from services.text.engine.messages import TokenLogprob
from services.text.engine.sequence import HeldLogprobs
from services.text.engine.stop_strings import TextAssembler
from tests.case import case


def stream(tokens: list[bytes], stop: tuple[str, ...] = ()) -> list[tuple[str, bytes]]:
    """Returns the text of each push, and the bytes of the tokens that come with it."""
    text, held = TextAssembler(stop), HeldLogprobs()
    out = []
    for token in tokens:
        held.add(text.decoded, TokenLogprob(token, 0.0, []))
        shown = text.push(token)
        out.append((shown, b"".join(logprob.piece for logprob in held.take(text.shown))))
        if text.stopped:
            return out
    shown = text.flush()
    out.append((shown, b"".join(logprob.piece for logprob in held.take(text.shown))))
    return out


def test_halves_of_a_character_come_together() -> None:
    fox = "🦊".encode()
    assert stream([b"a", fox[:1], fox[1:3], fox[3:] + b"b"]) == [
        ("a", b"a"),
        ("", b""),
        ("", b""),
        ("🦊b", fox + b"b"),
        ("", b""),
    ]


def test_a_character_that_is_never_finished_has_none() -> None:
    assert stream([b"a", "🦊".encode()[:3]])[1:] == [("", b""), ("", b"")]


def test_a_token_of_which_a_part_is_shown_comes_with_it() -> None:
    assert stream([b"one E", b"ND"], ("END",)) == [("one ", b"one E"), ("", b"")]


def test_random_tokens_with_a_stop_string() -> None:
    for seed in range(40):
        with case(seed=seed):
            rng = random.Random(seed)  # noqa: S311
            data = "".join(rng.choice("abé🦊") for _ in range(60)).encode()
            tokens = []
            while data:
                cut = rng.randint(1, 6)
                tokens.append(data[:cut])
                data = data[cut:]
            stop = "".join(rng.choice("abé🦊") for _ in range(3))
            out = stream(tokens, (stop,))
            text = "".join(shown for shown, _ in out)
            reported = b"".join(token for _, token in out)
            assert reported == b"".join(tokens)[: len(reported)], "in order, each once"
            assert reported.startswith(text.encode())
            last = max((token for token in tokens), key=len)
            assert len(reported) < len(text.encode()) + len(last), (
                "at most the token that a stop string cuts hangs over"
            )
            for shown, token in out:
                assert bool(shown) or not token
