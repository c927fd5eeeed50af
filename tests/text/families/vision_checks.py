"""Checks that every family of models that see must pass: transformers' answers about pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from services.text.engine.messages import Pixels
from services.text.engine.runtime import PicturePart, TokenSpan
from services.text.engine.sampling import SamplingParams
from tests.late import late
from tests.text.families.family_checks import EXACT, WORSE
from tests.text.families.parity import Generated
from tests.text.families.published_configs import VOCABULARY
from tests.text.families.random_models import write_json, write_model
from tests.text.families.torch_session import TorchSession, load

image = late("PIL.Image")
numpy = late("numpy")
torch = late("torch")
torch_engine = late("services.text.engine.runtimes.torch.engine")
transformers = late("transformers")

TOKENS = 6  # per answer
CONTEXT = 2048


def write_seeing(folder: Path, config: Mapping[str, Any], pixels: Mapping[str, Any], words: Sequence[str]) -> Path:
    """Writes a model that sees, with random weights and the special tokens `words`."""
    write_model(folder, config, words=words)
    write_json(folder / "preprocessor_config.json", pixels)
    return folder


def pil_processor(folder: Path) -> Any:
    """Returns transformers' image processor of a model, in the version without torchvision."""
    name = json.loads((folder / "preprocessor_config.json").read_text())["image_processor_type"].removesuffix("Fast")
    return getattr(transformers, f"{name}Pil").from_pretrained(folder)


def picture(width: int, height: int, seed: int = 0) -> Pixels:
    """Draws coarse random patterns."""
    numbers = numpy.random.default_rng(seed)
    coarse = numbers.integers(0, 256, (7, 5, 3), dtype=numpy.uint8)
    drawn = image.fromarray(coarse).resize((width, height), image.Resampling.NEAREST)
    return Pixels(width=width, height=height, pixels=drawn.tobytes())


@dataclass
class Asked:
    """A prompt with pictures: its tokens and parts, and the same as transformers' processor prepares it."""

    tokens: list[int]
    parts: list[PicturePart]
    inputs: dict[str, Any]

    def shift(self, position: int) -> int:
        """Returns by how much rotary embeddings count less at a position."""
        return sum(
            part.count - part.advance for part in self.parts if part.advance is not None and part.end <= position
        )


@dataclass
class Seeing:
    """A model that sees, under the runtime and under transformers."""

    folder: Path
    engine: torch_engine.SafetensorsEngine
    model: Any
    processor: Any  # transformers' own, which makes text and pictures into the definition's input
    placeholder: str  # of a picture in a text

    def ask(self, text: str, pictures: Sequence[Pixels]) -> Asked:
        """Prepares a prompt as the worker does, in which the placeholder stands for each picture."""
        before, after = self.engine.ready.picture_margins
        first, *others = text.replace(self.placeholder, f"{before}\0{after}").split("\0")
        tokens, parts = self.engine.tokenize(first), []
        begun = len(self.engine.tokenize(""))
        for other, pixels in zip(others, pictures, strict=True):
            own, found = self.engine.see(pixels)
            for part in found:
                part.start += len(tokens)
            parts += found
            tokens += own + self.engine.tokenize(other)[begun:]
        images = [image.frombytes("RGB", (one.width, one.height), one.pixels) for one in pictures]
        inputs = self.processor(text=[text], images=images or None, return_tensors="pt")
        return Asked(tokens, parts, dict(inputs))

    def answer(self, asked: Asked, chunk: int = 24, sequence: int = 0) -> Generated:
        """Returns the greedy answer to a prompt that is computed in chunks."""
        engine = self.engine
        params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
        sampler = engine.sampler(params, [token for token in asked.tokens if token >= 0], None, VOCABULARY)
        ids = {engine.name(token): token for token in range(VOCABULARY)}
        tokens, found, done = list(asked.tokens), [], 0
        while len(found) < TOKENS:
            span = _next_span(asked, tokens, done, chunk)
            span.sequence = sequence
            if done + len(span.tokens) == len(tokens):
                span.sampler = sampler
            for part in asked.parts:
                if part is span.part and part.start == done:
                    engine.encode(part)
                    span.embeddings = part.embeddings[: len(span.tokens)]
            (outcomes,) = engine.step([span])
            done += len(span.tokens)
            for outcome in outcomes:
                tokens.append(outcome.token)
                found.append({ids[name]: value for name, value in outcome.logprob.top})
        engine.free_sampler(sampler)
        engine.drop(sequence)
        return Generated(tokens[len(asked.tokens) :], found)

    def expected(self, asked: Asked, tokens: Sequence[int]) -> Any:
        """Returns transformers' log-probabilities [tokens, vocabulary] at each token of an answer."""
        return logprobs(self.model, asked.inputs, tokens)


