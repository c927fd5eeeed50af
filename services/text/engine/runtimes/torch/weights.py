"""Loading a safetensors model: transformers' definition of its architecture, filled from memory-mapped files.

Nothing is downloaded or unpickled, and the model's own code is never run.

For bfloat16 on a CPU, the weights of linear layers are then packed in oneDNN's layout. torch passes oneDNN plain
matrices, which it reads row by row. On one core, one row of activations took 27 ms with the plain weights of a 135M
model and 17 ms with packed ones; eight rows took 33 and 18 ms. Each call also costs about 30 microseconds, so layers
with the same input (query, key and value; gate and up) are computed as one.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)
from transformers.utils import logging as transformers_logging
from transformers.utils.import_utils import is_triton_available
from transformers.utils.quantization_config import Mxfp4Config

from services.text.engine.runtimes.torch.attention import NAME
from services.text.engine.runtimes.torch.recurrence import ARCHITECTURES
from services.text.engine.runtimes.torch.vocabulary import read_json
from services.worker.messages import EngineError, error_line

log = logging.getLogger(__name__)

_LAYER_KINDS = {"full_attention", "sliding_attention"}
_HYBRID_KINDS = {"full_attention", "linear_attention", "moe", "mlp"}  # for the architectures of `recurrence`
_NAMED_TENSORS = 5  # maximum in a message
# Names of layers that transformers' definitions call one after the other with the same tensor.
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def read_config(folder: Path) -> PreTrainedConfig:
    """Reads the model's configuration.

    Raises:
        EngineError: MODEL_INVALID if it cannot be read, UNSUPPORTED if this runtime has no definition for it.
    """
    silence: Any = transformers_logging.set_verbosity_error
    silence()
    raw = read_json(folder / "config.json")
    kind = raw.get("model_type")
    if raw.get("auto_map") and kind not in ARCHITECTURES:  # transformers now includes those
        message = f"{folder} needs code of its own (auto_map in config.json), which is never run"
        raise EngineError("UNSUPPORTED", message)
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise EngineError("UNSUPPORTED", f"the runtime torch does not know the architecture {kind!r} (model_type)")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # wrong values raise various types
        raise EngineError("MODEL_INVALID", f"{folder / 'config.json'}: {error_line(error)}") from error
    _check_architecture(config, kind)
    return config


def sees(config: PreTrainedConfig) -> bool:
    """Returns True if the model takes pictures."""
    return getattr(config, "vision_config", None) is not None


def _check_architecture(config: PreTrainedConfig, kind: str) -> None:
    if sees(config):
        from services.text.engine.runtimes.torch.vision_families import check_family  # noqa: PLC0415 (needs Pillow)

        check_family(config)
    definitions: Any = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING if sees(config) else MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in definitions or config.is_encoder_decoder:
        raise EngineError("UNSUPPORTED", f"the architecture {kind!r} generates no text")
    definition: Any = definitions[type(config)]
    if sees(config) and type(config.get_text_config()) in MODEL_FOR_CAUSAL_LM_MAPPING:
        _check_architecture(config.get_text_config(), config.get_text_config().model_type)
    known = _HYBRID_KINDS if kind in ARCHITECTURES else _LAYER_KINDS
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ()) - known
    if kinds or (definition._is_stateful and kind not in ARCHITECTURES):
        what = f"layers of type {', '.join(sorted(kinds))}" if kinds else "layers with recurrent state"
        raise EngineError(
            "UNSUPPORTED", f"the architecture {kind!r} has {what}, which the runtime torch does not run yet"
        )
    if not definition._supports_attention_backend and kind not in ARCHITECTURES:
        raise EngineError(
            "UNSUPPORTED", f"the architecture {kind!r} computes attention its own way: it cannot be batched"
        )


def choose_dtype(wanted: str, config: PreTrainedConfig, device: torch.device) -> torch.dtype:
    """Returns the dtype. `auto`: 16 bits, of the checkpoint's kind on a GPU; float32 on CPUs without bfloat16."""
    if wanted != "auto":
        return _DTYPES[wanted]
    if device.type == "cpu":
        return torch.bfloat16 if computes_bfloat16() else torch.float32
    stored = getattr(config, "dtype", None)
    if stored == torch.float16 or (device.type == "cuda" and not torch.cuda.is_bf16_supported()):
        return torch.float16
    return torch.bfloat16


