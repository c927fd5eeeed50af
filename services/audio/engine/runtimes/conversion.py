"""Converts Whisper's weights for CTranslate2 once, into a cache that several processes may share.

The tensors go directly into CTranslate2's own layout; its converter would first load the whole model through
transformers. One rename publishes a converted folder, so an existing folder is complete.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ctranslate2.specs import common_spec
from ctranslate2.specs.whisper_spec import WhisperSpec
from torch import Tensor

from services.audio.engine.runtimes.checkpoint import Checkpoint, checkpoint_path, read_checkpoint
from services.storage import VolumeLock
from services.worker.messages import EngineError

FORMAT = 1  # of the converted folders: a new number converts every model again
_POLL_SECONDS = 0.2
_WAITED, _READ, _FILLED = 0.02, 0.1, 0.4  # of the loading progress


def convert(source: Path, cache_folder: str, progress: Callable[[float], None]) -> Path:
    """Returns the folder with the weights of `source` for CTranslate2; converts them first if it is missing.

    Waits while another process converts the same weights.

    Raises:
        EngineError: MODEL_INVALID when the weights are wrong, UNSUPPORTED without a cache, INTERNAL when they cannot be
            written.
    """
    source = checkpoint_path(source)
    if not cache_folder:
        message = f"{source} must be converted to CTranslate2, and there is no cache folder to keep the result in"
        raise EngineError("UNSUPPORTED", message)
    folder = Path(cache_folder) / f"ctranslate2-{_fingerprint(source)}"
    if folder.is_dir():
        return folder
    lock = VolumeLock(folder.with_name(f"{folder.name}.lock"))
    try:
        while not lock.take():
            progress(_WAITED)
            time.sleep(_POLL_SECONDS)
        try:
            if not folder.is_dir():
                _publish(source, folder, progress)
        finally:
            lock.release()
    except OSError as error:
        message = f"the converted weights of {source} cannot be kept in {cache_folder}: {error.strerror or error}"
        raise EngineError("INTERNAL", message) from error
    return folder


def _publish(source: Path, folder: Path, progress: Callable[[float], None]) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that died; the lock keeps others out
    partial.mkdir()
    try:
        progress(_WAITED)
        stored = read_checkpoint(source)
        progress(_READ)
        _write(stored, partial)
        progress(_FILLED)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(stored: Checkpoint, folder: Path) -> None:
    spec = whisper_spec(stored)
    vocabulary = stored.vocabulary
    spec.config.suppress_ids = sorted(vocabulary.suppressed)
    spec.config.suppress_ids_begin = list(vocabulary.blank)
    spec.config.alignment_heads = [list(pair) for pair in stored.alignment_heads]
    spec.config.lang_ids = [vocabulary.language_token(code) for code in vocabulary.languages]
    spec.register_vocabulary(vocabulary.names())
    spec.validate()
    spec.optimize(quantization="float16")
    spec.save(str(folder))


def whisper_spec(stored: Checkpoint) -> Any:
    """Returns CTranslate2's specification of the model, filled with the tensors; `stored` loses them.

    Raises:
        EngineError: MODEL_INVALID when a tensor is missing, has another shape, or belongs to no Whisper model.
    """
    size = stored.dimensions
    spec = WhisperSpec(size.n_audio_layer, size.n_audio_head, size.n_text_layer, size.n_text_head)
    take = _Tensors(stored)
    encoder, decoder = spec.encoder, spec.decoder
    for name, width, part in (("conv1", size.n_mels, encoder.conv1), ("conv2", size.n_audio_state, encoder.conv2)):
        part.weight = take(f"encoder.{name}.weight", size.n_audio_state, width, 3)
        part.bias = take(f"encoder.{name}.bias", size.n_audio_state)
    encoder.position_encodings.encodings = take("encoder.positional_embedding", size.n_audio_ctx, size.n_audio_state)
    decoder.position_encodings.encodings = take("decoder.positional_embedding", size.n_text_ctx, size.n_text_state)
    _normal(encoder.layer_norm, take, "encoder.ln_post", size.n_audio_state)
    _normal(decoder.layer_norm, take, "decoder.ln", size.n_text_state)
    embedding = take("decoder.token_embedding.weight", size.n_vocab, size.n_text_state)
    decoder.embeddings.weight = decoder.projection.weight = embedding
    for name, layers, state in (
        ("encoder", encoder.layer, size.n_audio_state),
        ("decoder", decoder.layer, size.n_text_state),
    ):
        for index, layer in enumerate(layers):
            _layer(layer, take, f"{name}.blocks.{index}", state)
    take.finish()
    return spec


def _layer(layer: Any, take: _Tensors, name: str, state: int) -> None:
    own = layer.self_attention
    _normal(own.layer_norm, take, f"{name}.attn_ln", state)
    _joined(own.linear[0], take, [f"{name}.attn.{part}" for part in ("query", "key", "value")], state)
    _joined(own.linear[1], take, [f"{name}.attn.out"], state)
    if hasattr(layer, "attention"):
        sound = layer.attention
        _normal(sound.layer_norm, take, f"{name}.cross_attn_ln", state)
        _joined(sound.linear[0], take, [f"{name}.cross_attn.query"], state)
        _joined(sound.linear[1], take, [f"{name}.cross_attn.{part}" for part in ("key", "value")], state)
        _joined(sound.linear[2], take, [f"{name}.cross_attn.out"], state)
    _normal(layer.ffn.layer_norm, take, f"{name}.mlp_ln", state)
    for part, index, outputs, inputs in (
        (layer.ffn.linear_0, 0, 4 * state, state),
        (layer.ffn.linear_1, 2, state, 4 * state),
    ):
        part.weight = take(f"{name}.mlp.{index}.weight", outputs, inputs)
        part.bias = take(f"{name}.mlp.{index}.bias", outputs)


def _normal(spec: common_spec.LayerNormSpec, take: _Tensors, name: str, state: int) -> None:
    spec.gamma = take(f"{name}.weight", state)
    spec.beta = take(f"{name}.bias", state)


def _joined(spec: common_spec.LinearSpec, take: _Tensors, names: list[str], state: int) -> None:
    """Joins several projections into one; that of the keys has no bias."""
    weights = [take(f"{name}.weight", state, state) for name in names]
    biases = [
        torch.zeros(state, dtype=weights[0].dtype) if name.endswith(".key") else take(f"{name}.bias", state)
        for name in names
    ]
    spec.weight = torch.cat(weights) if len(names) > 1 else weights[0]
    spec.bias = torch.cat(biases) if len(names) > 1 else biases[0]


class _Tensors:
    """The tensors of a checkpoint, each taken once and checked for its shape."""

    def __init__(self, stored: Checkpoint) -> None:
        self._stored = stored

    def __call__(self, name: str, *shape: int) -> Tensor:
        tensor = self._stored.tensors.pop(name, None)
        if tensor is None:
            raise EngineError("MODEL_INVALID", f"{self._stored.source} has no tensor {name}")
        if tuple(tensor.shape) != shape:
            message = f"{self._stored.source}: {name} has the shape {list(tensor.shape)}, expected {list(shape)}"
            raise EngineError("MODEL_INVALID", message)
        return tensor.to(torch.float16).contiguous()

    def finish(self) -> None:
        """Raises EngineError if a tensor is left."""
        if self._stored.tensors:
            name = min(self._stored.tensors)[:100]
            raise EngineError("MODEL_INVALID", f"{self._stored.source} has an unexpected tensor: {name}")


def _fingerprint(source: Path) -> str:
    """Returns a hash of the files' names, sizes and times: a changed file makes another folder."""
    try:
        files = sorted(path for path in source.iterdir() if path.is_file()) if source.is_dir() else [source]
        facts = [(path.name, status.st_size, status.st_mtime_ns) for path in files for status in [path.stat()]]
    except OSError as error:
        raise EngineError("MODEL_INVALID", f"{source}: {error.strerror or error}") from error
    return hashlib.sha256(repr((FORMAT, str(source.resolve()), facts)).encode()).hexdigest()[:32]
