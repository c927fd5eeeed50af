"""Merges the hosts and devices that several replicas of one machine report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from services.telemetry.figures import DeviceFigures, HostFigures

SHOWN = 12  # characters of a GPU's id that distinguish it from another of the same name


def merged(seen: Iterable[HostFigures]) -> tuple[HostFigures, ...]:
    """Returns the hosts by name, each with its devices by name. `seen` is in order of report: the latest report wins.

    If thresholds differ, the lowest counts. A device that several containers of a machine see belongs to the first of
    them. Two devices of a host that share a name, because their services see different devices, get distinct names.
    """
    hosts: dict[str, HostFigures] = {}
    devices: dict[str, dict[str, DeviceFigures]] = {}
    newest: dict[str, DeviceFigures] = {}
    for host in seen:
        known = hosts.get(host.id)
        threshold = min(host.threshold, known.threshold) if known else host.threshold
        name = min(host.name, known.name) if known else host.name  # each container of a machine has its own name
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
