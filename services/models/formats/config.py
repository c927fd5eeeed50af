"""What `config.json` says of a model, in the shape that transformers gives it."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

from services.models.formats.architecture import architecture_of
from services.models.formats.document import read_object
from services.models.hub.source_tree import FileTree

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


# What their repositories' code says is in transformers by now, under the same names.
_ADOPTED = frozenset({"nemotron_h", "nomic_bert"})
_DTYPES = frozenset({"auto", "bfloat16", "float16", "float32", "float64"})


@dataclass(frozen=True, slots=True)
class Config:
    """What is needed of it."""

    model_type: str
    architectures: tuple[str, ...]  # classes, such as `LlamaForCausalLM`; may be empty
    context_tokens: int  # 0: it does not say
    vocabulary: int  # tokens; 0: it does not say
    quantization: str  # how the weights are quantised, such as `mxfp4`; empty: they are not
    fault: str  # why no runtime may load it as a text model; empty: none is known

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
        ModelInvalid: it is missing, too large, no JSON object, or names no architecture or a strange quantisation.
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
        quantization=_quantization(document) or _quantization(inner),
        fault=_own_code(document, model_type) or _strange_numbers(document),
    )


def _own_code(document: dict[str, Any], model_type: str) -> str:
    """What is wrong when the model's classes are to come from its repository.

    Even where transformers has classes of that model_type: with the repository's they are another model, which may
    attend differently, and nobody would notice.
    """
    wanted = document.get("auto_map")
    if not wanted or model_type in _ADOPTED:
        return ""
    if isinstance(wanted, dict):
        # A tokenizer is read from tokenizer.json alone, whatever class it names.
        wanted = {part: name for part, name in wanted.items() if part.startswith(("AutoModel", "AutoConfig"))}
    if not wanted:
        return ""
    return f"auto_map in {CONFIG} asks for code of the model's own, which is never run: {repr(wanted)[:300]}"


def _strange_numbers(document: dict[str, Any]) -> str:
    """What is wrong when the weights are said to be in a type that nothing computes in."""
    for key in ("dtype", "torch_dtype"):
        said = document.get(key)
        if said is not None and (not isinstance(said, str) or said.removeprefix("torch.") not in _DTYPES):
            return f"{key} in {CONFIG} is {reprlib.repr(said)}, which is none of {', '.join(sorted(_DTYPES))}"
    return ""


def _quantization(document: Any) -> str:
    """The method, in lower case."""
    found = None
    if isinstance(document, dict):
        found = document.get("quantization_config") or document.get("compression_config")
    if not found:
        return ""
    method = found.get("quant_method") if isinstance(found, dict) else None
    if not method and isinstance(found, dict) and (found.get("load_in_4bit") or found.get("load_in_8bit")):
        method = "bitsandbytes"  # its older versions say only that
    return architecture_of(method, f"quant_method in {CONFIG}'s quantization_config").lower()


def _first(document: Any, names: tuple[str, ...]) -> int:
    """The first of these that is there and a number that can be; 0 when none is."""
    if not isinstance(document, dict):
        return 0
    values = (document.get(name) for name in names)
    return next((value for value in values if type(value) is int and 0 < value <= MAX_TOKENS), 0)
