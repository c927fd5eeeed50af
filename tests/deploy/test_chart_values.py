"""Wrong values are refused before anything is deployed, by the name of the value."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from k8s.render import CHART, COMPONENTS, helm_template
from services.catalog.registration import models_file
from services.catalog.registration.models_file import read_models
from tests.case import case
from tests.deploy.renderings import chart, containers, pod_templates

SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def machines(
    *,
    name: str = "huge",
    size: int = 2,
    gpus: int = 8,
    claim: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the values of a group of models that several machines serve together."""
    declared = [{"id": "big", "source": "hf://o/big", "format": "safetensors", **model}] if model is not None else []
    return {
        "modelStorage": {"kind": "pvc", "claim": claim or {}},
        "models": declared,
        "textGroups": {name: {"models": ["big"], "gpu": {"count": gpus}, "multiNode": {"size": size}}},
    }


def test_a_wrong_value_is_refused_by_name() -> None:
    for values, reported in [
        ({"texts": {}}, "Additional property texts is not allowed"),
        ({"text": {"replica": 2}}, "text: Additional property replica is not allowed"),
        ({"text": {"replicas": "two"}}, "text.replicas: Invalid type"),
        ({"text": {"gpu": {"count": -1}}}, "text.gpu.count: Must be greater than or equal to 0"),
        ({"auth": {"mode": "password"}}, 'auth.mode: auth.mode must be one of the following: "none", "keys", "open"'),
        ({"auth": {"identity": ""}}, "auth.identity: Does not match pattern"),
        ({"env": {"allm_store": "on"}}, 'Property name of "allm_store" does not match'),
        # Helm would write 1.073741824e+10.
        (
            {"env": {"ALLM_IMAGE_FOLDER_BYTES": 10737418240}},
            "env.ALLM_IMAGE_FOLDER_BYTES: Invalid type. Expected: string",
        ),
        ({"models": [{"id": "m", "source": "hf://o/m"}]}, "models.0: format is required"),
        ({"models": [{"id": "m", "source": "/m", "format": "gguf"}]}, "models.0.source: Does not match pattern"),
        ({"models": [{"id": "m", "source": "hf://o/m", "format": "gguf", "alias": []}]}, "models.0: .*alias is not"),
        ({"textGroups": {"Large": {"models": ["m"]}}}, 'Property name of "Large" does not match'),
        ({"textGroups": {"large": {"models": []}}}, "textGroups.large.models: Array must have at least 1 items"),
        ({"modelStorage": {"sizeLimit": "much"}}, "modelStorage.sizeLimit: Does not match pattern"),
        ({"drain": {"preStopSeconds": 0}}, "drain.preStopSeconds: Must be greater than or equal to 1"),
        ({"autoscaling": {"kind": "cpu"}}, "autoscaling.kind: autoscaling.kind must be one of"),
        ({"publicUrl": "ai.example.org"}, "publicUrl: Does not match pattern"),
        ({"gateway": {"corsOrigins": ["*"]}}, "gateway.corsOrigins.0: Does not match pattern"),
        # The templates check what the schema cannot.
        ({"ingress": {"enabled": True}}, "ingress.enabled: without keys"),
        ({"text": {"replicas": 2}, "redis": {"kind": "none"}}, "redis.kind: several text replicas need a Redis"),
        ({"redis": {"kind": "external"}}, "redis.secret names the Secret"),
        ({"image": {"replicas": 2}}, "image.sharedFolder.enabled: several replicas"),
        ({"text": {"rollout": {"maxSurge": 0}}}, "rollout of allm-text: maxSurge and maxUnavailable are both 0"),
        ({"autoscaling": {"kind": "hpa"}, "text": {"scale": {"min": 0}}}, "scale.min: 0 of allm-text needs .* keda"),
        ({"textGroups": {"default": {"models": ["m"]}}}, "textGroups.default: so the Pods of text itself"),
        (machines(size=1), "multiNode.size: Must be greater than or equal to 2"),
        ({**machines(), "modelStorage": {}}, "textGroups.huge.multiNode: its machines read the same files"),
        (
            machines(claim={"accessMode": "ReadWriteOnce"}),
            "textGroups.huge.multiNode: .*accessMode must be ReadWriteMany",
        ),
        (machines(gpus=0), "textGroups.huge.gpu.count: a multiNode group needs GPUs"),
        (machines(name="h" * 40), "textGroups.h*: together with the release's the name is too long"),
        (
            machines(model={}),
            "models: big is computed by textGroups.huge, on 2 machines of 8 GPUs: it needs runtime: vllm",
        ),
        (machines(model={"runtime": "vllm", "engine": {"tensor_parallel": 8}}), "tensor_parallel times .* is 16"),
    ]:
        with case(values=values, reported=reported):
            with pytest.raises(RuntimeError) as refused:
                helm_template([values])
            assert re.search(reported, str(refused.value)), refused.value


