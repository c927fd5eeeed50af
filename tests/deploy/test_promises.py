"""Manifests match our code and each other: commands, settings, ports, probes, metrics."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from prometheus_client import REGISTRY

from gateway import stats
from k8s.render import Object
from services.auth.identity_keys import PUBLIC_NAME
from services.cli.main import app
from services.rpc.probe import LIVENESS, READINESS, STARTUP
from services.settings.settings import load_settings
from services.telemetry import metrics
from tests.case import case
from tests.deploy.known_settings import CERTIFICATES, FOREIGN, settings_names
from tests.deploy.renderings import ALL, RENDERINGS, containers, environment, pod_templates, rendering

ROOT = Path(__file__).parents[2]
PROBED = {(path, "envoy-metrics") for path in (stats.LIVE, stats.READY)}


def ours(name: str) -> Iterator[tuple[str, Object, Object]]:
    """Yields workload, Pod template and container of our services: a machine that only lends its GPUs runs none."""
    for which, template in pod_templates(rendering(name)):
        for container in containers(template):
            if container["name"] not in ("redis", "ray"):
                yield f"{which} {container['name']}", template, container


def commands(container: Object) -> Iterator[list[str]]:
    """Yields the command of a container and those of its probes."""
    yield container["command"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if "exec" in container.get(probe, {}):
            yield container[probe]["exec"]["command"]


def test_commands_exist() -> None:
    for name in RENDERINGS:
        with case(name=name):
            subcommands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
            for which, _, container in ours(name):
                for command in commands(container):
                    if command[:2] == ["python", "-m"]:
                        spec = importlib.util.find_spec(command[2])
                        assert spec and spec.origin, which
                        path = Path(spec.origin)
                        runnable = path.with_name("__main__.py") if path.name == "__init__.py" else path
                        assert '__name__ == "__main__"' in runnable.read_text(), which
                    else:
                        assert command[0] == "allm" and command[1] in subcommands, which


def test_settings_exist_and_take_their_values() -> None:
    for name in RENDERINGS:
        with case(name=name):
            for which, _, container in ours(name):
                names = [item["name"] for item in container["env"]]
                assert len(set(names)) == len(names), which
                assert set(names) - FOREIGN <= settings_names(), which
                taken = {
                    key: value for key, value in environment(container).items() if not key.startswith(CERTIFICATES)
                }
                load_settings(taken)


def test_ports_are_those_that_the_settings_open() -> None:
    for name in RENDERINGS:
        with case(name=name):
            for which, _, container in ours(name):
                settings = load_settings(
                    {k: v for k, v in environment(container).items() if not k.startswith(CERTIFICATES)}
                )
                opened = {settings.service.metrics_port}
                if container["name"] == "gateway":
                    opened = {settings.gateway.port, settings.gateway.stats_port}
                else:
                    listens = (settings.service.listen, settings.service.health_listen)
                    opened |= {int(listen.rpartition(":")[2]) for listen in listens if not listen.startswith("unix:")}
                assert {port["containerPort"] for port in container["ports"]} == opened, which


def test_probes_use_existing_endpoints() -> None:
    for name in RENDERINGS:
        with case(name=name):
            names = {STARTUP, READINESS, LIVENESS}
            for which, _, container in ours(name):
                settings = load_settings(
                    {k: v for k, v in environment(container).items() if not k.startswith(CERTIFICATES)}
                )
                for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                    if kind == "readinessProbe" and container["name"] == "authorizer":
                        continue  # a sidecar's readiness counts for its Pod, and the Pod's gateway reports that itself
                    probe = container[kind]
                    if "grpc" in probe:
                        assert probe["grpc"]["service"] in names, which
                        assert settings.service.health_listen.endswith(f":{probe['grpc']['port']}"), which
                        assert kind.startswith(probe["grpc"]["service"].removesuffix("ness").removesuffix("up")[:4]), (
                            which
                        )
                    elif "httpGet" in probe:
                        # No flood of clients reaches this listener. It is not TLS, and open beyond the loopback.
                        expected = stats.READY if kind == "readinessProbe" else stats.LIVE
                        assert probe["httpGet"] == {"path": expected, "port": "envoy-metrics"}, which
                        assert settings.gateway.stats_host == "0.0.0.0", which  # noqa: S104 (compared, not bound)
                    else:
                        assert probe["exec"]["command"], which
                    assert ("httpGet" in probe) == (container["name"] == "gateway"), which


def test_no_liveness_probe_is_content_with_a_connection() -> None:
    """The kernel accepts a connection also for a process that hangs."""
    for name in RENDERINGS:
        with case(name=name):
            for which, template in pod_templates(rendering(name)):
                for container in containers(template):
                    assert "tcpSocket" not in container["livenessProbe"], which


def test_pods_have_time_to_drain() -> None:
    for name in RENDERINGS:
        with case(name=name):
            for which, template, container in ours(name):
                if container["name"] == "authorizer":
                    continue
                settings = load_settings(
                    {k: v for k, v in environment(container).items() if not k.startswith(CERTIFICATES)}
                )
                needs = settings.service.drain_delay_seconds + settings.service.drain_seconds
                needs += container["lifecycle"]["preStop"]["sleep"]["seconds"]
                assert template["spec"]["terminationGracePeriodSeconds"] >= needs + 15, which


def selects(selector: Object, labels: Object) -> bool:
    """Checks that a selector with matchLabels, or a Service's plain one, matches an object with these labels."""
    return (selector.get("matchLabels", selector)).items() <= labels.items()


