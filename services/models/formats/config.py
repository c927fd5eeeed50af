"""Reads a model's `config.json` in transformers' format."""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from typing import Any

from services.errors import ModelInvalid
from services.models.formats.document import read_object
from services.models.hub.source import FileTree

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")  # goes into statuses and messages
CONFIG = "config.json"
MAX_TOKENS = 2**31 - 1
_CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")
_CHAT = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
# `new` is gte's own name for its encoder.
_ENCODERS = frozenset(
    """
    albert bert camembert deberta deberta-v2 distilbert electra eurobert jina_bert modernbert mpnet new nomic_bert
    roberta xlm-roberta
    """.split()  # noqa: SIM905 (easier to read)
)
# Models whose repository code has been adopted by transformers, under the same model_type.
_ADOPTED = frozenset({"nemotron_h", "nomic_bert"})
_DTYPES = frozenset({"auto", "bfloat16", "float16", "float32", "float64"})


def architecture_of(value: object, where: str) -> str:
    """Returns the name if it is valid.

    Raises:
        ModelInvalid: it is missing or no valid name; the message contains `where`.
    """
    if value is None or value == "":
        raise ModelInvalid(f"{where} is missing: it names the model's architecture")
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ModelInvalid(f"{where} is {reprlib.repr(value)}, which is not the name of an architecture")
    return value


@dataclass(frozen=True, slots=True)
class Config:
    """The fields of config.json that inspection needs."""

    model_type: str
    architectures: tuple[str, ...]  # classes, such as `LlamaForCausalLM`; may be empty
    context_tokens: int  # 0: unknown
    vocabulary: int  # tokens; 0: unknown
    quantization: str  # method of quantised weights, such as `mxfp4`; empty: not quantised
    fault: str  # why no runtime may load it as a text model; empty: no known reason
    sees: bool = False  # whether it has an encoder of pictures
    ranks: bool = False  # whether it scores pairs of a query and a document: a classifier of one label, or marked so

    @property
    def capabilities(self) -> frozenset[str]:
        """The text capabilities of these classes; empty for heads that neither generate, embed nor rerank."""
        if self.ranks:
            return frozenset({"rerank"})
        if any(name.endswith(_CHAT) for name in self.architectures):
            return frozenset({"chat", "vision"} if self.sees else {"chat"})
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
        ModelInvalid: it is missing, too large, no JSON object, or names no architecture or an invalid quantisation.
    """
    document = read_object(tree, CONFIG)
    model_type = architecture_of(document.get("model_type"), f"model_type in {CONFIG}")
    names = document.get("architectures")
    inner = document.get("text_config")  # multimodal models keep their language model's values there
    return Config(
        model_type=model_type,
        architectures=tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else (),
        context_tokens=_first(document, _CONTEXT) or _first(inner, _CONTEXT),
        vocabulary=_first(document, ("vocab_size",)) or _first(inner, ("vocab_size",)),
        quantization=_quantization(document) or _quantization(inner),
        fault=_own_code(document, model_type) or _unknown_dtype(document),
        sees=isinstance(document.get("vision_config"), dict),
        ranks=_ranks(document),
    )


def _ranks(document: dict[str, Any]) -> bool:
    """Reports whether it is a reranker: a classifier of one label, or Qwen3-Reranker marked as vLLM's users do."""
    if document.get("is_original_qwen3_reranker") is True:
        return True
    names, labels = document.get("architectures"), document.get("id2label")
    classifies = isinstance(names, list) and any(str(name).endswith("ForSequenceClassification") for name in names)
    return classifies and (document.get("num_labels") == 1 or (isinstance(labels, dict) and len(labels) == 1))


def _own_code(document: dict[str, Any], model_type: str) -> str:
    """Returns the fault if the model's classes must come from its repository; else empty.

    That is a fault even if transformers has classes for the model_type: the repository's classes define another model,
    which may attend differently, and the difference would go unnoticed.
    """
    wanted = document.get("auto_map")
    if not wanted or model_type in _ADOPTED:
        return ""
    if isinstance(wanted, dict):
        # Tokenizer classes do not matter, because only tokenizer.json is read.
        wanted = {part: name for part, name in wanted.items() if part.startswith(("AutoModel", "AutoConfig"))}
    if not wanted:
        return ""
    return f"auto_map in {CONFIG} asks for the model's own code, which is never run: {repr(wanted)[:300]}"


def _unknown_dtype(document: dict[str, Any]) -> str:
    """Returns the fault if config.json names an unknown dtype for the weights; else empty."""
    for key in ("dtype", "torch_dtype"):
        dtype = document.get(key)
        if dtype is not None and (not isinstance(dtype, str) or dtype.removeprefix("torch.") not in _DTYPES):
            return f"{key} in {CONFIG} is {reprlib.repr(dtype)}, which is none of {', '.join(sorted(_DTYPES))}"
    return ""


def _quantization(document: Any) -> str:
    """Returns the quantisation method in lower case; empty if there is none."""
    found = None
    if isinstance(document, dict):
        found = document.get("quantization_config") or document.get("compression_config")
    if not found:
        return ""
    method = found.get("quant_method") if isinstance(found, dict) else None
    if not method and isinstance(found, dict) and (found.get("load_in_4bit") or found.get("load_in_8bit")):
        method = "bitsandbytes"  # its older versions write only these flags
    return architecture_of(method, f"quant_method in {CONFIG}'s quantization_config").lower()


def _first(document: Any, names: tuple[str, ...]) -> int:
    """Returns the first of these values that is a valid number; 0 if none is."""
    if not isinstance(document, dict):
        return 0
    values = (document.get(name) for name in names)
    return next((value for value in values if type(value) is int and 0 < value <= MAX_TOKENS), 0)
