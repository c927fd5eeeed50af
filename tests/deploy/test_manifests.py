"""The files in k8s equal the chart's output, alone and in combination."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k8s.render import KUBERNETES, MERGE_KEYS, difference, helm_template, identity, render
from tests.case import case
from tests.deploy.renderings import ALL, KUSTOMIZATIONS, chart, containers, kustomize, kustomized, pod_templates


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for name in ("base", "components")
        for path in sorted((folder / name).rglob("*"))
        if path.is_file()
    }


def test_committed_manifests_equal_the_rendered_chart(tmp_path: Path) -> None:
    render(tmp_path)
    fresh, kept = files(tmp_path), files(KUBERNETES)
    wrong = sorted(name for name in {*fresh, *kept} if fresh.get(name) != kept.get(name))
    assert not wrong, f"run `python -m k8s.render`: {wrong}"


def unordered(value: Any, key: str = "") -> Any:
    """Converts lists that Kubernetes merges by a field into mappings: patches may change their order."""
    if isinstance(value, dict):
        return {name: unordered(each, name) for name, each in value.items()}
    if isinstance(value, list) and key in MERGE_KEYS:
        return {each[MERGE_KEYS[key]]: unordered(each) for each in value}
    return [unordered(each) for each in value] if isinstance(value, list) else value


def test_kustomize_and_the_chart_give_the_same() -> None:
    for name in KUSTOMIZATIONS:
        with case(name=name):
            ours = {identity(found): unordered(found) for found in kustomized(name)}
            theirs = {identity(found): unordered(found) for found in chart("defaults" if name == "base" else name)}
            assert ours.keys() == theirs.keys()
            for which, found in theirs.items():
                assert ours[which] == found, which


@pytest.mark.parametrize("name", ["base", ALL])
def test_a_variable_is_defined_before_another_one_refers_to_it(name: str) -> None:
    """Kubernetes leaves `$(NAME)` unexpanded when NAME comes later in the list."""
    seen = 0
    for container in [each for _, template in pod_templates(kustomized(name)) for each in containers(template)]:
        names: set[str] = set()
        for item in container.get("env", []):
            if "$(POD_NAMESPACE)" in item.get("value", ""):
                seen += 1
                assert "POD_NAMESPACE" in names, item
            names.add(item["name"])
    assert seen == 1


def test_the_example_is_put_together_as_the_documentation_says() -> None:
    objects = kustomize(KUBERNETES / "examples" / "kustomize")
    (namespace,) = [found for found in objects if found["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {found["metadata"].get("namespace") for found in objects if found["kind"] != "Namespace"} == {"allm"}
    gateway = next(found for found in objects if identity(found) == ("Deployment", "allm-gateway"))
    assert gateway["spec"]["template"]["spec"]["initContainers"][0]["name"] == "authorizer"
    models = next(found for found in objects if identity(found) == ("ConfigMap", "allm-models"))
    assert "qwen3-0.6b" in models["data"]["models.yaml"]


def test_a_difference_lists_removed_new_and_changed_lines() -> None:
    old = {"a": 1, "b": {"c": 2, "d": 3}, "env": [{"name": "x", "value": "1"}, {"name": "y", "value": "2"}], "l": [1]}
    new = {"b": {"c": 4, "d": 3}, "env": [{"name": "y", "value": "3"}, {"name": "z"}], "l": [2], "e": 5}
    assert difference(old, new) == {
        "a": None,
        "b": {"c": 4},
        "env": [{"name": "x", "$patch": "delete"}, {"name": "y", "value": "3"}, {"name": "z"}],
        "l": [2],
        "e": 5,
    }


def test_helm_errors_are_reported() -> None:
    with pytest.raises(RuntimeError, match="Additional property replica is not allowed"):
        helm_template([{"text": {"replica": 2}}])
