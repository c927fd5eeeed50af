"""Qwen: 2.5 with biases, 3 with normalised queries and keys, 3-MoE with experts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.text.conversation import Message
from services.text.parsers.dialect import HERMES, choose
from services.text.prompt import ChatTemplate
from tests.late import late
from tests.text.families.family_checks import check_bfloat16, check_float32, check_mixed_batch, check_shows
from tests.text.families.published_configs import QWEN3, QWEN3_MOE, QWEN25, changed
from tests.text.families.published_words import published_tokenizer, write_qwen3
from tests.text.families.random_models import write_model, write_variant
from tests.text.families.torch_session import load

if TYPE_CHECKING:
    from services.text.engine.runtimes.torch.engine import SafetensorsEngine

transformers = late("transformers")

SHAPES = {"qwen2.5": QWEN25, "qwen3": QWEN3, "qwen3-moe": QWEN3_MOE}


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("qwen") / request.param, SHAPES[request.param])


@pytest.fixture(scope="module")
def moe_alike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Similar experts: in 16 bits another one may win where two score the same, which must not matter much."""
    return write_model(tmp_path_factory.mktemp("qwen") / "qwen3-moe", QWEN3_MOE, alike=True)


def test_in_float32(model: Path) -> None:
    check_float32(model)


def test_in_a_crowd(model: Path) -> None:
    check_mixed_batch(model)


def test_qwen3_in_bfloat16(model: Path, moe_alike: Path) -> None:
    check_bfloat16(moe_alike if model.name == moe_alike.name else model)


def test_experts_in_a_crowd_in_bfloat16(moe_alike: Path) -> None:
    check_mixed_batch(moe_alike, "bfloat16")


@pytest.mark.parametrize("end", ["q_proj.bias", "k_norm.weight", "v_proj.bias"])
def test_biases_and_norms_show_in_the_answers(tmp_path: Path, end: str) -> None:
    shape = QWEN3 if "norm" in end else QWEN25
    model = write_model(tmp_path / "model", shape)
    check_shows(model, write_variant(tmp_path / "without", model, shape, **{end: 1.0 if "norm" in end else 0.0}))


@pytest.mark.parametrize("change", [{"num_experts_per_tok": 2}, {"norm_topk_prob": False}])
def test_how_experts_are_chosen_shows_in_the_answers(tmp_path: Path, change: dict[str, object]) -> None:
    model = write_model(tmp_path / "model", QWEN3_MOE)
    check_shows(model, write_variant(tmp_path / "other", model, changed(QWEN3_MOE, **change)))


# --- Qwen3's published tokenizer


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> SafetensorsEngine:
    return load(write_qwen3(tmp_path_factory.mktemp("qwen3") / "words"))


@pytest.mark.slow
def test_qwen3_texts_are_tokenized_as_by_transformers(words: SafetensorsEngine) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(published_tokenizer("qwen3"))
    for text in ("<|im_start|>user\nnaïve 東京 🙂🎉 it's  12345.6789\n\n\tx<|im_end|>\n<think>\n</think>", ""):
        ours = words.tokenize(text)
        assert ours == theirs(text, add_special_tokens=False)["input_ids"]
        assert b"".join(words._vocabulary.text_of(token) for token in ours).decode() == text
    for name, ends in (("<|im_end|>", True), ("<|endoftext|>", True), ("<|im_start|>", False), ("<think>", False)):
        (token,) = words.tokenize(name)
        assert words.is_end(token) is ends, name


@pytest.mark.slow
def test_qwen3_thinks_and_calls_by_its_own_template(words: SafetensorsEngine) -> None:
    ready = words.ready
    template = ChatTemplate(ready.chat_template, bos=ready.bos, eos=ready.eos, add_bos=ready.add_bos)
    asked = (Message(role="user", content="hello"),)
    assert (template.thinks, choose(ready.chat_template, "qwen3")) == (True, HERMES)
    assert template.render(asked, (), "none").endswith("<think>\n\n</think>\n\n")
    assert template.render(asked) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
