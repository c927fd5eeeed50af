"""Renderer of the kustomize manifests from the Helm chart: `python -m k8s.render`.

The chart is the only source. The kustomize base is the chart with its default values. Each component is the difference
that some values make: new objects in full, changed ones as strategic merge patches. tests/deploy checks that the
committed files are current, and that base and components together equal the chart's output for the same values.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

KUBERNETES = Path(__file__).parent
CHART = KUBERNETES / "helm" / "allm"
RELEASE = "allm"
NAMESPACE = "allm"
HEADER = "# Rendered from k8s/helm/allm by `python -m k8s.render`; change the chart, not this file.\n"
# The field by which Kubernetes merges the items of a list; it replaces other lists as a whole.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
}
COMPONENT_LABEL = "app.kubernetes.io/component"

Values = Mapping[str, Any]
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Component:
    """A kustomize component: its values of the chart, and the components that must come before it."""

    values: Values
    on: tuple[str, ...] = field(default=())


# In the order that a kustomization must use.
COMPONENTS: dict[str, Component] = {
    "keys": Component({"auth": {"mode": "keys"}}),
    "gpu": Component({name: {"gpu": {"count": 1}} for name in ("text", "audio", "image")}),
    "model-cache": Component({"modelStorage": {"kind": "pvc"}}),
    "shared-files": Component({"image": {"sharedFolder": {"enabled": True}}}),
    "tls": Component(
        {"tls": {"gateway": {"secret": "allm-gateway-tls"}, "services": {"secret": "allm-service-tls"}}}, on=("keys",)
    ),
    "ingress": Component(
        {
            "ingress": {
                "enabled": True,
                "host": "ai.example.org",
                "tlsSecret": "allm-ingress-tls",
                "grpc": {"host": "grpc.ai.example.org"},
            }
        },
        on=("keys",),
    ),
    "monitoring": Component({"monitoring": {"enabled": True}}),
    "autoscaling": Component({"autoscaling": {"kind": "keda"}}),
    "multi-node": Component(
        {
            "textGroups": {
                "huge": {
                    "models": ["multi-node/*"],
                    "gpu": {"count": 8},
                    "scale": {"max": 0},
                    "resources": {"requests": {"cpu": "16", "memory": "128Gi"}, "limits": {"memory": "256Gi"}},
                    "multiNode": {"size": 2},
                }
            }
        },
        on=("keys", "model-cache", "tls"),
    ),
    "scale-to-zero": Component(
        {"text": {"scale": {"min": 0}}, "audio": {"scale": {"min": 0}}}, on=("keys", "monitoring", "autoscaling")
    ),
}


def helm_template(values: Sequence[Values]) -> list[Object]:
    """Renders the chart with `values` over its defaults. The result is cached; callers must not change it.

    Raises:
        RuntimeError: helm failed; the message holds its error.
    """
    return _helm_template(tuple(map(json.dumps, values)))


@cache
def _helm_template(values: tuple[str, ...]) -> list[Object]:
    helm = Path(sys.executable).with_name("helm")
    with tempfile.TemporaryDirectory() as folder:
        files: list[str] = []
        for number, each in enumerate(values):
            path = Path(folder, f"{number}.json")  # JSON is YAML
            path.write_text(each)
            files += ["--values", str(path)]
        command = [str(helm), "template", RELEASE, str(CHART), "--namespace", NAMESPACE, *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return list(_documents(done.stdout))


def _documents(text: str) -> Iterator[Object]:
    # libyaml's parser, if available, is ten times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return (found for found in yaml.load_all(text, Loader=loader) if found)


def identity(found: Object) -> tuple[str, str]:
    """Returns kind and name, which identify an object in a rendering."""
    return found["kind"], found["metadata"]["name"]


def needed(name: str) -> list[str]:
    """Returns the components that a component depends on, and itself, in order."""
    wanted = {*COMPONENTS[name].on, name}
    return [each for each in COMPONENTS if each in wanted]


def difference(old: Any, new: Any) -> Any:
    """Returns the strategic merge patch from `old` to `new`, two different mappings."""
    patch: Object = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old:
            patch[key] = value
        elif old[key] == value:
            continue
        elif isinstance(value, dict) and isinstance(old[key], dict):
            patch[key] = difference(old[key], value)
        elif isinstance(value, list) and key in MERGE_KEYS:
            patch[key] = _items(old[key], value, MERGE_KEYS[key])
        else:
            patch[key] = value
    return patch


def _items(old: list[Object], new: list[Object], merge_key: str) -> list[Object]:
    before = {item[merge_key]: item for item in old}
    after = {item[merge_key] for item in new}
    patch: list[Object] = [{merge_key: key, "$patch": "delete"} for key in before if key not in after]
    for item in new:
        known = before.get(item[merge_key])
        if known is None:
            patch.append(item)
        elif known != item:
            patch.append({merge_key: item[merge_key], **difference(known, item)})
    # kustomize puts the items of a patch before all others, and `$(NAME)` resolves only after NAME.
    named = {item[merge_key] for item in patch}
    referred = {name for item in patch for name in re.findall(r"\$\((\w+)\)", str(item.get("value", "")))}
    return [item for item in new if item[merge_key] in referred - named] + patch


def render(target: Path) -> None:
    """Writes the base and all components below `target`, replacing the existing ones."""
    for name in ("base", "components"):
        shutil.rmtree(target / name, ignore_errors=True)
    base = helm_template([])
    by_component: dict[str, list[Object]] = {}
    for found in base:
        by_component.setdefault(found["metadata"]["labels"][COMPONENT_LABEL], []).append(found)
    for component, objects in by_component.items():
        _write(target / "base" / f"{component}.yaml", objects)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(f"{component}.yaml" for component in by_component),
    }
    _write(target / "base" / "kustomization.yaml", [kustomization])
    for name in COMPONENTS:
        _render_component(target / "components" / name, name)


def _render_component(folder: Path, name: str) -> None:
    values = [COMPONENTS[each].values for each in needed(name)]
    old = {identity(found): found for found in helm_template(values[:-1])}
    new = helm_template(values)
    kustomization: Object = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component"}
    if added := [found for found in new if identity(found) not in old]:
        _write(folder / "resources.yaml", added)
        kustomization["resources"] = ["resources.yaml"]
    patches = []
    for found in new:
        known = old.get(identity(found))
        if known is None or known == found:
            continue
        path = f"{found['kind'].lower()}-{found['metadata']['name']}.yaml"
        changes = difference(known, found)
        metadata = {"name": found["metadata"]["name"], **changes.pop("metadata", {})}
        head = {"apiVersion": found["apiVersion"], "kind": found["kind"], "metadata": metadata}
        _write(folder / path, [{**head, **changes}])
        patches.append({"path": path})
    if patches:
        kustomization["patches"] = patches
    _write(folder / "kustomization.yaml", [kustomization])


def _write(path: Path, objects: Sequence[Object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump_all(objects, sort_keys=False, width=120, default_flow_style=False)
    path.write_text(HEADER + text, encoding="utf-8")


if __name__ == "__main__":
    render(KUBERNETES)
