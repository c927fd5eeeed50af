"""All settings that allm reads from its environment: read once, checked, and frozen.

Nothing else in the code base reads `os.environ`. A wrong value stops the start; the error names the variable and the
allowed values (`SettingError`). Each field with a string below it is a setting (setting.py); its dataclass names its
section of docs/settings.md.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import ClassVar

from services.settings import setting
from services.settings.gateway_settings import ADDRESS, AuthSettings, ClusterSettings, GatewaySettings, read_cluster
from services.settings.modality_settings import (
    MAX_BYTES,
    MIB,
    MODALITIES,
    AudioSettings,
    ImageSettings,
    StoreSettings,
    TextSettings,
)
from services.settings.setting import DEFAULT_HOME, HOME_VARIABLE, MAX_PORT, SettingError, read
from services.settings.tls_settings import TlsSettings, read_tls
from services.settings.trace_settings import TraceSettings

DEFAULT_CATALOG = "127.0.0.1:50050"
# Settings of earlier releases, and their successors.
REMOVED = {"ALLM_IDENTITY_SECRET_FILE": "ALLM_IDENTITY_KEY_FILE and ALLM_IDENTITY_PUBLIC_KEYS_FILE (docs/keys.md)"}
PROCESSES = ClusterSettings.SECTION
PREFIX = "ALLM_"
SIMILAR = 0.75  # from 0 to 1: names with this similarity or more are taken for a misspelling
_SERVICE = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_\d+_(TCP|UDP))")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Settings that every service process shares."""

    SECTION: ClassVar = "Starting, stopping, watching"
    listen: str = setting.text("ALLM_LISTEN", "127.0.0.1:50051", "services", allowed=ADDRESS, section=PROCESSES)
    """gRPC address of this service; `allm serve` sets it"""
    health_listen: str = setting.text("ALLM_HEALTH_LISTEN", "", "services", allowed=ADDRESS, section=PROCESSES)
    """address of a second gRPC port of the service, without TLS and only for health checks, for a kubelet's probes:
    `startup`, `readiness`, `liveness`"""
    log_level: str = setting.choice("ALLM_LOG_LEVEL", "info", ("debug", "info", "warning", "error"), "all")
    """minimum level of log lines"""
    metrics_host: str = setting.text("ALLM_METRICS_HOST", "127.0.0.1", "serve, services", allowed="address")
    """address of the service's metrics listener, which serves Prometheus' `/metrics`"""
    metrics_port: int = setting.integer("ALLM_METRICS_PORT", 9464, 0, MAX_PORT, "", "serve, services")
    """port of the service's metrics listener; 0 picks a free port, and so does `allm serve` if this is not set and the
    default is in use"""
    lifeline: int = setting.integer("ALLM_LIFELINE_FD", -1, -1, 1_000_000, "", setting.INTERNAL)
    """the supervisor's pipe; the service stops once it closes; -1: none"""
    drain_delay_seconds: float = setting.seconds("ALLM_DRAIN_DELAY_SECONDS", 3.0, 0.0, 600.0, "gateway, services")
    """time after SIGTERM for load balancers to select other replicas"""
    drain_seconds: float = setting.seconds("ALLM_DRAIN_SECONDS", 30.0, 0.0, 3600.0, "gateway, services")
    """time after `ALLM_DRAIN_DELAY_SECONDS` for running requests to finish"""
    hang_seconds: float = setting.seconds("ALLM_HANG_SECONDS", 15.0, 0.0, 3600.0, "serve")
    """a process of `allm serve` that answers nothing for so long is killed and restarted, one that computes meanwhile
    after ten times as long; 0: never ([resilience.md](resilience.md#what-the-supervisor-does))"""
    max_body_bytes: int  # GatewaySettings.max_body_bytes; gRPC messages get a little more
    slow_client_seconds: float = setting.seconds(
        "ALLM_SLOW_CLIENT_SECONDS", 60.0, 0.1, 3600.0, "services", section="Text models"
    )
    """a request is cancelled if its caller reads nothing of the answer for so long"""
    unknown_parameters: str = setting.choice(
        "ALLM_UNKNOWN_PARAMETERS", "ignore", ("ignore", "refuse"), "services", section="Text models"
    )
    """whether requests with unknown parameters are answered, with `x-allm-ignored-parameters` in the response, or
    refused as OpenAI does ([errors.md](errors.md#parameters-without-effect))"""
    bytes_in_flight: int = setting.integer(
        "ALLM_BYTES_IN_FLIGHT", 512 * MIB, MIB, MAX_BYTES, "bytes", "services", section="Who may call"
    )
    """bytes of the bodies of all requests to models in a service, at least one of `ALLM_MAX_BODY_BYTES`. One key may
    use all of them; when they are used up, only keys below an equal share get more, up to twice as many in all. Forms
    with sound or images have such limits of their own"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Sources and storage of models, and the catalog."""

    SECTION: ClassVar = "Folders and models"
    folder: Path = setting.path("ALLM_MODELS_DIR", "$ALLM_HOME/models", "serve, text, audio, image, allm")
    """folder for model files from the hub"""
    roots: tuple[Path, ...] = setting.folders(
        "ALLM_MODEL_ROOTS",
        "catalog, text, audio, image",
        allowed="list of folders",
        means="`$ALLM_MODELS_DIR`",
    )
    """the only folders that `file://` sources may point to, besides the files and folders of `ALLM_MODELS`"""
    models_file: Path | None = setting.file("ALLM_MODELS_FILE", "catalog, serve")
    """YAML or JSON file of models that the catalog registers, updates and removes automatically, see
    [models.md](models.md#a-file-of-models)"""
    artifacts: bool = setting.switch("ALLM_ARTIFACTS", True, "catalog", on="auto")
    """whether official optimised execution caches are used; `auto`: where device and runtime match"""
    publishers: tuple[str, ...] = setting.names(
        "ALLM_ARTIFACT_PUBLISHERS", "catalog", ("openai/*", "nvidia/*"), allowed="list of `org/*` or `org/name`"
    )
    """publishers whose execution caches may be fetched"""
    keep_canonical: bool = setting.switch("ALLM_KEEP_CANONICAL", True, MODALITIES)
    """whether a model's own files are fetched and kept, too, while an execution cache serves it; they are dropped first
    when the disk is full; `off` deletes them ([models.md](models.md#official-execution-caches))"""
    supported: Path | None = setting.file("ALLM_SUPPORTED_MODELS", "catalog", means="the bundled file")
    """JSON file that assigns execution caches to models"""
    catalog: str = setting.text(
        "ALLM_CATALOG",
        DEFAULT_CATALOG,
        "gateway, authorizer, text, audio, image, allm",
        allowed=ADDRESS,
        section=PROCESSES,
    )
    """gRPC address of the catalog; `allm serve` sets it"""
    replica: str = setting.text("ALLM_REPLICA", "", "services", means="host name and process id", section=PROCESSES)
    """name of this process, unique among all replicas; `allm serve` sets it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencySettings:
    """Memory budgets, and which models are loaded. Zero bytes mean: no limit but the machine's."""

    SECTION: ClassVar = "Memory"
    folder: Path = Path("$ALLM_HOME/ledger")  # the ledger that the services of a host share
    threshold: float = setting.number("ALLM_MEMORY_THRESHOLD", 0.9, 0.1, 1.0, "share", MODALITIES)
    """share of the host's memory above which idle models are unloaded, the least recently used first, and no more are
    admitted; of a GPU's memory half as much stays free: 0.95 of it with 0.9"""
    host_bytes: int = setting.integer(
        "ALLM_HOST_MEMORY_BYTES",
        0,
        0,
        MAX_BYTES,
        "bytes",
        MODALITIES,
        means="the whole memory, or the container's limit",
    )
    """host memory that all models of this host may use together"""
    device_bytes: int = setting.integer(
        "ALLM_DEVICE_MEMORY_BYTES", 0, 0, MAX_BYTES, "bytes", MODALITIES, means="the whole memory"
    )
    """memory of each GPU that all models of this host may use together"""
    model_bytes: int = setting.integer(
        "ALLM_MODEL_MEMORY_BYTES", 0, 0, MAX_BYTES, "bytes", MODALITIES, means="no separate limit"
    )
    """memory that one model may use"""
    idle_seconds: float = setting.seconds("ALLM_IDLE_SECONDS", 0.0, 0.0, 31_536_000.0, MODALITIES, means="never")
    """a model that is idle for so long is unloaded"""
    max_models: int = setting.integer(
        "ALLM_MAX_LOADED_MODELS", 0, 0, 10_000, "models", MODALITIES, means="as many as fit"
    )
    """maximum number of models that a service keeps in memory"""
    preload: tuple[str, ...] = setting.names("ALLM_PRELOAD", MODALITIES)
    """ids or aliases of models that are loaded when the service starts"""
    visible_devices: str = setting.text("CUDA_VISIBLE_DEVICES", "", setting.INTERNAL)
    """CUDA's own variable: the GPUs that workers see; empty: all"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a process."""

    SECTION: ClassVar = "Folders and models"
    home: Path = setting.path(HOME_VARIABLE, DEFAULT_HOME, "all")
    """folder for logs and state, which only its owner may enter (mode 0700)"""
    models: tuple[tuple[str, Path], ...] = setting.pairs(
        "ALLM_MODELS",
        "id=/path/m.gguf",
        lambda path: Path(path).expanduser(),
        "serve",
        means="the demo models, if no model is registered",
    )
    """models that `allm serve` registers when it starts: GGUF files, `.safetensors` checkpoints of image models, `.pt`
    files of Whisper, or folders with safetensors, a Whisper model or a diffusers pipeline"""
    aliases: tuple[tuple[str, str], ...] = setting.pairs("ALLM_ALIASES", "alias=id", str, "serve")
    """further names of models: with `gpt-4o=my-model`, an application can keep its model name"""
    text_replicas: int = setting.integer("ALLM_TEXT_REPLICAS", 1, 1, 64, "processes", "serve", section=PROCESSES)
    """number of text service processes that `allm serve` runs"""
    audio_replicas: int = setting.integer("ALLM_AUDIO_REPLICAS", 1, 0, 64, "processes", "serve", section=PROCESSES)
    """number of audio service processes that `allm serve` runs; 0: none"""
    image_replicas: int = setting.integer("ALLM_IMAGE_REPLICAS", 1, 0, 64, "processes", "serve", section=PROCESSES)
    """number of image service processes that `allm serve` runs; 0: none"""
    auth: AuthSettings
    gateway: GatewaySettings
    tls: TlsSettings
    model: ModelSettings
    service: ServiceSettings
    cluster: ClusterSettings
    trace: TraceSettings
    text: TextSettings
    store: StoreSettings
    audio: AudioSettings
    image: ImageSettings
    residency: ResidencySettings


