"""Every object of every rendering, validated against the schemas of several versions of Kubernetes, offline."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kubernetes_validate.utils import all_versions, schema_contents
from referencing import Registry, Resource

from k8s.render import CHART, KUBERNETES, Object
from tests.case import case
from tests.deploy.renderings import RENDERINGS, kustomize, pod_templates, rendering

CUSTOM = Path(__file__).with_name("custom_resources")
OLDEST = "1.30"
NEWEST = all_versions()[-1].rpartition(".")[0]
VERSIONS = [OLDEST, "1.33", NEWEST]
# Image volumes need a newer version than everything else.
WITH_IMAGE_VOLUMES = "1.33"


@cache
def definitions(version: str) -> Any:
    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    return Resource.from_contents(schema_contents(f"{folder}/_definitions.json", version)) @ Registry()


@cache
def validator(version: str, kind: str, api: str) -> jsonschema.protocols.Validator:
    """Returns a validator that refuses unknown fields. Raises FileNotFoundError when that version lacks the kind."""
    if (path := CUSTOM / f"{kind.lower()}.json").exists():
        return jsonschema.Draft202012Validator(json.loads(path.read_text()), registry=definitions(version))
    short = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api)
    schema = schema_contents(f"kubernetes-json-schema/v{version}.0-local-strict/{kind.lower()}-{short}.json", version)
    return jsonschema.Draft202012Validator(schema, registry=Resource.from_contents(schema) @ definitions(version))


@cache
def problem(version: str, text: str) -> str:
    """Returns the error of a JSON object; empty: it is valid. Cached: most objects occur in many renderings."""
    found = json.loads(text)
    errors = [
        f"{found['kind']}/{found['metadata']['name']} {error.json_path}: {error.message[:300]}"
        for error in validator(version, found["kind"], found["apiVersion"]).iter_errors(found)
    ]
    return "\n".join(errors)


def uses_image_volumes(found: Object) -> bool:
    templates = [template["spec"] for _, template in pod_templates([found])]
    return any("image" in volume for spec in templates for volume in spec.get("volumes", []))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_of_every_rendering_is_valid(version: str) -> None:
    wrong = set()
    for name in RENDERINGS:
        for found in rendering(name):
            if uses_image_volumes(found) and float(version) < float(WITH_IMAGE_VOLUMES):
                continue
            if text := problem(version, json.dumps(found, sort_keys=True)):
                wrong.add(f"{name}: {text}")
    assert not wrong, "\n".join(sorted(wrong))


def test_the_example_is_valid() -> None:
    wrong = [problem(NEWEST, json.dumps(found)) for found in kustomize(KUBERNETES / "examples" / "kustomize")]
    assert not any(wrong), wrong


def test_autoscalers_wait_no_longer_than_the_api_allows() -> None:
    (text, _) = [found for found in rendering("chart: hpa") if found["kind"] == "HorizontalPodAutoscaler"]
    assert text["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 3600


def test_faults_would_be_detected() -> None:
    (text, *_) = [found for found in rendering("kustomize: base") if found["metadata"]["name"] == "allm-text"]
    broken = json.loads(json.dumps(text))
    broken["spec"]["replica"] = 1
    for version in VERSIONS:
        assert "replica" in problem(version, json.dumps(broken))
    scaled = next(found for found in rendering("chart: autoscaling") if found["kind"] == "ScaledObject")
    assert "cooldown" in problem(NEWEST, json.dumps({**scaled, "spec": {**scaled["spec"], "cooldown": 1}}))


def test_a_wrong_leader_worker_set_would_be_seen() -> None:
    for change, reported in [
        (lambda spec: spec["leaderWorkerTemplate"].update(size=0), "size: 0 is less than the minimum"),
        (lambda spec: spec["leaderWorkerTemplate"].update(restartPolicy="Always"), "'Always' is not one of"),
        (lambda spec: spec["leaderWorkerTemplate"].pop("workerTemplate"), "'workerTemplate' is a required property"),
        (
            lambda spec: spec["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0].update(image=1),
            "1 is not of type 'string'",
        ),
        (
            lambda spec: spec["rolloutStrategy"]["rollingUpdateConfiguration"].update(maxUnavailable=0),
            "should not be valid under",
        ),
        (
            lambda spec: spec["rolloutStrategy"]["rollingUpdateConfiguration"].update(maxUnavailable="110%"),
            "is not valid under any",
        ),
    ]:
        with case(change=change, reported=reported):
            found = next(each for each in rendering("chart: multi-node") if each["kind"] == "LeaderWorkerSet")
            broken = json.loads(json.dumps(found))
            change(broken["spec"])
            assert reported in problem(NEWEST, json.dumps(broken))


def test_the_chart_wants_the_oldest_version_that_was_tried() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={OLDEST}.0-0"
    assert any(map(uses_image_volumes, rendering("chart: model-images")))


def test_custom_resources_are_those_that_have_a_schema_here() -> None:
    theirs = {
        found["kind"]
        for name in RENDERINGS
        for found in rendering(name)
        if "." in found["apiVersion"] and not found["apiVersion"].split("/")[0].endswith(".k8s.io")
    }
    assert {kind.lower() for kind in theirs} == {path.stem for path in CUSTOM.iterdir()}