def logprobs(model: Any, given: Mapping[str, Any], tokens: Sequence[int]) -> Any:
    """Returns a definition's log-probabilities [tokens, vocabulary] at each token of an answer.

    `given`: the input that transformers' processor has made of a prompt.
    """
    inputs = dict(given)
    more = torch.tensor([list(tokens[:-1])], dtype=torch.long)
    inputs["input_ids"] = torch.cat([inputs["input_ids"], more], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in inputs:
            inputs[name] = torch.cat([inputs[name], torch.zeros_like(more)], 1)
    with torch.inference_mode():
        logits = model(**inputs).logits[0, -len(tokens) :]
    return logits.float().log_softmax(-1)


class GridProcessor:
    """Does what the processors of Qwen-VL and GLM-4V do, which cannot be made without torchvision, with their parts."""

    def __init__(self, pixels: Any, words: Any) -> None:
        self._pixels = pixels
        self._words = words

    def __call__(self, text: list[str], images: list[Any] | None, return_tensors: str) -> dict[str, Any]:
        """Returns the input of a definition: the placeholder's middle token once for each four patches."""
        seen = dict(self._pixels(images=images, return_tensors=return_tensors)) if images else {}
        last = VOCABULARY - 1
        ids: list[int] = []
        grids = iter(seen["image_grid_thw"].tolist() if images else [])
        for token in self._words(text[0])["input_ids"]:
            if token == last:
                _, rows, columns = next(grids)
                ids += [token] * (rows * columns // 4)
            else:
                ids.append(token)
        found = torch.tensor([ids])
        return seen | {"input_ids": found, "mm_token_type_ids": (found == last).long()}


def _next_span(asked: Asked, tokens: Sequence[int], done: int, chunk: int) -> TokenSpan:
    """Returns the next tokens to compute, which are of one picture part or of none."""
    end = min(len(tokens), done + chunk)
    inside = None
    for part in asked.parts:
        if part.start <= done < part.end:
            inside, end = part, part.end if part.whole else min(end, part.end)
        elif done < part.start:
            end = min(end, part.start)
    span = TokenSpan(0, done, tokens[done:end], None, part=inside, shift=asked.shift(done))
    if inside is not None and inside.embeddings is not None:
        span.embeddings = inside.embeddings[done - inside.start : end - inside.start]
    return span


def seeing(folder: Path, processor: Any, placeholder: str, dtype: str = "float32", **changes: Any) -> Seeing:
    """Loads a model in the runtime, and in float32 in transformers."""
    engine = load(folder, dtype, **({"context_tokens": CONTEXT, "kv_tokens": 2 * CONTEXT} | changes))
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return Seeing(folder, engine, model, processor, placeholder)


def check_answers(seen: Seeing, text: str, pictures: Sequence[Pixels]) -> Generated:
    """Checks the tokens of a prompt, and that the answer's log-probabilities are transformers' own."""
    asked = seen.ask(text, pictures)
    given = asked.inputs["input_ids"][0].tolist()
    assert len(asked.tokens) == len(given)
    assert all(ours in (theirs, *_placed(ours)) for ours, theirs in zip(asked.tokens, given, strict=True))
    generated = seen.answer(asked)
    check_logprobs(seen, asked, generated)
    return generated


def check_logprobs(seen: Seeing, asked: Asked, generated: Generated) -> None:
    """Checks that an answer's log-probabilities are transformers' own."""
    off = float((seen.expected(asked, generated.tokens) - _rows(generated)).abs().max())
    assert off <= EXACT, off


def check_bfloat16(seen: Seeing, text: str, sizes: Sequence[tuple[int, int]]) -> None:
    """Checks that the log-probabilities in bfloat16 are as close to float32 as transformers' own in bfloat16."""
    engine = load(seen.folder, "bfloat16", context_tokens=CONTEXT, kv_tokens=2 * CONTEXT)
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        seen.folder, dtype=torch.bfloat16, attn_implementation="eager"
    )
    rounded = replace(seen, engine=engine, model=model)
    ours, theirs = 0.0, 0.0
    for seed in range(3):
        asked = rounded.ask(text, [picture(*size, seed=10 * seed + place) for place, size in enumerate(sizes)])
        generated = rounded.answer(asked)
        exact = seen.expected(asked, generated.tokens)
        ours += _typical(exact - _rows(generated))
        theirs += _typical(exact - rounded.expected(asked, generated.tokens))
    assert ours <= WORSE * theirs, (ours, theirs)


def check_crowd(seen: Seeing, sizes: Sequence[tuple[int, int]]) -> None:
    """Checks that requests with pictures in a shared batch answer as transformers does for each alone.

    Equal pictures after equal texts are computed once.
    """
    one, two = (picture(*size, seed=place) for place, size in enumerate(sizes))
    mark = seen.placeholder
    asked = {
        1: seen.ask(f"common text {mark} and a question", [one]),
        2: seen.ask(f"common text {mark} and another, longer question", [one]),
        3: seen.ask(f"{mark} or {mark}: which is it, {mark}? ", [two, one, two]),
        4: seen.ask("no picture at all, but text", []),
        5: seen.ask(f"common text {mark} and another, longer question", [two]),
    }
    encoded: list[int] = []
    encode = seen.engine.encode
    session = TorchSession(seen.engine)
    seen.engine.encode = lambda part: (encoded.append(part.count), encode(part))[1]
    try:
        for number, each in asked.items():
            session.ask(number, each.tokens, each.parts, max_tokens=TOKENS)
            session.turn(2)
        session.finish(*asked)
        before = len(encoded)
        session.ask(6, asked[2].tokens, asked[2].parts, max_tokens=TOKENS)
        session.finish(6)
        assert len(encoded) == before, "its pictures are in the prefix cache"
        assert session.answers[6].cached >= asked[2].parts[-1].end
    finally:
        seen.engine.encode = encode
    for number, each in (asked | {6: asked[2]}).items():
        check_logprobs(seen, each, session.generated(number))
    assert session.counters is not None
    assert (session.counters.running, session.counters.active_cells) == (0, 0)


def check_fixed_steps(seen: Seeing, text: str, pictures: Sequence[Pixels]) -> None:
    """Checks that padded decoding steps, which a GPU records as graphs, answer the same."""
    asked = seen.ask(text, pictures)
    expected = seen.answer(asked)
    seen.engine.executor.use_fixed_steps(4, record=False)
    found = seen.answer(asked)
    assert found.tokens == expected.tokens
    assert float((_rows(found) - _rows(expected)).abs().max()) <= EXACT


def _rows(generated: Generated) -> Any:
    """Returns an answer's log-probabilities [tokens, vocabulary]."""
    return torch.tensor([[row[token] for token in range(VOCABULARY)] for row in generated.logprobs])


def _typical(off: Any) -> float:
    return float(off.pow(2).mean().sqrt())


def _placed(token: int) -> tuple[int, ...]:
    """Returns the token itself if it stands for a part of a picture."""
    return (token,) if token < 0 else ()