def unknown_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of `environ` that are named as settings and are none, each with the most similar setting.

    This is empty if none is similar. The variables in which Kubernetes names services are left out.
    """
    known = {found.name.removeprefix(PREFIX): found.name for _, _, found in setting.declared(Settings)}
    given = (name.removeprefix(PREFIX) for name in environ if name.startswith(PREFIX) and not _SERVICE.search(name))
    unknown = sorted(name for name in given if name not in known)
    nearest = {name: get_close_matches(name, known, 1, SIMILAR) for name in unknown}
    return {PREFIX + name: known[found[0]] if found else "" for name, found in nearest.items()}


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Reads all settings from `environ` (default: the process's own).

    Raises:
        SettingError: a variable has a value that is not allowed.
    """
    environ = os.environ if environ is None else environ
    for name, successor in REMOVED.items():
        if value := environ.get(name, "").strip():
            raise SettingError(name, value, f"unset, in favour of {successor}")
    auth, tls = read(AuthSettings, environ), read_tls(environ)
    gateway = read(GatewaySettings, environ, auth=auth.mode)
    model, image = read(ModelSettings, environ), read(ImageSettings, environ)
    url = image.public_url or setting.parse_url("ALLM_PUBLIC_URL", _url(gateway, "https" if tls.edge else "http"))
    return read(
        Settings,
        environ,
        auth=auth,
        gateway=gateway,
        tls=tls,
        model=replace(
            model,
            roots=model.roots or (model.folder,),
            replica=model.replica or f"{socket.gethostname()}-{os.getpid()}",
        ),
        service=read(ServiceSettings, environ, max_body_bytes=gateway.max_body_bytes),
        cluster=read_cluster(environ),
        trace=read(TraceSettings, environ),
        text=read(TextSettings, environ),
        store=read(StoreSettings, environ),
        audio=read(AudioSettings, environ),
        image=replace(image, public_url=url),
        residency=read(ResidencySettings, environ),
    )


def _url(gateway: GatewaySettings, scheme: str) -> str:
    """Returns the gateway's URL on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(gateway.host, gateway.host)  # noqa: S104 (nothing is bound here)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{gateway.port}"
