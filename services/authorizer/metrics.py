"""The authorizer's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

CHECKS = Counter(
    "allm_authorizer_checks",
    "Requests that the gateway asked about, by outcome: admitted, or the code of the error.",
    ("outcome",),
)
CHECK_SECONDS = Histogram(
    "allm_authorizer_check_seconds",
    "Time to decide about a request, without its way here and back.",
    buckets=(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25),
)
KEYS = Gauge("allm_authorizer_keys", "Keys that are known and not revoked.")
FOLLOWING = Gauge("allm_authorizer_catalog_up", "1 while the catalog tells of changes of keys; 0 while it is away.")