def test_the_schema_knows_every_value_of_the_chart_and_no_other() -> None:
    def compare(values: Any, schema: Any, path: str) -> None:
        if "$ref" in schema:
            schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
        if not schema.get("properties"):
            return
        assert schema["additionalProperties"] is False, path
        assert set(values) | {"global"} == set(schema["properties"]) | {"global"}, path
        for name, value in values.items():
            compare(value, schema["properties"][name], f"{path}.{name}")

    compare(yaml.safe_load((CHART / "values.yaml").read_text()), SCHEMA, "values")


@pytest.mark.parametrize("name", ["defaults", "model-images", "text-only"])
def test_the_catalog_takes_the_models_as_they_are_mounted(name: str) -> None:
    (found,) = [each for each in chart(name) if each["metadata"]["name"] == "allm-models" and "data" in each]
    read = read_models(found["data"]["models.yaml"].encode())
    assert not read.problems
    assert [each.id for each in read.declarations] == {
        "defaults": ["qwen3-0.6b"],
        "model-images": ["qwen", "dream"],
        "text-only": [],
    }[name]


def test_a_model_may_say_all_that_the_catalog_takes() -> None:
    assert set(SCHEMA["$defs"]["model"]["properties"]) == set(models_file._KEYS)


def documented() -> list[dict[str, Any]]:
    """Returns every set of values that docs/kubernetes.md recommends."""
    text = (CHART.parents[2] / "docs/kubernetes.md").read_text()
    found = []
    for pairs in re.findall(r"--set (\S+)", text):
        values: dict[str, Any] = {}
        for pair in pairs.split(","):
            path, _, value = pair.partition("=")
            *parents, last = path.split(".")
            place = values
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = yaml.safe_load(value)
        found.append(values)
    blocks = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    return found + [block for block in blocks if "apiVersion" not in block]


def test_documented_values_are_accepted() -> None:
    sets = documented()
    assert len(sets) >= 6
    for values in sets:
        assert helm_template([{"auth": {"mode": "keys"}}, values])


def test_the_documentation_knows_every_component() -> None:
    text = (CHART.parents[2] / "docs/kubernetes.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)`(?: \(with [^)]*\))? \| `", text, re.MULTILINE)
    assert [row for row in rows if row in COMPONENTS] == list(COMPONENTS)
    example = (CHART.parents[1] / "examples/kustomize/kustomization.yaml").read_text()
    assert ", ".join(COMPONENTS) in example.replace("\n#", "")


def requested(name: str) -> tuple[float, float]:
    """Returns the cores and GiB that the Pods of a rendering request together."""
    units = {"m": 0.001, "Mi": 1 / 1024, "Gi": 1.0, "": 1.0}
    cores = memory = 0.0
    for found in chart(name):
        for _, template in pod_templates([found]):
            for container in containers(template):
                for kind, text in container["resources"]["requests"].items():
                    number, unit = re.fullmatch(r"([0-9.]+)(\w*)", str(text)).groups()  # type: ignore[union-attr]
                    amount = float(number) * units[unit] * found["spec"].get("replicas", 1)
                    cores, memory = (cores + amount, memory) if kind == "cpu" else (cores, memory + amount)
    return cores, memory


def test_the_documentation_lists_the_default_requests() -> None:
    text = (CHART.parents[2] / "docs/kubernetes.md").read_text()
    for name in ("defaults", "text-only"):
        cores, memory = requested(name)
        if name == "text-only":  # it has no Redis
            cores, memory = cores + 0.1, memory + 0.125
        assert f"{cores:.1f} cores and {memory:.0f} GiB" in text
