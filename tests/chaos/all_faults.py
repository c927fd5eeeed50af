"""The faults that are injected: all of them, and those of the short form."""

from __future__ import annotations

from tests.chaos.fault import Fault
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
SHORT: tuple[Fault, ...] = (
    worker_killed("text"),
    worker_killed("audio", "image"),
    worker_stopped("text"),
    service_killed("text"),
    service_stopped("text"),
    no_memory("text"),
    disk_full(),
    hub_cut(),
    file_damaged(),
    clients_gone(20),
    gateway_killed(),
    catalog_killed(),
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
