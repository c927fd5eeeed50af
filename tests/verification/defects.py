"""The defects, by name: the change that creates each, and the check that should catch it."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from tests.verification.broken_models import Change, GgufBytes, text, texts

LAYERS = 30
TOKENS, TEMPLATE = "tokenizer.ggml.tokens", "tokenizer.chat_template"
END, BEGIN = "<|im_end|>", "<|im_start|>"
NAN_WORD = 0x7FFF  # NaN in BF16 and in F16

INSTRUCT = (
    "{% for message in messages %}### {{ message.role }}:\n{{ message.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}### assistant:\n{% endif %}"
)
DOUBLE_BEGIN = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The template renders tools and calls, but omits the results of calls.
NO_RESULTS = (
    "{% if tools %}<|im_start|>system\n<tools>{{ tools | tojson }}</tools> Answer with\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <object>}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}{% if message.role != 'tool' %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Defect:
    """A defect of a model, the check that finds it, and words of the check's message."""

    name: str
    change: Change
    check: str
    words: str


def _template(source: str) -> Change:
    return lambda model: model.put(TEMPLATE, text(source))


def _missing_eos(model: GgufBytes) -> None:
    """Removes the end token's key and gives the token an unknown name."""
    model.rename("tokenizer.ggml.eos_token_id", "tokenizer.ggml.xxx_token_id")
    start, end = model.values[TEMPLATE]
    template = bytes(model.header[start:end]).replace(END.encode(), b"<|im_zzz|>")
    tokens = [name if name != END else "<|im_zzz|>" for name in model.strings(TOKENS)]
    model.put(TEMPLATE, template)
    model.put(TOKENS, texts(tokens))


def _wrong_eos(model: GgufBytes) -> None:
    """Makes the full stop the end token."""
    model.put("tokenizer.ggml.eos_token_id", struct.pack("<I", model.strings(TOKENS).index(".")))


def _swapped_layers(model: GgufBytes) -> None:
    """Swaps the matrices of the first and the second half of the layers."""
    for name in model.tensors:
        if name.startswith("blk.") and "norm" not in name and int(name.split(".")[1]) < LAYERS // 2:
            layer = int(name.split(".")[1])
            model.swap(name, name.replace(f"blk.{layer}.", f"blk.{layer + LAYERS // 2}."))


def _truncated(model: GgufBytes) -> None:
    """Removes the last tokens of the vocabulary."""
    model.put(TOKENS, texts(model.strings(TOKENS)[:40_000]))


def _shuffled(model: GgufBytes) -> None:
    """Gives every token from 301 on the id of its predecessor."""
    tokens = model.strings(TOKENS)
    model.put(TOKENS, texts([*tokens[:300], *tokens[301:], tokens[300]]))


def _transposed(model: GgufBytes) -> None:
    """Transposes the square matrices."""
    for layer in range(LAYERS):
        model.words(f"blk.{layer}.attn_output.weight", lambda rows: rows.T)


def _zeroed(model: GgufBytes) -> None:
    """Zeroes the first layer's matrices, as a download with a hole does."""
    for name in [name for name in model.tensors if name.startswith("blk.0.") and "norm" not in name]:
        model.words(name, np.zeros_like)


def _not_a_number(model: GgufBytes) -> None:
    """Fills one row of a matrix with NaN."""

    def change(
        rows: np.ndarray[tuple[int, ...], np.dtype[np.uint16]],
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
        rows[7] = NAN_WORD
        return rows

    model.words("blk.11.ffn_down.weight", change)


DEFECTS = (
    Defect("wrong-template", _template(INSTRUCT), "chat-template", "published"),
    Defect("bos-twice", _template(DOUBLE_BEGIN), "chat-template", "published"),
    Defect("missing-eos", _missing_eos, "stop-tokens", "none of 3 short answers ended"),
    Defect("wrong-eos", _wrong_eos, "stop-tokens", "which is text"),
    Defect("swapped-shard", _swapped_layers, "likelihood", "bits per byte"),
    Defect(
        "wrong-rope",
        lambda model: model.put("llama.rope.freq_base", struct.pack("<f", 10.0)),
        "long-prompt",
        "bits per byte",
    ),
    Defect("truncated-vocabulary", _truncated, "load", "token_embd.weight"),
    Defect("shuffled-tokens", _shuffled, "likelihood", "bits per byte"),
    Defect("transposed-weights", _transposed, "likelihood", "bits per byte"),
    Defect("zeroed-layer", _zeroed, "likelihood", "bits per byte"),
    Defect("nan-weights", _not_a_number, "likelihood", "are not finite numbers"),
    Defect("broken-tool-template", _template(NO_RESULTS), "tool-call", "results of a call"),
    Defect(
        "missing-tensor", lambda model: model.rename("output_norm.weight", "output_nrom.weight"), "load", "output_norm"
    ),
)
