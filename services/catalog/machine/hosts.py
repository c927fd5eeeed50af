"""Memories that replicas see, each once: several replicas of a machine tell of the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from services.telemetry.figures import DeviceFigures, HostFigures

SHOWN = 12  # characters of a GPU's id that tell it from another of the same name


def merged(seen: Iterable[HostFigures]) -> tuple[HostFigures, ...]:
    """Hosts by name, and their devices by name. `seen`: what was told last comes last, and counts.

    Of thresholds that differ the lowest counts. A device that several containers of a machine see belongs to the first
    of them. Two devices of a host that are called the same, because their services see others, are told apart.
    """
    hosts: dict[str, HostFigures] = {}
    devices: dict[str, dict[str, DeviceFigures]] = {}
    newest: dict[str, DeviceFigures] = {}
    for host in seen:
        known = hosts.get(host.id)
        threshold = min(host.threshold, known.threshold) if known else host.threshold
        name = min(host.name, known.name) if known else host.name  # containers of a machine have names of their own
        hosts[host.id] = replace(host, threshold=threshold, name=name)
        devices.setdefault(host.id, {}).update((each.id, each) for each in host.devices)
        newest.update((each.id, each) for each in host.devices)
    found: list[HostFigures] = []
    told: set[str] = set()
    for host in sorted(hosts.values(), key=lambda each: (each.name, each.id)):
        own = [newest[each] for each in devices[host.id] if each not in told]
        told.update(each.id for each in own)
        found.append(replace(host, devices=_told_apart(own)))
    return tuple(found)


def _told_apart(devices: list[DeviceFigures]) -> tuple[DeviceFigures, ...]:
    names = Counter(each.name for each in devices)
    named = [
        replace(each, name=f"{each.name} ({each.id.rpartition('/')[2][:SHOWN]})") if names[each.name] > 1 else each
        for each in devices
    ]
    return tuple(sorted(named, key=lambda each: (each.name, each.id)))
