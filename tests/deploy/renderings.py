"""All manifests that these tests check, rendered once: the chart with several sets of values, and kustomizations."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from k8s.render import COMPONENTS, KUBERNETES, Object, Values, helm_template, needed

ALL = "everything"
ALL_VALUES = [component.values for component in COMPONENTS.values()]
GROUP = {"models": ["llama-70b", "qwen-72b*"], "replicas": 2, "gpu": {"count": 4}, "env": {"ALLM_TENSOR_PARALLEL": "4"}}

# name -> values laid over the chart's own, in order
VALUE_SETS: dict[str, list[Values]] = {
    "defaults": [],
    **{name: [COMPONENTS[each].values for each in needed(name)] for name in COMPONENTS},
    ALL: ALL_VALUES,
    "groups": [*ALL_VALUES, {"textGroups": {"large": GROUP, "code": {"models": ["coder*"], "scale": {"min": 0}}}}],
    "several-machines": [
        ALL_VALUES[0],
        {
            "textGroups": {
                "huge": {
                    "models": ["llama-405b", "deepseek*"],
                    "replicas": 3,
                    "startupSeconds": 7200,
                    "env": {"NCCL_DEBUG": "WARN"},
                    "gpu": {"count": 8, "runtimeClassName": "nvidia"},
                    "multiNode": {
                        "size": 2,
                        "sharedMemory": "32Gi",
                        "topologyKey": "topology.example.org/rack",
                        "tokenSecret": "ray-token",
                    },
                },
                "split": {"models": ["qwen-72b"], "gpu": {"count": 4}, "vllm": True},
            },
            "text": {"vllm": True, "scale": {"min": 1}},
            "autoscaling": {"kind": "hpa"},
            **COMPONENTS["model-cache"].values,
            "models": [
                {
                    "id": "llama-405b",
                    "source": "hf://org/llama-405b",
                    "format": "safetensors",
                    "runtime": "vllm",
                    "engine": {"tensor_parallel": 8, "pipeline_parallel": 2, "dtype": "bfloat16"},
                }
            ],
        },
    ],
    "hpa": [{"autoscaling": {"kind": "hpa"}, "text": {"scale": {"min": 2, "cooldownSeconds": 7200}}}],
    "text-only": [{"audio": {"enabled": False}, "image": {"enabled": False}, "redis": {"kind": "none"}, "models": []}],
    "open": [
        {
            "auth": {"mode": "open"},
            "redis": {"kind": "external", "secret": "our-redis"},
            "container": {"registry": "registry.example.org/team/", "tag": "1.2.3", "pullSecrets": ["pull"]},
            "hub": {"endpoint": "https://mirror.example.org", "tokenSecret": "hub"},
            "gateway": {
                "allowedHosts": ["ai.example.org"],
                "corsOrigins": ["https://app.example.org"],
                "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
                "tolerations": [{"key": "edge", "operator": "Exists"}],
                "nodeSelector": {"zone": "edge"},
            },
            "networkPolicy": {
                "gatewayFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "front"}}}],
                "extraEgress": [{"ports": [{"protocol": "TCP", "port": 4317}]}],
            },
            "traces": {"endpoint": "http://collector.traces.svc:4317"},
            "env": {"ALLM_STORE_DAYS": "7"},
            "text": {"preload": ["qwen3-0.6b"], "affinity": {"nodeAffinity": {}}},
        }
    ],
    "model-images": [
        {
            "modelStorage": {
                "kind": "pvc",
                "claim": {"existing": "weights"},
                "images": [{"name": "qwen", "reference": "registry.example.org/models/qwen:1"}],
            },
            "models": [
                {
                    "id": "qwen",
                    "source": "file:///model-images/qwen/qwen.gguf",
                    "format": "gguf",
                    "aliases": ["gpt-4o"],
                    "keep_loaded": True,
                },
                {
                    "id": "dream",
                    "source": "file:///models/dream.safetensors",
                    "format": "diffusers",
                    "modality": "image",
                    "base": "hf://stable-diffusion-v1-5/stable-diffusion-v1-5",
                    "loras": [{"source": "hf://org/lora#lora.safetensors", "scale": 0.8}],
                    "image_defaults": {"steps": 20, "guidance": 2.5},
                    "runtime": "diffusers",
                },
            ],
            "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
            "textGroups": {"wide": {"models": ["wide"], "gpu": {"count": 8}, "multiNode": {"size": 4}}},
        }
    ],
}

# name -> components on top of the base
KUSTOMIZATIONS: dict[str, list[str]] = {
    "base": [],
    **{name: needed(name) for name in COMPONENTS},
    ALL: list(COMPONENTS),
}

RENDERINGS = [f"chart: {name}" for name in VALUE_SETS] + [f"kustomize: {name}" for name in KUSTOMIZATIONS]


@cache
def chart(name: str) -> list[Object]:
    """Renders the chart with a set of values."""
    return helm_template(VALUE_SETS[name])


@cache
def kustomized(name: str) -> list[Object]:
    """Renders the base with some components by kustomize. Fails when kubectl is missing."""
    with tempfile.TemporaryDirectory() as folder:
        # kustomize takes relative paths only, and resolves links first.
        place = Path(folder).resolve()
        relative = Path(os.path.relpath(KUBERNETES, place))
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [str(relative / "base")],
            "components": [str(relative / "components" / each) for each in KUSTOMIZATIONS[name]],
        }
        (place / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return kustomize(place)


def kustomize(folder: Path) -> list[Object]:
    """Runs `kubectl kustomize` on a folder."""
    kubectl = shutil.which("kubectl")
    assert kubectl, (
        "these tests render with kubectl (1.30 or newer), which is not in PATH: install it from kubernetes.io"
    )
    command = [kubectl, "kustomize", "--load-restrictor", "LoadRestrictionsNone", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [found for found in yaml.load_all(done.stdout, Loader=loader) if found]


def rendering(name: str) -> list[Object]:
    """Returns one of RENDERINGS."""
    kind, _, rest = name.partition(": ")
    return chart(rest) if kind == "chart" else kustomized(rest)


def pod_templates(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Yields name and Pod template of every workload."""
    for found in objects:
        name = f"{found['kind']}/{found['metadata']['name']}"
        if found["kind"] in ("Deployment", "StatefulSet"):
            yield name, found["spec"]["template"]
        if found["kind"] == "LeaderWorkerSet":
            for role in ("leader", "worker"):
                yield f"{name} {role}", found["spec"]["leaderWorkerTemplate"][f"{role}Template"]


def containers(template: Object) -> list[Object]:
    """Returns all containers of a Pod template, sidecars first."""
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def environment(container: Object) -> dict[str, Any]:
    """Returns the variables whose values are in the manifest."""
    return {item["name"]: item["value"] for item in container.get("env", []) if "value" in item}
