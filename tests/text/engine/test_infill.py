"""Filling in: a prompt and the text after the gap, arranged with the tokens that each runtime finds in a model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from services.text.engine.__main__ import _prepare
from services.text.engine.messages import Submit
from services.text.engine.runtimes.llama_cpp import LlamaEngine
from services.text.engine.sampling import SamplingParams
from services.worker.messages import RequestRefused
from tests.case import case
from tests.demo_model import demo_model, demo_safetensors
from tests.late import late
from tests.text.engine.prepared import prepared
from tests.text.engine.session import options

vocabulary = late("services.text.engine.runtimes.torch.vocabulary")

# Tokens of the demo model, and those of Qwen2.5-Coder, which are as long.
RENAMED = {
    b"<jupyter_text>": b"<|fim_prefix|>",
    b"<jupyter_code>": b"<|fim_suffix|>",
    b"<empty_output>": b"<|fim_middle|>",
}
HEADER = 8 * 1024 * 1024  # the vocabulary is in the first bytes of the file


def submit(prompt: str | list[int], suffix: str) -> Submit:
    return Submit(1, "me", prompt, SamplingParams(max_tokens=4), suffix=suffix)


@pytest.mark.slow
def test_llama_cpp_finds_the_tokens_and_arranges_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    shutil.copyfile(demo_model(), path)
    with path.open("r+b") as file:
        head = file.read(HEADER)
        for old, new in RENAMED.items():
            assert head.count(old) == 1
            head = head.replace(old, new)
        file.seek(0)
        file.write(head)
    engine = LlamaEngine(options(path, context_tokens=128, kv_tokens=128), lambda _: None)
    written = "<|fim_prefix|>def add(a, b):\n<|fim_suffix|>\nprint(add(1, 2))<|fim_middle|>"
    expected = engine.tokenize(written)
    assert engine.ready.infill == (expected[0], engine.tokenize("<|fim_suffix|>")[0], expected[-1])
    sent: list[Any] = []
    prompt = "def add(a, b):\n"
    sequence = prepared(_prepare(engine, submit(prompt, "\nprint(add(1, 2))"), sent.append))
    assert sequence.tokens == expected
    sequence = prepared(_prepare(engine, submit(engine.tokenize(prompt), "\nprint(add(1, 2))"), sent.append))
    assert (sequence.tokens, sent[-1].prompt) == (expected, prompt), "an echo is the prompt alone"


def test_the_tokenizers_of_several_families_name_the_tokens(tmp_path: Path) -> None:
    folder = demo_safetensors()
    text = (folder / "tokenizer.json").read_text("utf-8")
    shutil.copyfile(folder / "tokenizer_config.json", tmp_path / "tokenizer_config.json")
    families = [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("▁<PRE>", "▁<SUF>", "▁<MID>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 (their own characters)
    ]
    for names in families:
        with case(names=names):
            renamed = text
            for old, name in zip(RENAMED, names, strict=True):
                renamed = renamed.replace(old.decode(), name)
            (tmp_path / "tokenizer.json").write_text(renamed, "utf-8")
            found = vocabulary.TokenVocabulary(tmp_path, 49152, frozenset({2}))
            assert [found.text_of(token).decode() for token in found.infill] == list(names)
    assert vocabulary.TokenVocabulary(folder, 49152, frozenset({2})).infill is None


def test_what_the_tokenizer_prepends_stays_in_front_and_a_model_without_tokens_refuses() -> None:
    class Letters:
        """A runtime whose tokens are letters after a 1."""

        class Ready:
            context_tokens, vocabulary = 100, 256
            infill: tuple[int, int, int] | None = (7, 8, 9)

        ready = Ready()

        def tokenize(self, text: str) -> list[int]:
            return [1, *text.encode()]

        def piece(self, token: int, special: bool) -> bytes:
            return bytes([token])

        def name(self, token: int) -> bytes:
            return bytes([token])

    runtime, sent = Letters(), []
    expected = [1, 7, 97, 8, 98, 9]
    for prompt in ("a", [1, 97], [97]):
        with case(prompt=prompt):
            assert prepared(_prepare(runtime, submit(prompt, "b"), sent.append)).tokens == expected  # type: ignore[arg-type]
    runtime.ready.infill = None
    assert prepared(_prepare(runtime, submit("a", "b"), sent.append)) is None  # type: ignore[arg-type]
    assert isinstance(sent[-1], RequestRefused)
    assert (sent[-1].code, sent[-1].param) == ("UNSUPPORTED", "suffix")
