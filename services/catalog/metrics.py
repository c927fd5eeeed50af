"""The catalog's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import Gauge

REGISTRATIONS = Gauge("allm_models_registered", "Models that are registered, whatever their state.")
REPLICAS = Gauge("allm_replicas_live", "Replicas of services that have reported within their time.", ("modality",))
WATCHERS = Gauge("allm_model_watchers", "Streams of WatchModels that are open.")
MODELS_FILE_PROBLEMS = Gauge("allm_models_file_problems", "Entries of the models file that are not applied.")
