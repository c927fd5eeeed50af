"""The services' addresses, for a gateway that runs separately, and the group of models of a text service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from services.settings import setting
from services.settings.model_groups import DEFAULT, VARIABLE, GroupShare, ModelGroups, parse_groups, parse_model_groups
from services.settings.setting import SettingError

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
