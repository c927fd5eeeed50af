"""What a model of safetensors says of its own tokens, whichever runtime computes it."""

from __future__ import annotations

from services.text.engine.constraint import Constraint, GrammarCompiler
from services.text.engine.runtimes.torch.vocabulary import TokenVocabulary


class VocabularySpeaker:
    """The part of a model that its vocabulary answers for; `_vocabulary` is set by whoever loads it."""

    _vocabulary: TokenVocabulary
    _grammars: GrammarCompiler | None = None

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`, special tokens included; the beginning-of-sequence token as the model wants it."""
        return self._vocabulary.tokenize(text)

    def constraint(self, grammar: str) -> Constraint:
        """A grammar's state; the first one takes as long as reading the whole vocabulary, some tenths of a second."""
        if self._grammars is None:
            self._grammars = self._vocabulary.grammar_compiler()
        return self._grammars.compile(grammar)

    def piece(self, token: int, special: bool) -> bytes:
        """The bytes of a token; of control tokens only if `special`, of ends never."""
        return self._vocabulary.piece(token, special)

    def is_end(self, token: int) -> bool:
        """Whether the token ends the turn, by the model's metadata or by its name."""
        return token in self._vocabulary.ends
