"""The `diffusers` runtime: runs pipelines from a folder with model_index.json or from a single-file checkpoint.

LoRAs are fused into the weights when the pipeline is loaded, so that they cost nothing at inference.
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers.utils import logging as diffusers_logging
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import safe_open
from transformers.utils import logging as transformers_logging

from services.image.engine.messages import Draft, EngineOptions, Lora, Mode, Parameters
from services.image.engine.runtime import AfterStep, PromptLength
from services.image.engine.runtimes.diffusers.batch import PipelineBatch
from services.image.engine.runtimes.diffusers.index import PipelineIndex, read_index
from services.image.engine.runtimes.diffusers.placement import Offload, Placement, device_of, dtype_of
from services.image.engine.runtimes.diffusers.traits import Prompts, Schedulers, Traits
from services.worker.messages import EngineError, error_line, is_out_of_memory

# Optional components, each with a tensor that marks its presence in a file: Stable Diffusion 3 was published with and
# without its largest text encoder.
_OPTIONAL = {"text_encoder_3": "text_encoders.t5xxl.transformer.shared.weight"}
_TOKENIZERS = {"text_encoder_3": "tokenizer_3"}
# Names, not classes: diffusers imports their dependencies on first access, which must follow `_be_quiet`.
_MODES: dict[Mode, str] = {
    "text_to_image": "AutoPipelineForText2Image",
    "image_to_image": "AutoPipelineForImage2Image",
    "inpainting": "AutoPipelineForInpainting",
}
# Pipeline options that turn off components which would change pixels or are not needed to compute them.
_WITHOUT = {"safety_checker": None, "requires_safety_checker": False, "add_watermarker": False}
# Errors that the libraries raise for weights and configurations they cannot use.
_FAULTS = (OSError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, ImportError, ArithmeticError)
_BEAT_SECONDS = 0.5  # between two heartbeats from inside a network
_BEAT_DEPTH = 2  # most dots in the names of the modules that send them


def load_single_file(
    kind: Any, checkpoint: Path, base: PipelineIndex, dtype: torch.dtype, options: dict[str, Any]
) -> Any:
    """Loads a pipeline of the class `kind`. Downloads nothing.

    Raises:
        EngineError: MODEL_INVALID if the checkpoint lacks weights of the base's components.
        Also diffusers' errors for weights that do not fit.
    """
    try:
        return kind.from_single_file(
            str(checkpoint),
            config=str(base.folder),
            dtype=dtype,
            local_files_only=True,
            **options,
            **dict.fromkeys(_left_out(checkpoint, base)),
        )
    except NotImplementedError as error:  # diffusers leaves missing weights on the meta device, then fails
        raise EngineError("MODEL_INVALID", f"{checkpoint} lacks weights that the model of {base.folder} has") from error


def _left_out(checkpoint: Path, base: PipelineIndex) -> list[str]:
    """Returns the optional components of the base that the file lacks, with their tokenizers."""
    with safe_open(checkpoint, "pt") as file:
        names = set(file.keys())
    absent = [name for name, mark in _OPTIONAL.items() if name in base.components and mark not in names]
    return [*absent, *(_TOKENIZERS[name] for name in absent)]


class DiffusersEngine:
    """A loaded model. Only `fit` is thread-safe."""

    def __init__(self, options: EngineOptions, progress: Callable[[float], None]) -> None:
        """Loads a pipeline from its folder or file, and fuses its LoRAs.

        Raises:
            EngineError: MODEL_INVALID, UNSUPPORTED or OUT_OF_MEMORY; the message names the cause.
        """
        torch.set_num_threads(max(1, options.threads))
        _be_quiet()
        device = device_of(options)
        index = read_index(Path(options.base or options.path))
        dtype = dtype_of(options, "transformer" in index.components)
        progress(0.1)
        own = _load(index, dtype, options)
        progress(0.8)
        self._pipelines = _pipelines(own)
        traits = Traits(self._pipelines)
        self._schedulers = Schedulers(own.scheduler, traits.sigmas)
        self._prompts = Prompts(own)
        self._placement = Placement(own, device, dtype, traits.sizes, options.batch_images)
        with _computing():
            self._placement.place(own)
        self._placed = own
        self._beat: Callable[[], None] = lambda: None
        self._beaten = 0.0
        self._listen(own)
        self.ready = traits.ready(self._schedulers, self._prompts, self._placement.batch_images)
        progress(1.0)

    def fit(self, prompt: str) -> PromptLength:
        """Counts a prompt's tokens. Thread-safe."""
        return self._prompts.fit(prompt)

    def generate(
        self, parameters: Parameters, drafts: Sequence[Draft], after_step: AfterStep, beat: Callable[[], None]
    ) -> list[bytes | None]:
        """Computes images together. Rows that are no longer wanted leave the batch if the mode is text_to_image and the
        pipeline is Stable Diffusion, XL or 3; otherwise they are computed and discarded.

        Raises:
            EngineError: OUT_OF_MEMORY or INTERNAL.
        """
        pipeline = self._pipelines[drafts[0].mode]
        self._beat = beat
        with _computing():
            self._place(pipeline)
            pipeline.scheduler = self._schedulers.build(parameters.scheduler)
            return PipelineBatch(pipeline, parameters, drafts, after_step).run()

    def _place(self, pipeline: Any) -> None:
        """Places a pipeline before its run: offloaded weights belong to one pipeline at a time."""
        if pipeline is not self._placed and self._placement.offload is not Offload.NOTHING:
            self._placement.place(pipeline)
            self._placed = pipeline

    def _listen(self, pipeline: Any) -> None:
        """Adds heartbeats inside the networks: encoding, a step or decoding of a large model may take a minute."""

        def beat(*_: Any) -> None:
            now = time.monotonic()
            if now - self._beaten > _BEAT_SECONDS:
                self._beaten = now
                self._beat()

        for part in pipeline.components.values():
            if isinstance(part, torch.nn.Module):
                for name, module in part.named_modules():
                    if name.count(".") <= _BEAT_DEPTH:
                        module.register_forward_hook(beat)


