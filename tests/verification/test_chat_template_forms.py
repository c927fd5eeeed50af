"""The published conversation formats."""

from __future__ import annotations

import datetime

import pytest

from services.cli.verify.chat_template import RENDERINGS, of_architecture
from services.models.runtimes import RUNTIMES


def forms(architecture: str, name: str) -> list[str]:
    (found,) = [form for form in of_architecture(architecture) if form.name.startswith(name)]
    return list(found.render("Be brief.", ("Hi", "Yes?", "Bye")))


@pytest.mark.parametrize(
    ("architecture", "name", "text"),
    [
        (
            "qwen3",
            "ChatML",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llama",
            "Llama 3",
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
            "Yes?<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            "glm4_moe",
            "GLM",
            "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi<|assistant|>\n<think></think>\nYes?"
            "<|user|>\nBye<|assistant|>",
        ),
        (
            "nemotron_h",
            "Nemotron 3",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
            "<think></think>Yes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n<think>\n",
        ),
        (
            "nemotron_h",
            "Nemotron-H",
            "<SPECIAL_10>System\nBe brief.\n<SPECIAL_11>User\nHi\n<SPECIAL_11>Assistant\nYes?\n<SPECIAL_11>User\nBye\n"
            "<SPECIAL_11>Assistant\n",
        ),
    ],
)
def test_a_conversation_as_its_family_publishes_it(architecture: str, name: str, text: str) -> None:
    assert text in forms(architecture, name)


def test_harmony_names_the_day() -> None:
    today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d")
    rendered = forms("gpt_oss", "Harmony")
    assert any(f"Current date: {today}\n" in text for text in rendered)
    assert all("{" not in text for text in rendered), "nothing is left to be filled in"
    assert any(text.endswith("<|start|>user<|message|>Bye<|end|><|start|>assistant") for text in rendered)


def test_every_form_is_of_architectures_that_a_runtime_knows_or_may() -> None:
    known = set().union(*(names for runtime in RUNTIMES for names in runtime.architectures.values()))
    for form in RENDERINGS:
        assert form.architectures & known, form.name
        assert form.begin.startswith(form.bos)
        rendered = "".join(form.render("a", ("b", "c", "d")))
        assert all(mark in rendered for mark in form.marks), form.name
