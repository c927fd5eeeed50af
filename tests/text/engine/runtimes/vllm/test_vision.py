"""Models that see under the vllm runtime, beside transformers: LLaVA with CLIP and SigLIP, LLaVA-NeXT and Idefics3."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.models.runtimes import VLLM_SEEING
from services.text.engine.messages import Pixels
from tests.late import late
from tests.text.engine.worker_session import Answer, WorkerSession
from tests.text.families.family_checks import EXACT
from tests.text.families.published_configs import VOCABULARY
from tests.text.families.published_vision_configs import (
    CLIP_PIXELS,
    IDEFICS3,
    LLAVA,
    LLAVA_NEXT,
    LLAVA_QWEN,
    NEXT_PIXELS,
    PADDED_PIXELS,
    TILE_WORDS,
    TILES,
)
from tests.text.families.random_models import write_json
from tests.text.families.vision_checks import logprobs, picture, pil_processor, write_seeing

pytestmark = pytest.mark.slow

image = late("PIL.Image")
torch = late("torch")
transformers = late("transformers")

MARK = "\u0091picture\u0091"
TWO = f"user: {MARK}\nand {MARK} differ in "
TOKENS = 6  # of an answer
TOP = 20  # vLLM reports so many alternatives
PATCHES = 16  # tokens of a picture
BLOCK = 32  # cells that requests share
HEADS = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}  # vLLM's kernels want heads of 32
SIZES = {"context_tokens": 256, "kv_tokens": 1024, "batch_tokens": 64, "chunk_tokens": 64, "threads": 1}


def narrow(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"text_config": config["text_config"] | HEADS}


@dataclass
class Family:
    """A family: its published configuration and settings of pictures, and transformers' processor of prompts."""

    config: dict[str, Any]
    pixels: dict[str, Any]
    words: list[str]
    processor: str
    settings: dict[str, Any]  # of the processor

    def write(self, folder: Path) -> Path:
        write_seeing(folder, narrow(self.config), self.pixels, self.words)
        if self.config is not LLAVA:  # vLLM finds them in LLaVA's config.json
            write_json(folder / "processor_config.json", self.settings | {"processor_class": self.processor})
        return folder