def _load(index: PipelineIndex, dtype: torch.dtype, options: EngineOptions) -> Any:
    kind = getattr(diffusers, index.pipeline)
    without = {name: value for name, value in _WITHOUT.items() if name in kind._get_signature_types()}
    try:
        with _computing():
            if options.base:
                pipeline = load_single_file(kind, Path(options.path), index, dtype, without)
            else:
                pipeline = kind.from_pretrained(
                    index.folder,
                    dtype=dtype,
                    variant=index.variant,
                    use_safetensors=True,
                    local_files_only=True,
                    trust_remote_code=False,
                    **without,
                )
            add_loras(pipeline, options.loras)
    except EngineError as error:
        raise EngineError("MODEL_INVALID" if error.code == "INTERNAL" else error.code, error.message) from error
    for needed in ("vae", "scheduler"):
        if getattr(pipeline, needed, None) is None:
            raise EngineError("UNSUPPORTED", f"{index.pipeline} has no {needed}: this service cannot run it")
    if getattr(pipeline, "unet", None) is None and getattr(pipeline, "transformer", None) is None:
        raise EngineError("UNSUPPORTED", f"{index.pipeline} has neither unet nor transformer")
    return pipeline


def _pipelines(own: Any) -> dict[Mode, Any]:
    """Returns the model's own pipeline and those for the other modes that can use the same weights."""
    pipelines: dict[Mode, Any] = {_mode(own): own}
    if _does_all(own):
        for mode, name in _MODES.items():
            if mode not in pipelines:
                try:
                    pipelines[mode] = getattr(diffusers, name).from_pipe(own)
                except ValueError:
                    continue  # diffusers has none for this family
    for pipeline in pipelines.values():
        pipeline.set_progress_bar_config(disable=True)
    return pipelines


