"""A release: the wheel serves without the repository, and the workflow names what exists."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from release.constraints import Package, parsed, served
from release.version import version
from tests.case import case
from tests.deploy.dockerfile import IMAGES
from tests.stack import MODEL, running_stack

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv" / "release" / "bin" / "python"
RESOLVED = f"""\
torch==2.13.0 \\
    --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
    # via -c release-pins.txt, accelerate, allm-server (pyproject.toml)
triton==3.7.1 ; python_full_version < '3.15' and sys_platform == 'linux' \\
    --hash=sha256:{"c" * 64}
    # via torch
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:{"d" * 64}
    # via click
"""
# What the installed package must find, wherever it was installed.
SHIPPED = """
from containers.llama_build import FIXES, TOOLKIT
from gateway.console import static_files
from services.cli.serve.serve import RECORDING
from services.models.demo.copied_demo import ADAPTER, MANIFEST, WEIGHTS
import services
print(services.__file__)
assert static_files()
for path in (FIXES, TOOLKIT, RECORDING, ADAPTER, WEIGHTS / MANIFEST):
    assert path.exists(), path
"""


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    return found


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_the_workflow_names_targets_modules_and_images_that_exist(workflow: dict[str, Any]) -> None:
    commands = "\n".join(step["run"] for step in steps(workflow) if "run" in step)
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"\bmake ([a-z-]+)", commands)) == {"release"} & set(targets)
    for module in re.findall(r"python -m (\S+?)\)?\"", commands):
        with case(module=module):
            assert importlib.util.find_spec(module)
    built, tagged = (workflow["jobs"][name]["strategy"]["matrix"]["image"] for name in ("images", "manifests"))
    # vLLM's image is for GPUs, whose images are not published.
    assert set(built) == set(tagged) == set(IMAGES) - {"text-vllm"}


def test_the_workflow_pins_actions_and_gives_each_job_its_own_rights(workflow: dict[str, Any]) -> None:
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), step
    assert workflow["permissions"] == {}
    signing = {name for name, job in workflow["jobs"].items() if "id-token" in job["permissions"]}
    assert signing == {"signatures", "manifests", "index"}, "what runs the code of others gets no identity"


def test_the_version_is_the_same_everywhere() -> None:
    number = version(ROOT)
    assert yaml.safe_load((ROOT / "k8s/helm/allm/Chart.yaml").read_text())["appVersion"] == number
    for page in ("kubernetes.md", "releases.md"):
        named = re.findall(r"(?:allm-\$name(?:-cuda)?:|allm[-_]server[-=]+|constraints-)(\d+\.\d+\.\d+)", _page(page))
        assert set(named) == {number}, page


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_the_closure_is_what_the_platforms_need() -> None:
    torch, triton, colorama = parsed(RESOLVED)
    assert torch == Package("torch", "2.13.0", "", ("a" * 64, "b" * 64), ("accelerate", "allm-server"))
    assert [served(each.marker) for each in (torch, triton, colorama)] == [True, True, False]
    with pytest.raises(ValueError, match="without hashes"):
        list(parsed(RESOLVED + "click==8.5.1\n    # via typer\n"))
    assert served("platform_machine == 'aarch64' and sys_platform == 'linux'")
    assert served("python_full_version < '3.11.3'")
    assert triton.lines() == (
        f"triton==3.7.1 ; python_full_version < '3.15' and sys_platform == 'linux' \\\n    --hash=sha256:{'c' * 64}\n"
    )


def test_the_list_of_components_has_hashes_and_a_graph() -> None:
    """CycloneDX's schema is checked when it is written."""
    script = """
import sys
from pathlib import Path
from release.constraints import parsed
from release.sbom import sbom
print(sbom("1.2.3", {"a.whl": "e" * 64}, list(parsed(sys.stdin.read())), Path("web/package-lock.json"), 0))
"""
    done = subprocess.run([TOOLS, "-c", script], input=RESOLVED, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["specVersion"], document["metadata"]["component"]["version"]) == ("1.6", "1.2.3")
    names = {each["name"]: each for each in document["components"]}
    assert {"torch", "triton", "preact"} <= names.keys()
    assert "axe-core" not in names, "the console is built with it and does not contain it"
    assert [each["content"] for each in names["triton"]["externalReferences"][0]["hashes"]] == ["c" * 64]
    graph = {each["ref"]: each.get("dependsOn", []) for each in document["dependencies"]}
    assert "torch" in graph["allm-server"]
    assert (graph["torch"], graph["triton"]) == (["triton"], [])


@pytest.fixture(scope="module")
def wheel_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel: other packages come from that of the tests, whose allm it cannot see."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [str(TOOLS), "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    for command in (build, [sys.executable, "-m", "venv", "--without-pip", str(folder / "environment")]):
        subprocess.run(command, capture_output=True, check=True)
    python = folder / "environment/bin/python"
    (wheel,) = folder.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], capture_output=True, check=True)
    # Unlike the environment's own folder, this one's .pth files are not read: they name the repository.
    packages = python.parents[1] / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return python


def test_the_wheel_serves_outside_of_the_repository(wheel_python: Path, tmp_path: Path) -> None:
    found = subprocess.run([wheel_python, "-c", SHIPPED], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert Path(found.stdout.strip()).is_relative_to(wheel_python.parents[1])
    allm = subprocess.run([wheel_python.with_name("allm"), "--version"], capture_output=True, text=True, check=True)
    assert allm.stdout == f"allm {version(ROOT)}\n"
    with running_stack(tmp_path / "home", python=str(wheel_python), folder=tmp_path) as stack:
        question = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{stack.base_url}/chat/completions", json.dumps(question).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert json.load(reply)["choices"][0]["message"]["content"]
        page = urllib.request.Request(f"http://127.0.0.1:{stack.port}/", headers={"accept": "text/html"})
        with urllib.request.urlopen(page, timeout=60) as reply:
            assert b"<html" in reply.read()