def load_model(
    folder: Path,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[float], None],
    *,
    whole: bool = True,
) -> PreTrainedModel:
    """Loads the model with its weights on `device`. MXFP4 experts stay packed on a GPU if the model stays `whole`.

    Raises:
        EngineError: MODEL_INVALID if files or tensors are missing or have the wrong shape, OUT_OF_MEMORY.
    """
    _check_packed_experts(folder)
    if not _is_mxfp4(config):
        return _load(folder, config, dtype, device, progress, {})
    expanded = {"quantization_config": Mxfp4Config(dequantize=True)}
    obstacle = "the model is divided over several devices" if not whole else packing_obstacle(device)
    if obstacle:
        log.warning("the 4-bit weights of the experts are expanded to 16 bits: %s", obstacle)
        return _load(folder, config, dtype, device, progress, expanded)
    from services.text.engine.runtimes.torch import packed_experts  # noqa: PLC0415 (needs Triton)

    packed = copy.deepcopy(config)
    packed.quantization_config = {"quant_method": packed_experts.METHOD}
    model = _load(folder, packed, dtype, device, progress, {})
    if packed_experts.can_compute(model):
        return model
    del model
    log.warning("the 4-bit weights of the experts are expanded to 16 bits: they have very large scales")
    return _load(folder, config, dtype, device, progress, expanded)


def packing_obstacle(device: torch.device) -> str:
    """Returns why MXFP4 experts cannot be computed packed on a device; empty if they can.

    On a CPU they can in Triton's interpreter (TRITON_INTERPRET=1), which is for tests.
    """
    if not is_triton_available("3.4.0"):
        return "Triton 3.4 or newer is not installed"
    if device.type == "cpu":
        import triton  # noqa: PLC0415 (absent on some machines)

        if triton.knobs.runtime.interpret:
            return ""
    if device.type != "cuda":
        return f"the kernels run on CUDA, not on {device.type}"
    major, minor = torch.cuda.get_device_capability(device)
    return "" if major >= 8 else f"the GPU's compute capability is {major}.{minor}, and 8.0 is needed"


def _load(
    folder: Path,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[float], None],
    options: dict[str, Any],
) -> PreTrainedModel:
    if device.type != "cpu":
        options = options | {"device_map": {"": device}}
    previous = transformers_logging.set_tqdm_hook(lambda _, args, kwargs: _Ticks(progress, *args, **kwargs))
    definition: Any = AutoModelForImageTextToText if sees(config) else AutoModelForCausalLM
    try:
        model, report = definition.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation={"text_config": NAME, "vision_config": "sdpa"} if sees(config) else NAME,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the report then names them, and they are refused
            **options,
        )
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise EngineError("OUT_OF_MEMORY", f"the weights of {folder} do not fit: {error_line(error)}") from error
    except Exception as error:  # missing or broken files raise various types
        raise EngineError("MODEL_INVALID", f"the weights of {folder} cannot be read: {error_line(error)}") from error
    finally:
        transformers_logging.set_tqdm_hook(previous)
    _check_report(folder, report)
    progress(1.0)
    if "quantization_config" in options:  # transformers 5.17 leaves expanded experts in bfloat16
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
    loaded: PreTrainedModel = model.requires_grad_(False).eval()
    return loaded


def _is_mxfp4(config: PreTrainedConfig) -> bool:
    settings = getattr(config, "quantization_config", None) or {}
    return isinstance(settings, dict) and settings.get("quant_method") == "mxfp4"


def _check_packed_experts(folder: Path) -> None:
    """Checks that 4-bit experts have both of their tensors, because transformers does not name the missing one."""
    names: set[str] = set()
    for path in sorted(folder.iterdir()):
        if path.name.endswith(".safetensors"):
            try:
                with safe_open(path, framework="pt") as file:
                    names.update(file.keys())
            except Exception as error:  # a broken file raises various types
                raise EngineError("MODEL_INVALID", f"{path} cannot be read: {error_line(error)}") from error
    blocks = {name.removesuffix("_blocks") for name in names if name.endswith("_blocks")}
    scales = {name.removesuffix("_scales") for name in names if name.endswith("_scales")}
    alone = sorted([f"{name}_scales" for name in blocks - scales] + [f"{name}_blocks" for name in scales - blocks])
    if alone:
        raise EngineError("MODEL_INVALID", f"{folder} lacks {len(alone)} tensors of its experts: {_names(alone)}")


