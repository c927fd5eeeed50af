"""A vocabulary of single bytes and a few control tokens, for matching texts against grammars."""

from __future__ import annotations

import re

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

CONTROL = ("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>", "<|call|>")


class _Bytes:
    eos_token_id = 256
    bos_token_id = None
    tokens = [*(bytes([byte]) for byte in range(256)), b"<eos>", *(name.encode() for name in CONTROL)]  # noqa: RUF012
    special_token_ids = list(range(256, 257 + len(CONTROL)))  # noqa: RUF012

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()))


def tokens(text: str) -> list[int]:
    found: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, CONTROL)) + ")", text):
        found += [257 + CONTROL.index(part)] if part in CONTROL else list(part.encode())
    return found


def accepts(grammar: str, text: str) -> bool:
    """Checks that a grammar allows exactly this text."""
    lark = LLMatcher.grammar_from_lark(grammar)
    assert LLMatcher.validate_grammar(lark) == ""
    assert LLMatcher.validate_grammar(lark, TOKENIZER) == ""
    matcher = LLMatcher(TOKENIZER, lark, log_level=0)
    wanted = tokens(text)
    return matcher.try_consume_tokens(wanted) == len(wanted) and matcher.is_accepting()
