"""The tokenizer: a CLIPTokenizer with a token for every word of the captions, and byte tokens for all other text."""

from __future__ import annotations

from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPTokenizer

from training.shapes_sd.architecture import MAX_TOKENS
from training.shapes_sd.caption import words

START, END = "<|startoftext|>", "<|endoftext|>"
_LAST = "</w>"  # marks the last letter of a word


def tokenizer() -> CLIPTokenizer:
    """Returns a tokenizer for any text, with at most 48 tokens including start and end.

    Merges build a word from its end: "l"+"e</w>", "c"+"le</w>" and so on. Such pairs occur only at the end of a word,
    so the merges of different words never conflict, in any order.
    """
    alphabet = sorted(ByteLevel.alphabet())
    tokens = [*alphabet, *(letter + _LAST for letter in alphabet)]
    merges: list[tuple[str, str]] = []
    for word in words():
        tail = word[-1] + _LAST
        for letter in reversed(word[:-1]):
            if (letter, tail) not in merges:
                merges.append((letter, tail))
                tokens.append(letter + tail)
            tail = letter + tail
    vocabulary = {token: index for index, token in enumerate([*tokens, START, END])}
    return CLIPTokenizer(
        vocab=vocabulary,
        merges=merges,
        unk_token=END,
        bos_token=START,
        eos_token=END,
        pad_token=END,
        model_max_length=MAX_TOKENS,
    )