def test_objects_refer_to_others_that_are_there() -> None:
    for name in RENDERINGS:
        with case(name=name):
            objects = rendering(name)
            there = {(found["kind"], found["metadata"]["name"]) for found in objects}
            templates = dict(pod_templates(objects))
            assert len(there) == len(objects)
            for found in objects:
                spec, which = found.get("spec", {}), f"{found['kind']}/{found['metadata']['name']}"
                match found["kind"]:
                    case "Service":
                        chosen = [
                            each for each in templates.values() if selects(spec["selector"], each["metadata"]["labels"])
                        ]
                        assert len(chosen) == 1, which
                        ports = [port for each in containers(chosen[0]) for port in each["ports"]]
                        known = {port["name"] for port in ports}
                        keys = any(each["name"] == "authorizer" for each in containers(chosen[0]))
                        # Without an authorizer its port does not exist, and Kubernetes leaves it out.
                        absent = {"auth-metrics"} if which == "Service/allm-gateway-metrics" and not keys else set()
                        assert {port["targetPort"] for port in spec["ports"]} - known == absent, which
                    case "PodDisruptionBudget":
                        chosen = [
                            name
                            for name, each in templates.items()
                            if selects(spec["selector"], each["metadata"]["labels"])
                        ]
                        assert len(chosen) == 1 or [name.partition(" ")[2] for name in chosen] == [
                            "leader",
                            "worker",
                        ], which
                    case "ScaledObject" | "HorizontalPodAutoscaler":
                        target = (spec["scaleTargetRef"].get("kind", "Deployment"), spec["scaleTargetRef"]["name"])
                        assert target in there, which
                        (scaled,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == target]
                        assert "replicas" not in scaled["spec"], "the autoscaler's number would be overwritten"
                    case "Ingress":
                        for rule in spec["rules"]:
                            assert ("Service", rule["http"]["paths"][0]["backend"]["service"]["name"]) in there, which
                    case "ServiceMonitor":
                        ports = {
                            port["name"]
                            for each in objects
                            if each["kind"] == "Service"
                            for port in each["spec"]["ports"]
                        }
                        assert {endpoint["port"] for endpoint in spec["endpoints"]} <= ports, which
                        paths = {endpoint["port"]: endpoint["path"] for endpoint in spec["endpoints"]}
                        assert paths == {"metrics": "/metrics", "auth-metrics": "/metrics", "envoy-metrics": stats.PATH}


def test_each_pod_has_only_its_own_private_key() -> None:
    """The gateway's container, which all callers reach, has none; the catalog's is for the commands in its Pod."""
    roles = {name: name for name in ("authorizer", "text", "audio", "image")} | {"catalog": "operator"}
    for name in ("chart: keys", "kustomize: keys", f"kustomize: {ALL}", "chart: several-machines"):
        with case(name=name):
            for which, template, container in ours(name):
                role = roles.get(container["name"])
                sources = {each["name"]: each for each in template["spec"]["volumes"]}
                mounted = {
                    each["mountPath"]: sources.get(each["name"], {}).get("secret", {}).get("secretName", "")
                    for each in container["volumeMounts"]
                }
                private = {path: secret for path, secret in mounted.items() if secret.startswith("allm-identity")}
                values = environment(container)
                if role is None:
                    assert not private and "ALLM_IDENTITY_KEY_FILE" not in values, which
                    continue
                assert private == {"/etc/allm/identity": f"allm-identity-{role}"}, which
                assert values["ALLM_IDENTITY_KEY_FILE"] == f"/etc/allm/identity/{role}.key", which
                folder, _, file = values["ALLM_IDENTITY_PUBLIC_KEYS_FILE"].rpartition("/")
                assert (folder in mounted, file) == (True, PUBLIC_NAME), which