def _check_report(folder: Path, report: dict[str, Any]) -> None:
    """Raises for missing and misshapen tensors, which transformers fills with random numbers after a warning."""
    missing = sorted(report["missing_keys"])
    if missing:
        message = f"{folder} lacks {len(missing)} tensors of its architecture: {_names(missing)}"
        raise EngineError("MODEL_INVALID", message)
    mismatched = sorted(report["mismatched_keys"])
    if mismatched:
        names = _names(f"{name} {tuple(found)} instead of {tuple(wanted)}" for name, found, wanted in mismatched)
        raise EngineError("MODEL_INVALID", f"{folder} has tensors of the wrong shape: {names}")


def _names(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - _NAMED_TENSORS
    return ", ".join(names[:_NAMED_TENSORS]) + (f" and {more} more" if more > 0 else "")


class _Ticks:
    """A replacement for the progress bar of transformers."""

    def __init__(
        self,
        progress: Callable[[float], None],
        items: Iterable[Any] | None = None,
        total: float | None = None,
        **_: Any,
    ) -> None:
        self._progress = progress
        self._items = list(items) if items is not None else []
        self._total = total or len(self._items)
        self._done = 0.0

    def __iter__(self) -> Any:
        for item in self._items:
            yield item
            self.update()

    def update(self, count: float = 1) -> None:
        """Reports that `count` more items are done."""
        self._done += count
        if self._total:
            self._progress(min(1.0, self._done / self._total))

    def __enter__(self) -> _Ticks:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


def computes_bfloat16() -> bool:
    """Returns True if this processor has instructions for bfloat16, or others that make it worthwhile."""
    available: Any = torch.backends.mkldnn.is_available
    return bool(available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linears(model: nn.Module) -> None:
    """Replaces a model's bfloat16 linear layers on the CPU by packed ones, if the CPU computes bfloat16."""
    if not computes_bfloat16():
        return
    for module in list(model.modules()):
        layers = {name: child for name, child in module.named_children() if isinstance(child, nn.Linear)}
        layers = {name: layer for name, layer in layers.items() if _can_be_packed(layer)}
        for names in _TOGETHER:
            if all(name in layers for name in names) and _alike([layers[name] for name in names]):
                joined = _Joined([layers.pop(name) for name in names])
                for number, name in enumerate(names):
                    setattr(module, name, PartOfLinear(joined, number))
        for name, layer in layers.items():
            setattr(module, name, PackedLinear(layer))


class PackedLinear(nn.Module):
    """A replacement for a linear layer, with its weight packed."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, rows: Tensor) -> Tensor:
        """Maps [.., features in] to [.., features out]."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return out


class PartOfLinear(nn.Module):
    """A replacement for one of several linear layers that are computed together."""

    def __init__(self, joined: _Joined, number: int) -> None:
        super().__init__()
        self._joined = joined
        self._number = number

    def forward(self, rows: Tensor) -> Tensor:
        """Maps [.., features in] to [.., features out of this layer]."""
        return self._joined.part(rows, self._number)


class _Joined:
    """Several linear layers as one. Not a module itself; its parts are."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        whole = nn.Linear(1, 1, bias=linears[0].bias is not None, device="meta")
        whole.weight = nn.Parameter(torch.cat([linear.weight.detach() for linear in linears]), requires_grad=False)
        if linears[0].bias is not None:
            whole.bias = nn.Parameter(torch.cat([linear.bias.detach() for linear in linears]), requires_grad=False)
        self._sizes = [linear.out_features for linear in linears]
        self._packed = PackedLinear(whole)
        self._rows: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()

    def part(self, rows: Tensor, number: int) -> Tensor:
        """Returns one layer's result. The first call computes all results; the last layer's call drops them."""
        if self._rows is not rows:
            self._rows = rows
            self._parts = self._packed(rows).split(self._sizes, -1)
        part = self._parts[number]
        if number == len(self._sizes) - 1:
            self._rows, self._parts = None, ()
        return part


def _can_be_packed(linear: nn.Linear) -> bool:
    return type(linear) is nn.Linear and linear.weight.dtype == torch.bfloat16 and linear.weight.device.type == "cpu"


def _alike(linears: Sequence[nn.Linear]) -> bool:
    first = linears[0]
    return all(
        each.in_features == first.in_features and (each.bias is None) == (first.bias is None) for each in linears
    )