PATCH = {"patch_size": 14}
DEFAULT = PATCH | {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
FULL = PATCH | {"vision_feature_select_strategy": "full", "num_additional_image_tokens": 0}
FAMILIES = {
    "clip": Family(LLAVA, CLIP_PIXELS, ["<image>"], "LlavaProcessor", DEFAULT),
    "siglip": Family(LLAVA_QWEN, PADDED_PIXELS, ["<image>"], "LlavaProcessor", FULL),
    "llava_next": Family(LLAVA_NEXT, NEXT_PIXELS, ["<image>"], "LlavaNextProcessor", DEFAULT),
    "idefics3": Family(IDEFICS3, TILES, TILE_WORDS, "Idefics3Processor", {"image_seq_len": 4}),
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES["clip"].write(tmp_path_factory.mktemp("clip") / "model")


@pytest.fixture(scope="module")
def worker(clip: Path) -> Iterator[WorkerSession]:
    with WorkerSession("vllm", clip, dtype="float32", **SIZES) as started:
        assert started.ready, started.failed
        yield started


def ask(worker: WorkerSession, prompt: str, pictures: Sequence[Pixels], **given: Any) -> int:
    more = {"max_tokens": TOKENS, "ignore_eos": True, "special": True, "logprobs": TOP}
    return worker.submit(prompt, pictures=tuple(pictures), mark=MARK, **(more | given))


def look(worker: WorkerSession, prompt: str, pictures: Sequence[Pixels], **given: Any) -> Answer:
    answer = worker.finish(ask(worker, prompt, pictures, **given))
    assert answer.refused is None
    return answer


def assert_like_transformers(family: Family, folder: Path, pictures: Sequence[Pixels], answer: Answer) -> None:
    """Compares the likeliest tokens at each token of an answer to TWO."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    processor = getattr(transformers, family.processor)(pil_processor(folder), tokenizer, **family.settings)
    images = [image.frombytes("RGB", (one.width, one.height), one.pixels) for one in pictures]
    inputs = processor(text=[TWO.replace(MARK, "<image>")], images=images, return_tensors="pt")
    assert answer.prompt_tokens == inputs["input_ids"].shape[1]
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    names = {tokenizer.decode([token]).encode(): token for token in range(VOCABULARY)}
    tokens = [names[each.piece] for each in answer.logprobs]
    for row, each in zip(logprobs(model, inputs, tokens), answer.logprobs, strict=True):
        assert len(each.top) == TOP
        assert max(abs(float(row[names[name]]) - value) for name, value in each.top) <= EXACT
    assert len(answer.logprobs) == TOKENS


def assert_seen(worker: WorkerSession, family: Family, folder: Path) -> None:
    """Asks about pictures in both orientations, of which one is then another one."""
    assert worker.ready, worker.failed
    assert worker.ready.sees
    pictures = [picture(300, 130), picture(60, 200, seed=1)]
    answer = look(worker, TWO, pictures)
    assert_like_transformers(family, folder, pictures, answer)
    other = look(worker, TWO, [pictures[0], picture(60, 200, seed=2)])
    assert other.logprobs[0] != answer.logprobs[0]


def test_it_sees_as_transformers_does(worker: WorkerSession, clip: Path) -> None:
    assert_seen(worker, FAMILIES["clip"], clip)
    text = worker.finish(worker.submit("user: <image>", max_tokens=TOKENS, ignore_eos=True))
    assert text.tokens == TOKENS
    assert text.prompt_tokens < PATCHES, "the token's name in a text is no picture"


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "clip"])
def test_other_families_see_as_transformers_does(name: str, tmp_path: Path) -> None:
    folder = FAMILIES[name].write(tmp_path / "model")
    with WorkerSession("vllm", folder, dtype="float32", **SIZES) as worker:
        assert_seen(worker, FAMILIES[name], folder)


def test_the_families_are_those_of_the_table() -> None:
    assert {family.config["model_type"] for family in FAMILIES.values()} == VLLM_SEEING


def test_requests_side_by_side_see_like_alone(worker: WorkerSession) -> None:
    """More pictures than the encoder's embeddings are kept for; each step encodes one."""
    asked = [[picture(40 + 9 * number, 50, seed=number), picture(50, 60, seed=number % 3)] for number in range(8)]
    alone = [look(worker, TWO, pictures, client="alone") for pictures in asked]
    with worker.stopped():
        numbers = [ask(worker, TWO, pictures, client=str(at)) for at, pictures in enumerate(asked)]
    for number, expected in zip(numbers, alone, strict=True):
        answer = worker.finish(number)
        assert answer.text == expected.text
        assert answer.logprobs[0].logprob == pytest.approx(expected.logprobs[0].logprob, abs=EXACT)
    assert max(step.batch for step in worker.steps) > 1
    assert worker.idle().active_cells == 0


def test_a_prefix_with_a_picture_is_reused_for_equal_pictures_of_the_same_client(worker: WorkerSession) -> None:
    long = "user: " + "word " * 8 + MARK + " and more words about it, "
    first = look(worker, long + "what?", [picture(56, 56, seed=7)], client="first")
    again = look(worker, long + "what?", [picture(56, 56, seed=7)], client="first")
    assert first.cached == 0
    assert again.cached == again.prompt_tokens // BLOCK * BLOCK > len("user: ") + 8 * len("word ") + PATCHES
    assert again.text == first.text
    other = look(worker, long + "what?", [picture(56, 56, seed=8)], client="first")
    assert other.cached == BLOCK, "the text before the picture"
    assert other.logprobs[0] != first.logprobs[0]
    assert look(worker, long + "what?", [picture(56, 56, seed=7)], client="second").cached == 0


def test_a_cancelled_request_leaves_nothing(worker: WorkerSession) -> None:
    with worker.stopped():
        numbers = [ask(worker, TWO, [picture(60, 60, seed=at)] * 2, client=str(at), max_tokens=80) for at in range(4)]
        for number in numbers[1:3]:
            worker.cancel(number)
    for number in (numbers[0], numbers[3]):
        assert worker.finish(number).tokens == 80
    assert worker.idle().active_cells == 0
    assert look(worker, TWO, [picture(60, 60, seed=1)] * 2).tokens == TOKENS


def test_a_held_request_sees_the_same_when_it_goes_on(worker: WorkerSession) -> None:
    pictures = [picture(70, 50, seed=3), picture(50, 70, seed=4)]
    expected = look(worker, TWO, pictures, max_tokens=60, client="before")
    number = ask(worker, TWO, pictures, max_tokens=60)
    worker.until(number, 5)
    worker.hold(number, held=True)
    for seed in range(8):
        look(worker, TWO, [picture(80, 80, seed=20 + seed)] * 2)
    worker.hold(number, held=False)
    assert worker.finish(number).text == expected.text


def test_requests_that_outgrow_the_cache_see_again(clip: Path) -> None:
    with WorkerSession("vllm", clip, dtype="float32", **(SIZES | {"kv_tokens": 256})) as worker:
        pictures = [[picture(50, 60, seed=number)] * 2 for number in range(6)]
        alone = [look(worker, TWO, each, client="alone", max_tokens=60).text for each in pictures]
        numbers = [ask(worker, TWO, each, client=str(at), max_tokens=60) for at, each in enumerate(pictures)]
        assert [worker.finish(number).text for number in numbers] == alone
        assert worker.idle().preempted > 0


def test_pictures_that_it_cannot_take_are_refused(worker: WorkerSession) -> None:
    strip = Pixels(width=1, height=101, pixels=bytes(303), param="messages[0].content[1].image_url.url")
    refused = worker.finish(ask(worker, TWO, [picture(9, 9), strip])).refused
    assert refused
    assert (refused.code, refused.param) == ("INVALID_REQUEST", strip.param)
    assert "1 x 101 pixels is too narrow" in refused.message
    refused = worker.finish(ask(worker, MARK * 16 + "?", [picture(9, 9)] * 16)).refused
    assert refused
    assert refused.code == "CONTEXT_LENGTH_EXCEEDED"


@pytest.mark.parametrize(
    ("changes", "pixels", "sizes", "code", "message"),
    [
        ({"vision_config": LLAVA["vision_config"] | {"model_type": "vit"}}, {}, {}, "UNSUPPORTED", "vision config"),
        ({}, {"crop_size": {"height": 28, "width": 28}}, {}, "MODEL_INVALID", "with a picture: pixel_values"),
        ({}, {"image_processor_type": "OwnProcessor"}, {}, "MODEL_INVALID", "vLLM cannot load"),
        ({}, {}, {"tensor_parallel": 2}, "UNSUPPORTED", "does not divide models that take pictures"),
    ],
)
def test_models_that_it_cannot_see_with_are_refused(
    clip: Path,
    tmp_path: Path,
    changes: dict[str, Any],
    pixels: dict[str, Any],
    sizes: dict[str, int],
    code: str,
    message: str,
) -> None:
    folder = shutil.copytree(clip, tmp_path / "other")
    write_json(folder / "config.json", narrow(LLAVA) | changes)
    write_json(folder / "preprocessor_config.json", CLIP_PIXELS | pixels)
    with WorkerSession("vllm", folder, **(SIZES | sizes)) as worker:
        assert worker.failed
        assert worker.failed.code == code, worker.failed
        assert message in worker.failed.message
