"""The prompts of the load: sets of chats with a known length, with unique or shared prefixes.

Prompts consist of short common English words. Nearly every tokenizer keeps these whole, so the number of words is about
the number of tokens. The seed decides every word: the compared servers get the same prompts, and no prompt repeats in a
run, because a prefix cache would then answer for the model.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random

_COMMON = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you
were all her she there would their we him been has when who will no more if out so up said what its about than into them
can only other time new some could these two may first then do any like my now over such our man me even most made after
also did many off before must well back through years much where your way down should because long each just state those
people too mister how little good world make very year still see own work men day get here old life both between being
under three never know same last another while us might great go come since against right came take used himself few
house use place during high without again home around small however found part school every water does got united left
number course war until always away something fact public though less put think almost hand enough far took head yet
government system better set told nothing night end why called didn eyes find going look asked later point knew city
program business give group toward days young let room word side social given present several order national possible
rather second face per among form often important things looked early white case large need big four within felt along
children saw best church ever least power light thing family want mind country area others turned although open
"""
_WORDS = _COMMON.split()

OUTPUT_TOKENS = 64
_UNIQUE_WORDS = 113  # about 143 tokens including those of the model's chat template
_PREFIX_WORDS = 496  # about 500 tokens of a shared system message
_TAIL_WORDS = 28
_LONG_WORDS = 1970  # about 2,000 tokens


class PromptSet(StrEnum):
    """A set of prompts."""

    UNIQUE = "unique"  # shares only the chat template's own tokens
    SHARED = "shared"  # a long shared system message, then a short question
    LONG = "long"  # as unique, of about 2,000 tokens


def messages(prompt_set: PromptSet, seed: str) -> list[dict[str, str]]:
    """Returns the chat for one request; a different seed gives a different chat."""
    if prompt_set is PromptSet.SHARED:
        system = _text(Random("the prefix"), _PREFIX_WORDS)  # noqa: S311 - words, no secret
        user = _text(Random(f"{prompt_set} {seed}"), _TAIL_WORDS)  # noqa: S311
        return [{"role": "system", "content": system}, {"role": "user", "content": user}]
    words = _LONG_WORDS if prompt_set is PromptSet.LONG else _UNIQUE_WORDS
    return [{"role": "user", "content": _text(Random(f"{prompt_set} {seed}"), words)}]  # noqa: S311


def _text(random: Random, words: int) -> str:
    return " ".join(random.choices(_WORDS, k=words))