def _mode(pipeline: Any) -> Mode:
    """Infers a pipeline's mode from its parameters."""
    taken = inspect.signature(pipeline.__call__).parameters
    if "mask_image" in taken:
        return "inpainting"
    return "image_to_image" if "image" in taken and "strength" in taken else "text_to_image"


def _does_all(pipeline: Any) -> bool:
    """True if the weights also suit the pipelines of other modes."""
    unet = getattr(pipeline, "unet", None)
    takes_masks = unet is not None and unet.config.in_channels != pipeline.vae.config.latent_channels
    return not takes_masks and not pipeline.config.get("requires_aesthetics_score", False)


@contextmanager
def _computing() -> Iterator[None]:
    """Turns off gradients and deprecation warnings, and converts the libraries' errors to EngineError."""
    try:
        with torch.inference_mode(), warnings.catch_warnings(action="ignore", category=FutureWarning):
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    except EngineError:
        raise
    except (MemoryError, *_FAULTS) as error:
        if is_out_of_memory(error):
            raise EngineError("OUT_OF_MEMORY", f"not enough memory: {error_line(error)}") from error
        raise EngineError("INTERNAL", f"diffusers: {error_line(error)}") from error


def _be_quiet() -> None:
    """Silences the libraries, which log every configuration that they complete and draw progress bars."""
    library: Any = transformers_logging
    library.set_verbosity_error()
    library.disable_progress_bar()
    diffusers_logging.set_verbosity_error()
    diffusers_logging.disable_progress_bar()


def add_loras(pipeline: Any, loras: Sequence[Lora]) -> None:
    """Fuses all LoRAs, each with its scale.

    Raises:
        EngineError: UNSUPPORTED if the pipeline takes no LoRAs; MODEL_INVALID if a file was made for another model.
        Also the errors of diffusers and peft for weights that do not fit.
    """
    if not loras:
        return
    if not hasattr(pipeline, "load_lora_weights"):
        raise EngineError("UNSUPPORTED", f"{type(pipeline).__name__} does not support LoRAs")
    names = [f"lora{number}" for number in range(len(loras))]
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # about several adapters, which is intended
        for name, lora in zip(names, loras, strict=True):
            _load_lora(pipeline, name, Path(lora.path))
        pipeline.set_adapters(names, adapter_weights=[lora.scale for lora in loras])
        pipeline.fuse_lora(components=_changed(pipeline), adapter_names=names, safe_fusing=True)
    pipeline.unload_lora_weights()


def _load_lora(pipeline: Any, name: str, path: Path) -> None:
    folder, file = str(path.parent), path.name
    options = {"weight_name": file, "local_files_only": True, "use_safetensors": True}
    found = pipeline.lora_state_dict(folder, **options)
    weights = found[0] if isinstance(found, tuple) else found
    wanted = sum(key.endswith((".lora_A.weight", "down.weight")) for key in weights)
    pipeline.load_lora_weights(folder, adapter_name=name, **options)
    # diffusers skips matrices that it cannot match, and reports that only in its log.
    taken = sum(_layers(pipeline, name))
    if taken < max(1, wanted):
        kind = type(pipeline).__name__
        message = f"{path} was made for another model: {taken} of its {wanted} matrices fit this {kind}"
        raise EngineError("MODEL_INVALID", message)


def _layers(pipeline: Any, name: str) -> list[int]:
    """Counts the matrices that a LoRA changes, per component."""
    return [
        sum(isinstance(module, BaseTunerLayer) and name in getattr(module, "lora_A", ()) for module in part.modules())
        for part in pipeline.components.values()
        if isinstance(part, torch.nn.Module)
    ]


def _changed(pipeline: Any) -> list[str]:
    """Returns the components that LoRAs change."""
    return [
        component
        for component, part in pipeline.components.items()
        if isinstance(part, torch.nn.Module) and any(isinstance(module, BaseTunerLayer) for module in part.modules())
    ]
