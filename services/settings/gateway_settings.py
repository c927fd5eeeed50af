"""Settings of the gateway: its listener, access to it, and the services behind it, in groups of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from services.settings import setting
from services.settings.model_groups import DEFAULT, VARIABLE, GroupShare, ModelGroups, parse_groups, parse_model_groups
from services.settings.setting import MAX_PORT, SettingError

ADDRESS = "`host:port` or `unix:/path`"


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The gateway's listener, and access to it."""

    SECTION: ClassVar = "The gateway"
    host: str = setting.text("ALLM_HOST", "127.0.0.1", "gateway, image", allowed="address")
    """address of the gateway's listener; with `ALLM_AUTH=none` it is always loopback"""
    port: int = setting.integer("ALLM_PORT", 8080, 0, MAX_PORT, "", "gateway, image")
    """port of the gateway's listener; 0 picks a free port"""
    allowed_hosts: tuple[str, ...] = setting.names("ALLM_ALLOWED_HOSTS", "gateway")
    """host names, in addition to loopback, that requests may have in `Host`; `*` allows any"""
    cors_origins: tuple[str, ...] = setting.origins("ALLM_CORS_ORIGINS", "gateway")
    """origins, in addition to the gateway's own, whose pages may call the gateway"""
    max_body_bytes: int = setting.integer(
        "ALLM_MAX_BODY_BYTES", 32 * 1024**2, 1024, 1024**3, "bytes", "gateway, services"
    )
    """maximum size of a request body; uploads to `/v1/audio` and `/v1/images` have their own limits,
    `ALLM_MAX_AUDIO_BYTES` and `ALLM_MAX_IMAGE_BYTES`"""
    auth: str = "none"  # AuthSettings.mode
    authorizer: str = setting.text(
        "ALLM_AUTHORIZER", "127.0.0.1:50052", "gateway", allowed=ADDRESS, section="Who may call"
    )
    """gRPC address of the authorizer, which checks keys for the gateway; `allm serve` sets it"""
    stats_host: str = setting.text("ALLM_GATEWAY_METRICS_HOST", "127.0.0.1", "gateway", allowed="address")
    """address of the gateway's metrics listener, which serves only Envoy's own metrics, at `/stats/prometheus`, and the
    probes `/livez` and `/readyz`"""
    stats_port: int = setting.integer("ALLM_GATEWAY_METRICS_PORT", 0, 0, MAX_PORT, "", "gateway")
    """port of the gateway's metrics listener; with 0 `allm serve` picks a free port, and `allm gateway` opens no such
    listener ([metrics.md](metrics.md))"""
    max_connections: int = setting.integer("ALLM_GATEWAY_CONNECTIONS", 10_000, 16, 1_000_000, "", "gateway")
    """connections that clients may hold at the same time, further ones are closed; the limit on open files may lower
    it. The listener for metrics and probes is exempt"""
    address_connections: int | None = setting.integer_or(
        "auto", "ALLM_GATEWAY_CONNECTIONS_PER_ADDRESS", 0, 1_000_000, "", "gateway"
    )
    """connections that one address may hold at the same time, an IPv6 network of 64 bits being one address; further
    ones are closed; 0: any number. `auto`: a quarter of `ALLM_GATEWAY_CONNECTIONS` under `allm serve` with
    `ALLM_AUTH=keys` on an address beyond loopback, otherwise 0, because behind a proxy all clients have one address
    ([gateway.md](gateway.md#limits-at-the-edge))"""
    first_byte_seconds: float = setting.seconds("ALLM_GATEWAY_FIRST_BYTE_SECONDS", 5, 0.1, 3600, "gateway")
    """time for the TLS handshake and, without a limit on the connections of an address, for the first byte; then the
    connection is closed"""
    idle_seconds: float = setting.seconds("ALLM_GATEWAY_IDLE_SECONDS", 120, 0.1, 86400, "gateway")
    """time after which a connection without a request is closed, longer than that of a balancer in front; it shrinks
    when more than half of the connections or of the heap is in use"""
    body_seconds: int = setting.integer("ALLM_GATEWAY_BODY_SECONDS", 120, 1, 86400, "seconds", "gateway")
    """time for the body of a request, then the answer is 408; uploads to `/v1/audio`, `/v1/images/edits` and
    `/v1/images/variations` and streams of audio are exempt"""
    heap_bytes: int = setting.integer(
        "ALLM_GATEWAY_HEAP_BYTES", 512 * 1024**2, 64 * 1024**2, 1024**4, "bytes", "gateway"
    )
    """memory for Envoy's heap, half of it for request bodies that are still arriving; the process needs about 100 MiB
    more, and the memory limit of a container must cover both"""
    console: bool = setting.switch("ALLM_CONSOLE", True, "gateway")
    """whether the gateway serves the [console](console.md) at `/`"""


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Authentication of callers."""

    SECTION: ClassVar = "Who may call"
    mode: str = setting.choice("ALLM_AUTH", "none", ("none", "keys", "open"), "gateway, services")
    """access: `none` accepts everyone, but the gateway listens only on loopback; `keys` requires an API key; `open`
    accepts everyone on any address, for deployments with their own access control in front ([keys.md](keys.md))"""
    key_file: Path = setting.path(
        "ALLM_IDENTITY_KEY_FILE", "$ALLM_HOME/identity/ROLE.key", "serve, allm, services", allowed="path of a file"
    )
    """with `keys`: private key with which this process signs identities; `ROLE` in the name stands for its role:
    `authorizer`, `text`, `audio`, `image`, or `operator` for commands. `allm serve` and `allm identity create` make
    the keys of all roles ([keys.md](keys.md#identities-inside-the-deployment))"""
    public_keys_file: Path = setting.path(
        "ALLM_IDENTITY_PUBLIC_KEYS_FILE",
        "$ALLM_HOME/identity/public.keys",
        "serve, services",
        allowed="path of a file",
    )
    """with `keys`: file of all roles' public keys, with which services verify identities; a change takes effect within
    seconds, without a restart"""
    api_key: str = setting.text("ALLM_API_KEY", "", "allm", True, allowed="a key of `allm keys create`")
    """API key that commands send to a gateway that they reach by `--address`, if it requires keys; never logged"""

    @property
    def keys(self) -> bool:
        """Returns whether every call needs a signed identity."""
        return self.mode == "keys"

    def key_file_of(self, role: str) -> Path:
        """Returns the file of a role's private key."""
        return self.key_file.with_name(self.key_file.name.replace("ROLE", role))


GROUPS_VARIABLE = "ALLM_GATEWAY_TEXT_GROUPS"
_SHAPE = "group=host:port,...;group=..., such as large=text-large:50051;code=text-code:50051"
_ADDRESSES = "list of `host:port` or `unix:/path`"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Settings of `allm gateway` and of text services in groups. Addresses: `host:port` or `unix:/path`."""

    SECTION: ClassVar = "Processes and addresses"
    text: tuple[str, ...] = setting.names("ALLM_GATEWAY_TEXT", "gateway", allowed=_ADDRESSES)
    """addresses of the text service for `allm gateway`, which requires it; every address behind a DNS name is a replica
    ([gateway.md](gateway.md#by-itself))"""
    audio: tuple[str, ...] = setting.names("ALLM_GATEWAY_AUDIO", "gateway", allowed=_ADDRESSES)
    """addresses of the audio service, likewise; unset: no audio service"""
    image: tuple[str, ...] = setting.names("ALLM_GATEWAY_IMAGE", "gateway", allowed=_ADDRESSES)
    """addresses of the image service, likewise; unset: no image service"""
    models: ModelGroups = setting.declare(
        VARIABLE, ModelGroups(), parse_model_groups, "gateway, text", allowed="`group=id,alias,prefix*;group=...`"
    )
    """models of each group, by id, alias or prefix: `large=llama-70b,qwen*;code=coder*`; the same for the gateway and
    all text services ([gateway.md](gateway.md#groups-of-models))"""
    groups: tuple[tuple[str, tuple[str, ...]], ...] = setting.declare(
        GROUPS_VARIABLE,
        (),
        partial(parse_groups, GROUPS_VARIABLE, _SHAPE),
        "gateway",
        allowed="`group=host:port,...;group=...`",
    )
    """addresses of further text services for `allm gateway`, each for one group of models:
    `large=text-large:50051;code=text-code:50051`"""
    group: str = setting.text(
        "ALLM_TEXT_GROUP",
        DEFAULT,
        "text",
        allowed="a group of `ALLM_TEXT_GROUP_MODELS`",
        means="the group of all other models",
    )
    """model group of this text service"""

    @property
    def share(self) -> GroupShare:
        """The models of this text service."""
        return GroupShare(self.models, self.group)


def read_cluster(environ: Mapping[str, str]) -> ClusterSettings:
    """Reads and checks these settings together.

    Raises:
        SettingError: a value is malformed, or names a group that has no models.
    """
    cluster = setting.read(ClusterSettings, environ)
    known = f"a group that ALLM_TEXT_GROUP_MODELS names ({', '.join(cluster.models.names) or 'it names none'})"
    for name, _ in cluster.groups:
        if name not in cluster.models.names:
            raise SettingError(GROUPS_VARIABLE, name, known)
    if cluster.group and cluster.group not in cluster.models.names:
        raise SettingError("ALLM_TEXT_GROUP", cluster.group, known)
    return cluster
