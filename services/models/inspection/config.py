"""What `config.json` says of a model, in the shape that transformers gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.models.inspection.architecture import architecture_of
from services.models.inspection.document import read_object
from services.models.tree import FileTree

CONFIG = "config.json"
MAX_TOKENS = 2**31 - 1
_CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")
_CHAT = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_ENCODERS = frozenset(
    {
        "albert",
        "bert",
        "camembert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "eurobert",
        "jina_bert",
        "modernbert",
        "mpnet",
        "new",  # gte's own name for its encoder
        "nomic_bert",
        "roberta",
        "xlm-roberta",
    }
)


@dataclass(frozen=True, slots=True)
class Config:
    """What is needed of it."""

    model_type: str
    architectures: tuple[str, ...]  # classes, such as `LlamaForCausalLM`; may be empty
    context_tokens: int  # 0: it does not say
    vocabulary: int  # tokens; 0: it does not say

    @property
    def capabilities(self) -> frozenset[str]:
        """What a model of these classes can do in text; nothing for heads that neither write nor embed."""
        if any(name.endswith(_CHAT) for name in self.architectures):
            return frozenset({"chat"})
        if any(name.endswith("Model") for name in self.architectures):
            return frozenset({"embeddings"})
        if not self.architectures:
            return frozenset({"embeddings" if self.model_type in _ENCODERS else "chat"})
        if self.model_type in _ENCODERS and any(name.endswith("ForMaskedLM") for name in self.architectures):
            return frozenset({"embeddings"})
        return frozenset()


def read_config(tree: FileTree) -> Config:
    """Reads `config.json`.

    Raises:
        ModelInvalid: it is missing, too large, no JSON object, or names no architecture.
    """
    document = read_object(tree, CONFIG)
    model_type = architecture_of(document.get("model_type"), f"model_type in {CONFIG}")
    names = document.get("architectures")
    inner = document.get("text_config")  # models that also see or hear keep their language model's numbers there
    return Config(
        model_type=model_type,
        architectures=tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else (),
        context_tokens=_first(document, _CONTEXT) or _first(inner, _CONTEXT),
        vocabulary=_first(document, ("vocab_size",)) or _first(inner, ("vocab_size",)),
    )


def _first(document: Any, names: tuple[str, ...]) -> int:
    """The first of these that is there and a number that can be; 0 when none is."""
    if not isinstance(document, dict):
        return 0
    values = (document.get(name) for name in names)
    return next((value for value in values if type(value) is int and 0 < value <= MAX_TOKENS), 0)
