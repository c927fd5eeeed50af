"""The connections that a rendering's network policies allow, evaluated as a network plugin would."""

from __future__ import annotations

import pytest

from k8s.render import Object
from tests.deploy.renderings import rendering

PODS = ("gateway", "catalog", "text", "audio", "image", "redis")
# Pods of a group of models that several machines serve together.
MACHINES = {"leader": "text", "worker": "text-worker"}
OUTSIDE = "outside"
PROMETHEUS = "prometheus"


def labels(pod: str) -> Object:
    found: Object = {"app.kubernetes.io/component": MACHINES.get(pod, pod)}
    if is_ours(pod):
        found |= {"app.kubernetes.io/name": "allm", "app.kubernetes.io/instance": "allm"}
    if pod in MACHINES:
        found |= {"allm/group": "huge"}
    return found


def is_ours(pod: str) -> bool:
    return pod in PODS or pod in MACHINES


def chosen(selector: Object, pod: str) -> bool:
    own = labels(pod)
    wanted = selector.get("matchLabels", {}).items() <= own.items()
    return wanted and all(own.get(rule["key"]) in rule["values"] for rule in selector.get("matchExpressions", []))


def peers(rule: Object, key: str, pod: str) -> bool:
    """Checks that a rule covers the peer; a rule that names no peer covers every peer."""
    if key not in rule:
        return True
    for peer in rule[key]:
        if "namespaceSelector" in peer:
            namespace = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
            if pod == PROMETHEUS and namespace == "monitoring":
                return True
        elif is_ours(pod) and chosen(peer["podSelector"], pod):
            return True
    return False


def allowed(policies: list[Object], source: str, target: str, port: int) -> bool:
    """Checks that the source may open a connection and the target may accept it."""

    def side(pod: str, other: str, direction: str, key: str) -> bool:
        if not is_ours(pod):
            return True
        about = [
            policy["spec"]
            for policy in policies
            if chosen(policy["spec"]["podSelector"], pod) and direction.capitalize() in policy["spec"]["policyTypes"]
        ]
        assert about, f"{pod} is open to everybody"
        return any(
            peers(rule, key, other) and ("ports" not in rule or any(each["port"] == port for each in rule["ports"]))
            for spec in about
            for rule in spec.get(direction, [])
        )

    return side(source, target, "egress", "to") and side(target, source, "ingress", "from")


def connections(name: str) -> set[tuple[str, str, int]]:
    policies = [found for found in rendering(name) if found["kind"] == "NetworkPolicy"]
    ends = (*PODS, OUTSIDE, PROMETHEUS)
    ports = (53, 443, 6379, 8080, 9464, 9465, 9901, 50050, 50051, 50052)
    return {
        (source, target, port)
        for source in ends
        for target in ends
        for port in ports
        if source != target and {source, target} & set(PODS) and allowed(policies, source, target, port)
    }


BASE = {
    *((other, "gateway", 8080) for other in (OUTSIDE, PROMETHEUS)),
    *(("gateway", service, 50051) for service in ("text", "audio", "image")),
    *((caller, "catalog", 50050) for caller in ("gateway", "text", "audio", "image")),
    *((service, "redis", 6379) for service in ("text", "audio", "image")),
    *((service, other, 443) for service in ("catalog", "text", "audio", "image") for other in (OUTSIDE, PROMETHEUS)),
    *((pod, other, 53) for pod in PODS for other in (OUTSIDE, PROMETHEUS)),
}
# With keys the authorizer beside the gateway shares its counts of requests.
KEYS = {("gateway", "redis", 6379)}
METRICS = {(PROMETHEUS, pod, port) for pod in PODS for port in (9464, 9465, 9901)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kustomize: base", BASE),
        ("kustomize: everything", BASE | KEYS | METRICS),
        ("chart: defaults", BASE),
        ("chart: groups", BASE | KEYS | METRICS),
    ],
)
def test_only_these_connections_are_possible(name: str, expected: set[tuple[str, str, int]]) -> None:
    assert connections(name) == expected


@pytest.mark.parametrize("name", ["kustomize: multi-node", "chart: several-machines"])
def test_only_the_machines_of_a_group_reach_each_others_ray(name: str) -> None:
    policies = [found for found in rendering(name) if found["kind"] == "NetworkPolicy"]
    ends = (*PODS, *MACHINES, OUTSIDE)
    ports = (53, 443, 6379, 6380, 9464, 40000, 50050, 50051)
    found = {
        (source, target, port)
        for source in ends
        for target in ends
        for port in ports
        if source != target and {source, target} & set(MACHINES) and allowed(policies, source, target, port)
    }
    assert found == {
        *((one, other, port) for one, other in (("leader", "worker"), ("worker", "leader")) for port in ports),
        ("gateway", "leader", 50051),
        ("leader", "catalog", 50050),
        ("leader", "redis", 6379),
        ("leader", OUTSIDE, 443),
        ("leader", OUTSIDE, 53),
        ("worker", OUTSIDE, 53),
    }


def test_callers_can_be_narrowed_down() -> None:
    assert (OUTSIDE, "gateway", 8080) not in connections("chart: open")
