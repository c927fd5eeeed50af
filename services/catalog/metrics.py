"""The catalog's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import Gauge

REGISTRATIONS = Gauge("allm_models_registered", "Registered models, in any state.")
REPLICAS = Gauge("allm_replicas_live", "Service replicas that reported within the time limit.", ("modality",))
WATCHERS = Gauge("allm_model_watchers", "Open WatchModels streams.")
MODELS_FILE_PROBLEMS = Gauge("allm_models_file_problems", "Entries of the models file that are not applied.")
