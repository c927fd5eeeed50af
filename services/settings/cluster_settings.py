"""The services' addresses, for a gateway that runs separately, and the group of models of a text service."""

from __future__ import annotations

from dataclasses import dataclass

from services.settings.model_groups import DEFAULT, GroupShare, read_groups, read_model_groups
from services.settings.setting_reader import SettingError, SettingReader

GROUPS_VARIABLE = "ALLM_GATEWAY_TEXT_GROUPS"
_ADDRESSES = "group=host:port,...;group=..., such as large=text-large:50051;code=text-code:50051"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of `allm gateway` and of text services in groups. Addresses: `host:port` or `unix:/path`."""

    text: tuple[str, ...]  # ALLM_GATEWAY_TEXT: the text service's replicas, or DNS names for them
    audio: tuple[str, ...]  # ALLM_GATEWAY_AUDIO: likewise; empty: no audio service
    image: tuple[str, ...]  # ALLM_GATEWAY_IMAGE: likewise
    groups: tuple[tuple[str, tuple[str, ...]], ...]  # ALLM_GATEWAY_TEXT_GROUPS: addresses of further groups' replicas
    # ALLM_TEXT_GROUP_MODELS: the models of each group. ALLM_TEXT_GROUP: this text service's group; empty: the group of
    # all other models.
    share: GroupShare


def read_cluster(read: SettingReader) -> ClusterSettings:
    """Reads and checks these settings together.

    Raises:
        SettingError: a value is malformed, or names a group that has no models.
    """
    models = read_model_groups(read)
    groups = read_groups(read, GROUPS_VARIABLE, _ADDRESSES)
    group = read.text("ALLM_TEXT_GROUP", DEFAULT)
    known = f"a group that ALLM_TEXT_GROUP_MODELS names ({', '.join(models.names) or 'it names none'})"
    for name, _ in groups:
        if name not in models.names:
            raise SettingError(GROUPS_VARIABLE, name, known)
    if group and group not in models.names:
        raise SettingError("ALLM_TEXT_GROUP", group, known)
    return ClusterSettings(
        text=read.names("ALLM_GATEWAY_TEXT"),
        audio=read.names("ALLM_GATEWAY_AUDIO"),
        image=read.names("ALLM_GATEWAY_IMAGE"),
        groups=groups,
        share=GroupShare(models, group),
    )
