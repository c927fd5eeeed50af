"""The script that builds llama.cpp for GPUs: its decisions. tests/text/test_vulkan_stack.py uses what it built."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "containers" / "llama_build.py"
BEFORE = "int a;\n    VkBool32 enable_best_practice = layer_settings;\n    of the layer\n"
CALL = "    vk::InstanceCreateInfo instance_create_info(flags, &app_info, layers, extensions{});\n"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("llama_build", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def nvidia(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: str, gpus: str) -> None:
    """Makes a machine with this driver and GPUs, and CUDA 13 in tmp_path."""

    def output(*command: str) -> str:
        answers = {"--query-gpu=driver_version": driver, "--query-gpu=compute_cap": gpus}
        return answers.get(command[1], "Cuda compilation tools, release 13.0, V13.0.88")

    monkeypatch.setattr(script, "_output", output)
    monkeypatch.setattr(script, "system_toolkit", lambda: tmp_path)


def test_only_the_architectures_present_are_compiled(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvidia(script, monkeypatch, tmp_path, "580.65.06\n580.65.06", "9.0\n8.6\n9.0\n6.1")
    assert "-DCMAKE_CUDA_ARCHITECTURES=86;90" in script.cuda_flags(tmp_path, "")
    assert "-DCMAKE_CUDA_ARCHITECTURES=120" in script.cuda_flags(tmp_path, "120")


def test_a_build_that_crashes_is_not_used_and_leaves_the_calls_that_led_to_it(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "MODEL", ("json", "a.gguf"))  # any package
    monkeypatch.setattr(script, "ANSWER", "import os\ndef decode():\n    os.kill(os.getpid(), 11)\ndecode()")
    log = tmp_path / "llama-answer-cuda.log"
    with pytest.raises(script.BuildError, match=rf"was killed by signal 11 \(log: {log}\)"):
        script._answer("cuda", tmp_path / ".cuda-1")
    assert "in decode" in log.read_text()


def test_another_cuda_in_the_environment_does_not_take_the_place_of_the_builds_own(tmp_path: Path) -> None:
    """RPATH, which cuda_flags asks for, comes before LD_LIBRARY_PATH; RUNPATH, the linker's default, after it."""
    flags = [each for each in SCRIPT.read_text().splitlines() if "CMAKE_SHARED_LINKER_FLAGS" in each]
    (linker,) = [each.split("=", 1)[1].split('"')[0] for each in flags]
    own, other = tmp_path / "own", tmp_path / "other"
    for folder, value in ((own, 1), (other, 2)):
        folder.mkdir()
        compiled(folder / "libinner.so", f"int inner() {{ return {value}; }}")
    outer = "int inner(); int outer() { return inner(); }"
    compiled(tmp_path / "libouter.so", outer, f"-L{own}", "-linner", f"-Wl,-rpath,{own}", linker)
    call = f"import ctypes; print(ctypes.CDLL({str(tmp_path / 'libouter.so')!r}).outer())"
    environ = {**os.environ, "LD_LIBRARY_PATH": str(other)}
    assert subprocess.check_output([sys.executable, "-c", call], env=environ, text=True) == "1\n"


def compiled(target: Path, source: str, *options: str) -> None:
    command = ["cc", "-x", "c", "-shared", "-fPIC", "-o", target, "-", *options]
    subprocess.run(command, input=source, text=True, check=True)


@pytest.mark.parametrize(
    ("driver", "gpus", "reason"),
    [
        ("575.57.08", "9.0", "the NVIDIA driver 575.57.08 is too old for CUDA 13: update it to 580 or newer"),
        ("580.65.06", "6.1", "the NVIDIA GPU is too old for CUDA 13: make llama-vulkan"),
        ("", "", "no NVIDIA GPU answers"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_remedy(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: str, gpus: str, reason: str
) -> None:
    nvidia(script, monkeypatch, tmp_path, driver, gpus)
    with pytest.raises(script.BuildError, match=reason):
        script.cuda_flags(tmp_path, "")


def test_missing_vulkan_packages_are_named(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script.shutil, "which", lambda name: None)
    with pytest.raises(script.BuildError, match="apt-get install libvulkan-dev glslc spirv-headers"):
        script.vulkan_flags()


def test_the_kind_follows_the_gpu_and_the_wish(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "NVIDIA", (tmp_path / "nvidia",))
    monkeypatch.setattr(script, "RENDER_NODES", tmp_path)
    monkeypatch.delenv("ALLM_DEVICE", raising=False)
    assert script.found_kind() == ""
    (tmp_path / "renderD128").touch()
    assert script.found_kind() == "vulkan"
    (tmp_path / "nvidia").touch()
    assert script.found_kind() == "cuda"
    monkeypatch.setenv("ALLM_DEVICE", "vulkan")
    assert script.found_kind() == "vulkan"
    monkeypatch.setenv("ALLM_DEVICE", "cpu")
    assert script.found_kind() == ""


def test_layer_settings_are_taken_out_or_the_build_fails(script: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "ggml-vulkan.cpp"
    source.write_text(BEFORE + CALL.format(", &layer_setting_info"), encoding="utf-8")
    script.without_layer_settings(source)
    assert source.read_text(encoding="utf-8") == "int a;\n" + CALL.format("")
    with pytest.raises(script.BuildError, match=r"ggml-vulkan\.cpp is not as expected"):
        script.without_layer_settings(source)


def test_all_bindings_are_written_or_the_build_fails(script: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "ggml-vulkan-common.h"
    source.write_text("".join(script._BINDINGS), encoding="utf-8")
    script.without_stale_bindings(source)
    assert source.read_text(encoding="utf-8") == "".join(script._BINDINGS.values())
    with pytest.raises(script.BuildError, match=r"ggml-vulkan-common\.h is not as expected"):
        script.without_stale_bindings(source)


def test_the_class_embedding_is_put_first_or_the_build_fails(script: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "llava.cpp"
    before, after = script._CLASS_FIRST
    source.write_text(f"ggml_concat{before};", encoding="utf-8")
    script.with_class_first(source)
    assert source.read_text(encoding="utf-8") == f"ggml_concat{after};"
    with pytest.raises(script.BuildError, match=r"llava\.cpp is not as expected"):
        script.with_class_first(source)
    assert all(text in SCRIPT.with_name("llama_wheel.cmake").read_text() for text in script._CLASS_FIRST)


@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="only x86 has AMX")
def test_the_compiler_keeps_all_of_a_tile_configuration(tmp_path: Path) -> None:
    source = "void f() { alignas(64) unsigned char c[64] = {1}; c[48] = 77; _tile_loadconfig(c); }"
    command = ["c++", "-O3", "-mamx-tile", "-include", SCRIPT.with_name("llama_fixes.h"), "-S", "-o-", "-xc++", "-"]
    made = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    assert "$77" in made
    assert "ldtilecfg" in made


def test_libraries_that_cannot_answer_are_found(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "cpu"],
        env={**os.environ, "LLAMA_CPP_LIB_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith("the installed llama.cpp cannot be used on this machine: a small model does not")


def test_nothing_is_built_without_a_gpu(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "auto", "--background", "--into", tmp_path],
        env={"ALLM_DEVICE": "cpu", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())