def test_mounts_have_volumes_and_volumes_have_sources() -> None:
    for name in RENDERINGS:
        with case(name=name):
            objects = rendering(name)
            there = {(found["kind"], found["metadata"]["name"]) for found in objects}
            claims = {
                claim["metadata"]["name"]: found["metadata"]["name"]
                for found in objects
                for claim in found.get("spec", {}).get("volumeClaimTemplates", [])
            }
            for which, template in pod_templates(objects):
                volumes = {volume["name"] for volume in template["spec"].get("volumes", [])}
                mounted = {mount["name"] for each in containers(template) for mount in each["volumeMounts"]}
                assert mounted - volumes <= claims.keys(), which
                assert volumes <= mounted, f"{which}: a volume that nobody mounts"
                for volume in template["spec"].get("volumes", []):
                    if claim := volume.get("persistentVolumeClaim", {}).get("claimName"):
                        assert ("PersistentVolumeClaim", claim) in there or claim == "weights", which
                    if config := volume.get("configMap", {}).get("name"):
                        # `allm identity create` makes the public keys, not the chart.
                        assert ("ConfigMap", config) in there or config == "allm-identity", which


def test_addresses_lead_to_services_of_the_same_rendering() -> None:
    for name in RENDERINGS:
        with case(name=name):
            objects = rendering(name)
            services = {
                (found["metadata"]["name"], port["port"])
                for found in objects
                if found["kind"] == "Service"
                for port in found["spec"]["ports"]
            }
            for which, _, container in ours(name):
                values = environment(container)
                settings = load_settings({k: v for k, v in values.items() if not k.startswith(CERTIFICATES)})
                addresses = [
                    settings.model.catalog,
                    *settings.cluster.text,
                    *settings.cluster.audio,
                    *settings.cluster.image,
                ]
                addresses += [address for _, group in settings.cluster.groups for address in group]
                addresses += re.findall(r"redis://([^/]+)/", values.get("ALLM_REDIS_URL", ""))
                for address in addresses:
                    host, _, port = address.rpartition(":")
                    assert host == "127.0.0.1" or (host, int(port)) in services, f"{which}: {address}"


def test_groups_are_the_same_for_the_gateway_and_all_text_services() -> None:
    seen: dict[str, Any] = {}
    for which, _, container in ours("chart: groups"):
        if container["name"] in ("gateway", "text"):
            seen[which] = environment(container)
    assert len(seen) == 5
    assert {values["ALLM_TEXT_GROUP_MODELS"] for values in seen.values()} == {
        "code=coder*;huge=multi-node/*;large=llama-70b,qwen-72b*"
    }
    gateway = load_settings(
        {k: v for k, v in seen["Deployment/allm-gateway gateway"].items() if not k.startswith(CERTIFICATES)}
    )
    assert dict(gateway.cluster.groups) == {
        "code": ("allm-text-code:50051",),
        "huge": ("allm-text-huge:50051",),
        "large": ("allm-text-large:50051",),
    }
    assert seen["Deployment/allm-text-large text"]["ALLM_TEXT_GROUP"] == "large"
    assert seen["Deployment/allm-text-large text"]["ALLM_TENSOR_PARALLEL"] == "4"
    assert "ALLM_TEXT_GROUP" not in seen["Deployment/allm-text text"]


def promised_metrics(objects: list[Object]) -> set[str]:
    found = set()
    for each in objects:
        if each["kind"] == "ScaledObject":
            for trigger in each["spec"]["triggers"]:
                found |= set(re.findall(r"\b(?:allm|envoy)_\w+(?=\{)", trigger["metadata"]["query"]))
        if each["kind"] == "HorizontalPodAutoscaler":
            found |= {metric["pods"]["metric"]["name"] for metric in each["spec"]["metrics"]}
    return found


def test_metrics_exist() -> None:
    assert metrics.RUNNING
    known = {sample.name for metric in REGISTRY.collect() for sample in metric.samples} | {
        metric.name for metric in REGISTRY.collect()
    }
    # Envoy's: tests/deploy/test_refusals.py verifies it with a real one.
    known |= {"envoy_cluster_upstream_cx_none_healthy"}
    names = set().union(*(promised_metrics(rendering(name)) for name in RENDERINGS))
    assert names == {
        "allm_requests_waiting",
        "allm_requests_running",
        "envoy_cluster_upstream_cx_none_healthy",
    }
    assert names <= known
