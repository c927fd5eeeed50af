"""Ollama's options, formats and durations."""

from __future__ import annotations

import math
from typing import Any

import pytest

from services.errors import InvalidRequest
from services.text.api.ollama.ollama_options import (
    effort_of,
    keep_alive_of,
    output_of,
    sampling_of,
    unknown_options,
    unused_options,
)
from services.text.conversation import OutputFormat
from services.text.engine.sampling import SamplingParams

# Those of the official Python package (ollama.Options), and newer ones.
ALL = {
    **dict.fromkeys(("numa", "num_ctx", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "logits_all"), 1),
    **dict.fromkeys(("vocab_only", "use_mmap", "use_mlock", "embedding_only", "num_thread", "num_keep"), 1),
    **{"seed": 1, "num_predict": 1, "top_k": 1, "top_p": 0.5, "tfs_z": 1, "typical_p": 1, "repeat_last_n": 64},
    **{"temperature": 1, "repeat_penalty": 1, "presence_penalty": 1, "frequency_penalty": 1, "mirostat": 0},
    **{"mirostat_tau": 5, "mirostat_eta": 0.1, "penalize_newline": True, "stop": ["a"], "min_p": 0.1},
}


def test_defaults_are_ollamas() -> None:
    expected = SamplingParams(temperature=0.8, top_p=0.9, top_k=40)
    assert sampling_of(None) == sampling_of({}) == sampling_of({"temperature": None}) == expected


def test_every_option_that_has_an_effect() -> None:
    given = {
        **{"temperature": 1, "top_p": 0.5, "top_k": 3.0, "min_p": 0.1, "seed": 7, "num_predict": 5.0, "stop": ["a"]},
        **{"repeat_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.4},
    }
    assert sampling_of(given) == SamplingParams(
        temperature=1,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        seed=7,
        max_tokens=5,
        stop=("a",),
        repeat_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.4,
    )
    assert sampling_of({"stop": "a"}).stop == ("a",)


def test_minus_one_is_ollamas_word_for_none() -> None:
    sampling = sampling_of({"num_predict": -1, "seed": -1, "top_k": -1})
    assert (sampling.max_tokens, sampling.seed, sampling.top_k) == (None, None, 0)
    assert sampling_of({"num_predict": -2}).max_tokens is None


@pytest.mark.parametrize(
    ("option", "value"), [("temperature", "hot"), ("top_k", 1.5), ("seed", 0.5), ("stop", [1]), ("num_predict", True)]
)
def test_a_wrong_type_names_the_option(option: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        sampling_of({option: value})
    assert (caught.value.param or "").startswith(f"options.{option}")


def test_options_without_effect_are_named() -> None:
    assert unknown_options(ALL) == []
    unused = set(unused_options(ALL))
    assert {"options.num_ctx", "options.repeat_last_n", "options.use_mmap"} <= unused
    assert not {"options.mirostat", "options.tfs_z", "options.typical_p"} & unused, "these values ask for nothing"
    assert set(unused_options({"mirostat": 1, "num_ctx": None})) == {"options.mirostat"}
    assert unknown_options({"made_up": 1, "nothing": None}) == ["options.made_up"]
    assert unknown_options(None) == list(unused_options(None)) == []


def test_formats() -> None:
    assert output_of(None) == output_of("") == OutputFormat()
    assert output_of("json") == OutputFormat(kind="json_object")
    assert output_of({"type": "object"}) == OutputFormat(kind="json_schema", schema={"type": "object"})


def test_thinking() -> None:
    assert [effort_of(think) for think in (None, False, True, "low", "high")] == ["", "none", "medium", "low", "high"]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        (0, 0),
        (300, 300),
        (2.5, 2.5),
        (-1, math.inf),
        ("0", 0),
        ("0s", 0),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("250ms", 0.25),
        ("10", 10),
        ("-1", math.inf),
        ("-1s", math.inf),
        (1e300, math.inf),
        ("99999999h", math.inf),
    ],
)
def test_durations(given: float | str | None, seconds: float | None) -> None:
    assert keep_alive_of(given) == seconds


@pytest.mark.parametrize("given", ["", "-", "five", "5 m", "5x", "m", "5m!", "1" * 100, float("nan")])
def test_what_is_no_duration(given: float | str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        keep_alive_of(given)
    assert caught.value.param == "keep_alive"
