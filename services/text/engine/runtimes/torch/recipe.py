"""The embedding recipe of a safetensors folder, from its sentence-transformers files.

`modules.json` lists the steps after the model: pooling, layers (Dense) and normalisation. For an encoder without this
file, the vectors are the mean over the tokens, normalised to length one. The caller prepends the prompts that
`config_sentence_transformers.json` names; nothing is added here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.worker.messages import EngineError

# Named as in 1_Pooling/config.json, without the prefix `pooling_mode_` and the suffix `_tokens` or `_token`.
POOLINGS = ("mean", "cls", "last", "max", "mean_sqrt_len", "weightedmean")
_NAMES = {"lasttoken": "last"}
_ACTIVATIONS = {"torch.nn.modules.linear.Identity": "identity", "torch.nn.modules.activation.Tanh": "tanh"}
_MAX_FILE = 1024 * 1024  # bytes
_QWEN_PROMPT = "Judge whether the Document meets the requirements based on the Query and the Instruct provided."


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A linear layer after pooling."""

    weights: Path  # a safetensors file with linear.weight [out, in] and an optional linear.bias [out]
    activation: str  # identity or tanh


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The steps from the model's last hidden states to a vector."""

    pooling: str  # one of POOLINGS
    layers: tuple[Layer, ...] = ()
    normalised: bool = True
    lower: bool = False  # whether inputs are lower-cased first
    max_tokens: int = 0  # of an input; 0: the model's own limit


def read_recipe(folder: Path, *, decoder: bool) -> Recipe:
    """Reads the recipe of a folder. `decoder`: whether its model is a decoder, which must have a recipe.

    Raises:
        EngineError: UNSUPPORTED for an unknown step or a missing recipe, MODEL_INVALID for unreadable files.
    """
    if not (folder / "modules.json").exists():
        if decoder:
            message = f"{folder.name} does not say how it pools embeddings: modules.json is missing"
            raise EngineError("UNSUPPORTED", message)
        return Recipe(pooling="mean")
    pooling, layers, normalised = "", [], False
    for module in _read(folder / "modules.json", list):
        kind, where = _module(module)
        if kind == "Pooling":
            pooling = _pooling(_read(folder / where / "config.json", dict))
        elif kind == "Dense":
            layers.append(_layer(folder / where))
        elif kind == "Normalize":
            normalised = True
        elif kind != "Transformer":
            raise EngineError("UNSUPPORTED", f"modules.json of {folder.name} has the unknown step {kind!r}")
    if not pooling:
        raise EngineError("UNSUPPORTED", f"modules.json of {folder.name} has no step that pools")
    return Recipe(
        pooling=pooling,
        layers=tuple(layers),
        normalised=normalised,
        lower=_inputs(folder).get("do_lower_case") is True,
        max_tokens=input_limit(folder),
    )


def input_limit(folder: Path) -> int:
    """Returns the most tokens of an input that the publishers allow, or 0. Raises EngineError."""
    limit = _inputs(folder).get("max_seq_length")
    return limit if type(limit) is int and limit > 0 else 0


def logit_tokens(folder: Path) -> tuple[int, int] | None:
    """Returns the tokens of a decoder's answers yes and no, as the module LogitScore names them; None without it.

    Raises:
        EngineError: UNSUPPORTED if there is no token for no, MODEL_INVALID for unreadable files.
    """
    modules = _read(folder / "modules.json", list) if (folder / "modules.json").exists() else []
    for kind, where in map(_module, modules):
        if kind == "LogitScore":
            config = _read(folder / where / "config.json", dict)
            yes, no = config.get("true_token_id"), config.get("false_token_id")
            if type(yes) is not int or type(no) is not int:
                raise EngineError("UNSUPPORTED", f"{folder.name} does not name one token for yes and one for no")
            return yes, no
    return None


def is_qwen_reranker(folder: Path) -> bool:
    """Reports whether a decoder gets Qwen3-Reranker's prompt: config.json or a chat template says so."""
    if _read(folder / "config.json", dict).get("is_original_qwen3_reranker") is True:
        return True
    files = (folder / name for name in ("chat_template.jinja", "tokenizer_config.json"))
    return any(_QWEN_PROMPT in path.read_text("utf-8")[:_MAX_FILE] for path in files if path.exists())


def _inputs(folder: Path) -> dict[str, Any]:
    path = folder / "sentence_bert_config.json"
    found: dict[str, Any] = _read(path, dict) if path.exists() else {}
    return found


def _module(module: Any) -> tuple[str, str]:
    """Returns the class of a step, without its package, and its folder."""
    kind = module.get("type") if isinstance(module, dict) else None
    where = module.get("path", "") if isinstance(module, dict) else None
    if not isinstance(kind, str) or not isinstance(where, str) or ".." in where or where.startswith("/"):
        raise EngineError("MODEL_INVALID", "modules.json has an entry that is not a step with a type and a path")
    return kind.rpartition(".")[2], where


def _pooling(config: dict[str, Any]) -> str:
    """Returns the one pooling mode of a config, which has two forms."""
    mode = config.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else mode
    if not isinstance(modes, list):
        modes = [name.removeprefix("pooling_mode_") for name, on in config.items() if on is True and "_mode_" in name]
    names = [str(name).removesuffix("_tokens").removesuffix("_token") for name in modes]
    found = [_NAMES.get(name, name) for name in names]
    if len(found) != 1 or found[0] not in POOLINGS:
        what = " and ".join(found) or "nothing"
        raise EngineError("UNSUPPORTED", f"the model pools by {what}; it must be one of {', '.join(POOLINGS)}")
    return found[0]


def _layer(folder: Path) -> Layer:
    named = _read(folder / "config.json", dict).get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = _ACTIVATIONS.get(named) if isinstance(named, str) else None
    if activation is None:
        raise EngineError("UNSUPPORTED", f"{folder.name} has the unknown activation {str(named)[:100]!r}")
    return Layer(weights=folder / "model.safetensors", activation=activation)


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        if path.stat().st_size > _MAX_FILE:
            raise EngineError("MODEL_INVALID", f"{path.name} is larger than {_MAX_FILE} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError("MODEL_INVALID", f"{path.parent.name}/{path.name} cannot be read: {error}") from error
    if not isinstance(found, kind):
        raise EngineError(
            "MODEL_INVALID", f"{path.parent.name}/{path.name} is not a JSON {'list' if kind is list else 'object'}"
        )
    return found
