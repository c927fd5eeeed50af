"""Every Pod meets the restricted profile of the Pod Security Standards, and a few stricter rules."""

from __future__ import annotations

from k8s.render import Object
from tests.case import case
from tests.deploy.renderings import RENDERINGS, containers, pod_templates, rendering

# Volume types of the restricted profile. Image volumes are newer than that list, which does not name them:
# docs/kubernetes.md explains the effect on a namespace that enforces it.
ALLOWED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
HOST = ("hostNetwork", "hostPID", "hostIPC")


def breaches(template: Object) -> list[str]:
    """Lists a Pod template's violations of the profile."""
    spec = template["spec"]
    pod = spec.get("securityContext", {})
    found = [name for name in HOST if spec.get(name)]
    for volume in spec.get("volumes", []):
        found += [f"volume {volume['name']}: {kind}" for kind in volume.keys() - {"name"} - ALLOWED_VOLUMES]
    for key in ("sysctls", "windowsOptions", "seLinuxOptions"):
        found += [key] if key in pod else []
    for container in containers(template):
        name, own = container["name"], container.get("securityContext", {})
        effective = {**pod, **own}
        if own.get("allowPrivilegeEscalation") is not False:
            found.append(f"{name}: allowPrivilegeEscalation")
        if own.get("privileged"):
            found.append(f"{name}: privileged")
        if "ALL" not in own.get("capabilities", {}).get("drop", []):
            found.append(f"{name}: capabilities are not dropped")
        if set(own.get("capabilities", {}).get("add", [])) - {"NET_BIND_SERVICE"}:
            found.append(f"{name}: capabilities are added")
        if effective.get("runAsNonRoot") is not True or effective.get("runAsUser") == 0:
            found.append(f"{name}: may run as root")
        if effective.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            found.append(f"{name}: no seccomp profile")
        found += [f"{name}: hostPort" for port in container.get("ports", []) if port.get("hostPort")]
    return found


def surplus(template: Object) -> list[str]:
    """Lists a Pod template's violations of the stricter rules."""
    found = [] if template["spec"].get("automountServiceAccountToken") is False else ["a token of the Kubernetes API"]
    for container in containers(template):
        if container["securityContext"].get("readOnlyRootFilesystem") is not True:
            found.append(f"{container['name']}: its root can be written to")
        resources = container["resources"]
        if not {"cpu", "memory"} <= resources["requests"].keys() or "memory" not in resources["limits"]:
            found.append(f"{container['name']}: requests or limits are missing")
    return found


def test_the_restricted_profile_holds() -> None:
    for name in RENDERINGS:
        with case(name=name):
            seen = 0
            for which, template in pod_templates(rendering(name)):
                seen += 1
                expected = (
                    ["volume model-qwen: image"] if name == "chart: model-images" and "redis" not in which else []
                )
                if "gateway" in which:
                    expected = []
                assert breaches(template) == expected, which
                assert surplus(template) == [], which
            assert seen >= 3


def test_breakage_would_be_detected() -> None:
    template: Object = {
        "spec": {
            "hostNetwork": True,
            "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
            "containers": [{"name": "c", "ports": [{"hostPort": 1}], "securityContext": {"privileged": True}}],
        }
    }
    assert len(breaches(template)) == 8
