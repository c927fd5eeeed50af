"""A small model whose weights are computed to write a thought and a call of a tool, and then an answer, all given.

Real clients run their whole tool loop with it: a small model decides nothing, and clients such as Claude Code and Codex
never demand a call. No layer contributes anything, so each token follows from the one before it, and the chat template
chooses the first one: the thought and the call if there are tools and no result yet, otherwise the answer.

    python -m tests.clients.scripted_model FILE.gguf TOOL '{"argument": "value"}' ANSWER [LAYERS [THOUGHT]]
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from services.models.demo.text_demo import bundled_model

WIDTH, CONTEXT, PIECE = 64, 131_072, 4
CERTAIN = 20.0  # a logit so far above the others' zero that no temperature matters
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
THINK, CALL, ANSWER = "<|begin_thought|>", "<|begin_call|>", "<|begin_answer|>"
TEMPLATE = """
{%- if tools %}<|im_start|>system
Write calls as <tool_call>
{"name": ..., "arguments": ...}
</tool_call>
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if not tools or messages | selectattr('role', 'equalto', 'tool') | list %}<|begin_answer|>
{%- elif enable_thinking is defined and not enable_thinking %}<|begin_call|>
{%- else %}<|begin_thought|>
{%- endif %}
{%- endif %}"""


def write_scripted_model(
    path: Path, tool: str, arguments: dict[str, Any], answer: str, *, layers: int = 1, thought: str = ""
) -> None:
    """Writes a GGUF file with SmolLM2's vocabulary. `layers`: their number only makes the prompt take longer."""
    given = gguf.GGUFReader(bundled_model())
    tokens: list[str] = given.fields["tokenizer.ggml.tokens"].contents()
    types: list[int] = given.fields["tokenizer.ggml.token_type"].contents()
    end = given.fields["tokenizer.ggml.eos_token_id"].contents()
    call = f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"
    texts = {ANSWER: answer, CALL: call, THINK: f"<think>\n{thought}\n</think>\n\n" if thought else ""}
    chains: dict[str, list[int]] = {}
    for start, text in texts.items():
        pieces = list(_pieces(text, {*tokens, *texts}))
        chains[start] = [*range(len(tokens), len(tokens) + 1 + len(pieces))]
        tokens += [start, *pieces]
        types += [CONTROL, *[USER_DEFINED] * len(pieces)]
    chains[ANSWER].append(end)
    chains[CALL].append(end)
    chains[THINK].append(chains[CALL][1])
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(given.fields["tokenizer.ggml.merges"].contents())
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    _add_weights(writer, len(tokens), list(chains.values()), layers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _pieces(text: str, taken: set[str]) -> Iterator[str]:
    """Cuts a text into tokens, of which none occurs twice or is in the vocabulary: each must have one successor."""
    while text:
        size = PIECE
        while text[:size] in taken and size < len(text):
            size += 1
        if len(text) - size < PIECE:
            size = len(text)
        if text[:size] in taken:
            raise ValueError(f"{text!r} is one token of the vocabulary, or occurs twice: write a longer text")
        taken.add(text[:size])
        yield text[:size]
        text = text[size:]


def _add_weights(writer: gguf.GGUFWriter, vocabulary: int, chains: list[list[int]], layers: int) -> None:
    """Gives each token of a chain a dimension of its own, in which its successor has the only large weight."""
    links = [pair for chain in chains for pair in itertools.pairwise(chain)]
    width = WIDTH * -(-(len(links) + 1) // WIDTH)
    embedding, output = (np.zeros((vocabulary, width), dtype=np.float16) for _ in range(2))
    embedding[:, 0] = 1
    for dimension, (token, successor) in enumerate(links, 1):
        embedding[token] = 0
        embedding[token, dimension] = 1
        output[successor, dimension] = CERTAIN
    ones, heads = np.ones(width, dtype=np.float32), width // WIDTH
    writer.add_block_count(layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", ones)
    for layer in range(layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", ones)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            contributes_nothing = np.zeros((width, width), dtype=np.float16)
            writer.add_tensor(f"blk.{layer}.{name}.weight", contributes_nothing)


if __name__ == "__main__":
    file, name, given_arguments, text, *more = sys.argv[1:]
    depth, thoughts = int(*more[:1] or [1]), "".join(more[1:2])
    write_scripted_model(Path(file), name, json.loads(given_arguments), text, layers=depth, thought=thoughts)
