"""The tokenizer methods of a safetensors model, shared by the torch and vllm runtimes."""

from __future__ import annotations

from services.text.engine.constraint import Constraint, GrammarCompiler
from services.text.engine.runtimes.torch.vocabulary import TokenVocabulary


class VocabularySpeaker:
    """The methods of a model that need only its vocabulary. The subclass sets `_vocabulary`."""

    _vocabulary: TokenVocabulary
    _grammars: GrammarCompiler | None = None

    def tokenize(self, text: str) -> list[int]:
        """Returns the token ids of `text`, with special tokens, and with BOS if the model adds it."""
        return self._vocabulary.tokenize(text)

    def constraint(self, grammar: str) -> Constraint:
        """Returns a grammar's state. The first call reads the whole vocabulary, which takes some tenths of a second."""
        if self._grammars is None:
            self._grammars = self._vocabulary.grammar_compiler()
        return self._grammars.compile(grammar)

    def piece(self, token: int, special: bool) -> bytes:
        """Returns the bytes of a token: empty for ends, and for control tokens unless `special`."""
        return self._vocabulary.piece(token, special)

    def is_end(self, token: int) -> bool:
        """Whether the token ends the turn, by the model's metadata or by the token's name."""
        return token in self._vocabulary.ends
