"""A byte-level BPE tokenizer of 320 tokens, for models with random weights.

It knows only ASCII and pairs of letters, so every token is whole text and no two tokens are the same text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

SPECIAL = ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
PAIRS = [first + second for first in "etaoinshrdlu" for second in "etaoinshrdlucm"]
SIZE = 320
# The chat template of SmolLM2 and many other models.
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_tokenizer(folder: Path, more: Sequence[str] = ()) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`; </s> and <|im_end|> are 2 and 4, `more` the last ones."""
    ascii_only = sorted(ByteLevel(add_prefix_space=False).pre_tokenize_str(chr(byte))[0][0] for byte in range(128))
    words = [*SPECIAL, *ascii_only, *PAIRS]
    reserved = [*(f"<|reserved_{number}|>" for number in range(SIZE - len(words) - len(more))), *more]
    vocabulary = {word: number for number, word in enumerate([*words, *reserved])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[(pair[0], pair[1]) for pair in PAIRS]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL, *reserved])
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": CHATML,
        "model_max_length": 2048,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
