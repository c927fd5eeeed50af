"""Models on several machines: the Pods of a LeaderWorkerSet match each other and the programs that they run."""

from __future__ import annotations

import pytest
import yaml

from k8s.render import CHART, Object, helm_template
from services.catalog.registration.models_file import read_models
from services.settings.settings import load_settings
from services.text import ray_node
from tests.deploy.known_settings import CERTIFICATES, FOREIGN, settings_names
from tests.deploy.renderings import containers, environment, pod_templates, rendering

NAMES = ["kustomize: multi-node", "kustomize: everything", "chart: several-machines", "chart: model-images"]
# The kubelet's values for variables.
VALUES = {"$(VLLM_HOST_IP)": "10.0.0.7", "$(LWS_LEADER_ADDRESS)": "allm-0.allm.allm"}
# StatefulSets append a hash of eleven characters to their names, in a label limited to 63.
LONGEST_SET = 52


def sets(name: str) -> list[Object]:
    found = [each for each in rendering(name) if each["kind"] == "LeaderWorkerSet"]
    assert found
    return found


def roles(found: Object) -> tuple[Object, Object]:
    """Returns the leader's and the worker's container."""
    (leader,), (worker,) = (containers(template) for _, template in pod_templates([found]))
    return leader, worker


def arguments(container: Object) -> list[str]:
    """Returns the arguments of its command, with variables expanded."""
    command: list[str] = container["command"]
    assert command[:3] == ["python", "-m", ray_node.__spec__.name]
    declared = {item["name"] for item in container["env"]} | {"LWS_LEADER_ADDRESS"}
    for variable, value in VALUES.items():
        if any(variable in word for word in command):
            assert variable[2:-1] in declared
        command = [word.replace(variable, value) for word in command]
    return command[3:]


@pytest.mark.parametrize("name", NAMES)
def test_commands_say_what_the_machines_are(name: str) -> None:
    for found in sets(name):
        template = found["spec"]["leaderWorkerTemplate"]
        leader, worker = roles(found)
        leads, works = (ray_node.read_options(arguments(each)) for each in (leader, worker))
        assert (leads.role, works.role) == ("leader", "worker")
        assert leads.nodes == template["size"]
        assert works.leader == VALUES["$(LWS_LEADER_ADDRESS)"]
        for options, container in ((leads, leader), (works, worker)):
            assert options.ip == VALUES["$(VLLM_HOST_IP)"]
            assert options.gpus == container["resources"]["limits"]["nvidia.com/gpu"]
        assert environment(leader)["ALLM_RAY_ADDRESS"] == f"$(VLLM_HOST_IP):{ray_node.HEAD_PORT}"
        assert leader["image"] == worker["image"]
        assert "text-vllm-cuda" in leader["image"]
        assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
        assert found["spec"]["startupPolicy"] == "LeaderCreated"


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_is_looked_at_where_its_ray_listens_and_has_time_to_wait_for_the_leader(name: str) -> None:
    for found in sets(name):
        (_, _), (_, template) = pod_templates([found])
        leader, worker = roles(found)
        (port,) = worker["ports"]
        assert port["containerPort"] == ray_node.NODE_PORT
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert worker[kind]["grpc"] == {"port": port["containerPort"]}
        # The leader loads for as long as the worker may search for it.
        assert worker["startupProbe"]["failureThreshold"] == leader["startupProbe"]["failureThreshold"]
        names = [item["name"] for item in worker["env"]]
        assert len(set(names)) == len(names)
        assert set(names) - FOREIGN <= settings_names()
        assert not [each for each in names if each.startswith((*CERTIFICATES, "ALLM_AUTH", "ALLM_IDENTITY"))]
        service = load_settings(environment(worker)).service
        waits = worker["lifecycle"]["preStop"]["sleep"]["seconds"] + service.drain_delay_seconds + service.drain_seconds
        waits += ray_node.LEADER_SECONDS + ray_node.STOP_SECONDS
        assert template["spec"]["terminationGracePeriodSeconds"] >= waits


@pytest.mark.parametrize("name", NAMES)
def test_all_machines_find_the_models_at_the_same_path(name: str) -> None:
    for found in sets(name):
        (_, leader), (_, worker) = pod_templates([found])
        places = []
        for template in (leader, worker):
            volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
            mounts = template["spec"]["containers"][0]["volumeMounts"]
            assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
            assert {"/dev/shm", "/tmp"} <= {each["mountPath"] for each in mounts}  # noqa: S108 (in a container)
            places.append({each["mountPath"]: volumes[each["name"]] for each in mounts if "model" in each["mountPath"]})
        assert places[0] == places[1]
        assert "persistentVolumeClaim" in places[0]["/models"]


@pytest.mark.parametrize("name", NAMES)
def test_only_leaders_are_asked_and_names_are_short_enough(name: str) -> None:
    services = {each["metadata"]["name"]: each for each in rendering(name) if each["kind"] == "Service"}
    for found in sets(name):
        own = found["metadata"]["name"]
        assert own not in services, "the controller makes one of this name, for leaders that are not ready, too"
        assert len(f"{own}-{found['spec'].get('replicas', 100) - 1}") <= LONGEST_SET
        (_, leader), (_, worker) = pod_templates([found])
        asked = services[own.removesuffix("-nodes")]["spec"]["selector"].items()
        assert asked <= leader["metadata"]["labels"].items()
        assert not asked <= worker["metadata"]["labels"].items()


def test_a_secret_of_ray_is_the_same_for_both() -> None:
    (found,) = sets("chart: several-machines")
    for container in roles(found):
        values = environment(container)
        assert values["RAY_AUTH_MODE"] == "token"
        place, _, key = values["RAY_AUTH_TOKEN_PATH"].rpartition("/")
        assert key == "token"
        assert place in {each["mountPath"] for each in container["volumeMounts"]}
    for name in NAMES[:2]:
        assert not any("RAY_AUTH_MODE" in environment(each) for each in roles(sets(name)[0]))


def test_the_example_of_values_makes_two_replicas_that_the_gateway_knows() -> None:
    values = yaml.safe_load((CHART.parents[1] / "examples/helm/multi-node.yaml").read_text())
    objects = helm_template([values])
    (found,) = [each for each in objects if each["kind"] == "LeaderWorkerSet"]
    assert (found["spec"]["replicas"], found["spec"]["leaderWorkerTemplate"]["size"]) == (2, 2)
    (models,) = [each["data"] for each in objects if each["metadata"]["name"] == "allm-models" and "data" in each]
    read = read_models(models["models.yaml"].encode())
    assert not read.problems
    assert [each.id for each in read.declarations] == ["qwen3-0.6b", "large"]
    gateway = next(containers(each)[-1] for which, each in pod_templates(objects) if which.endswith("allm-gateway"))
    assert environment(gateway)["ALLM_GATEWAY_TEXT_GROUPS"] == "large=allm-text-large:50051"
    leader, _ = roles(found)
    settings = load_settings({k: v for k, v in environment(leader).items() if not k.startswith(CERTIFICATES)})
    assert settings.text.load_seconds == values["textGroups"]["large"]["startupSeconds"]


def test_a_group_on_one_machine_may_have_the_image_with_vllm() -> None:
    images = {
        which: containers(template)[0]["image"]
        for which, template in pod_templates(rendering("chart: several-machines"))
    }
    assert images["Deployment/allm-text"].startswith("allm-text-vllm:")
    assert images["Deployment/allm-text-split"].startswith("allm-text-vllm-cuda:")
    assert images["Deployment/allm-audio"].startswith("allm-audio:")
