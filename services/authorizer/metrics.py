"""The authorizer's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

CHECKS = Counter(
    "allm_authorizer_checks",
    "Requests that the gateway asked the authorizer to check, by outcome: admitted or the error code.",
    ("outcome",),
)
CHECK_SECONDS = Histogram(
    "allm_authorizer_check_seconds",
    "Time of a check, without network time.",
    buckets=(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25),
)
KEYS = Gauge("allm_authorizer_keys", "Known API keys that are not revoked.")
FOLLOWING = Gauge("allm_authorizer_catalog_up", "1 while the catalog streams key changes; 0 while it is unreachable.")
