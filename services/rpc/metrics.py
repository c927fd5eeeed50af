"""Prometheus metrics of a service process. Names follow Prometheus' conventions; times are seconds."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Gauge, Histogram, start_http_server

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

ERRORS = Counter("allm_errors", "Requests that ended with an error.", ("rpc", "code", "model"))
REQUESTS = Counter("allm_requests", "Requests that ended, well or not.", ("rpc", "model"))
DURATION = Histogram(
    "allm_request_duration_seconds", "From arrival to the last byte.", ("rpc", "model"), buckets=_LATENCY
)
RUNNING = Gauge("allm_requests_running", "Requests that have a place in the batch.", ("model",))
WAITING = Gauge("allm_requests_waiting", "Requests that wait for a place in the batch.", ("model",))
ACTIVE_CELLS = Gauge("allm_kv_cells_active", "Key-value cells that running requests hold.", ("model",))
CACHED_CELLS = Gauge("allm_kv_cells_cached", "Key-value cells that only the prefix cache holds.", ("model",))
PREEMPTED = Gauge("allm_requests_preempted", "Requests that had to start over for want of cells, so far.", ("model",))
STEPS = Gauge("allm_engine_steps", "Steps that the model's worker computed, so far.", ("model",))
PROMPT_TOKENS = Counter("allm_prompt_tokens", "Tokens of prompts, cached ones included.", ("model",))
CACHED_TOKENS = Counter("allm_cached_tokens", "Tokens of prompts that the prefix cache had.", ("model",))
GENERATED_TOKENS = Counter("allm_generated_tokens", "Tokens generated.", ("model",))
FIRST_TOKEN = Histogram(
    "allm_time_to_first_token_seconds",
    "From when a loaded model was given the request to its first token.",
    ("model",),
    buckets=_LATENCY,
)
AUDIO_SECONDS = Counter("allm_audio_seconds", "Seconds of sound that were transcribed whole.", ("model",))
SPEECH_SECONDS = Counter("allm_speech_seconds", "Seconds of it that were decoded: the rest was silence.", ("model",))
WINDOWS = Histogram(
    "allm_batch_windows",
    "Windows of sound that a step computed together.",
    ("model",),
    buckets=(1, 2, 4, 8, 16, 32, 64),
)
FIRST_SEGMENT = Histogram(
    "allm_time_to_first_segment_seconds",
    "From when a loaded model was given the request to its first segment.",
    ("model",),
    buckets=_LATENCY,
)
IMAGES = Counter("allm_images", "Pictures that were drawn, previews not counted.", ("model",))
BATCH_IMAGES = Histogram(
    "allm_batch_images",
    "Pictures that a step computed together.",
    ("model",),
    buckets=(1, 2, 4, 8, 16, 32, 64),
)
FIRST_IMAGE = Histogram(
    "allm_time_to_first_image_seconds",
    "From when a loaded model was given the request to its first picture, previews not counted.",
    ("model",),
    buckets=_LATENCY,
)
LOAD_SECONDS = Histogram("allm_model_load_seconds", "Time to load a model.", ("model",), buckets=_LATENCY)
WORKER_DEATHS = Counter("allm_worker_deaths", "Worker processes that ended by themselves or were killed.", ("model",))
HOST_MEMORY = Gauge("allm_host_memory_bytes", "Of the machine or container: total, used.", ("kind",))
DEVICE_MEMORY = Gauge(
    "allm_device_memory_bytes",
    "Of a GPU: total, used, and used by this service's models (ours).",
    ("device", "kind"),
)
MEMORY_PRESSURE = Gauge("allm_memory_pressure", "1 while a place is above ALLM_MEMORY_THRESHOLD.", ("place",))
WORKER_MEMORY = Gauge(
    "allm_worker_memory_bytes", "What the model's worker holds on the host, mapped files included.", ("model",)
)
EVICTIONS = Counter(
    "allm_model_evictions",
    "Models that were unloaded, by reason: pressure, admission, peer, idle, budget, max_models.",
    ("model", "reason"),
)
OVERRUNS = Counter(
    "allm_memory_overruns", "Loads that came to take over 15% more memory than was reserved for them.", ("model",)
)

TASKS = Gauge("allm_tasks", "Tasks of the event loop; grows without end where something is never ended.")


def serve_metrics(host: str, port: int) -> tuple[int, Callable[[], None]]:
    """Serves `/metrics` in a thread of its own; returns the port (a free one for 0) and what stops it."""
    try:
        server, thread = start_http_server(port, addr=host)
    except OSError as error:
        where = f"ALLM_METRICS_HOST={host}, ALLM_METRICS_PORT={port}"
        raise OSError(f"{where}: the address cannot be used: {error.strerror}") from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, stop
