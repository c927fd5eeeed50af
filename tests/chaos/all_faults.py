"""The injected faults: the full list, and the short form."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.fault import Fault, in_turn
from tests.chaos.outside_faults import clients_gone, disk_full, disk_full_at_start, file_damaged, hub_cut
from tests.chaos.process_faults import (
    catalog_killed,
    gateway_killed,
    no_memory,
    service_killed,
    service_stopped,
    worker_killed,
    worker_stopped,
)

SERVICES = ("text", "audio", "image")
# One caller of each kind: the storm and the soak send many requests concurrently.
SHORT: tuple[Fault, ...] = tuple(
    replace(fault, load=dict.fromkeys(fault.load, 1))
    for fault in (
        in_turn(worker_killed("text"), worker_stopped("text")),
        worker_killed("audio", "image"),
        # The service is killed first: a later kill would hide resources that it never releases.
        in_turn(service_killed("text"), service_stopped("text"), gateway_killed()),
        no_memory("text"),
        disk_full(),
        hub_cut(),
        file_damaged(),
        in_turn(clients_gone(20), catalog_killed()),
    )
)
LONG: tuple[Fault, ...] = (
    *(
        make(service)
        for make in (worker_killed, worker_stopped, service_killed, service_stopped)
        for service in SERVICES
    ),
    *(no_memory(service) for service in SERVICES),
    disk_full(),
    disk_full_at_start(),
    hub_cut(),
    file_damaged(),
    clients_gone(300),
    gateway_killed(),
    catalog_killed(),
)
