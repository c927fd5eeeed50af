"""Prometheus metrics of a service process. docs/metrics.md is generated from them (`python -m monitoring`).

Names: metrics and attributes of OpenTelemetry's conventions for generative AI keep their names, with underscores for
dots: `gen_ai_...`. All others are `allm_...`. No value has two metrics. Every metric of a model has the label `model`,
even next to `gen_ai_request_model`. Times are in seconds, sizes in bytes.

Only ids of existing models become labels; the series of a removed model are removed, too (`model_series.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics, start_http_server

# Otherwise every counter and histogram has an additional series with its creation time.
disable_created_metrics()  # type: ignore[no-untyped-call]

PROVIDER = "allm"
_MODEL = ("model",)
_GEN_AI = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "model")

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_LOADING = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200)
_BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_BATCH_TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
# The conventions' own buckets, and two more for requests: a transcription may take an hour.
_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 300, 1200)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)

# The operation of the current RPC, in the conventions' words: chat, text_completion, embeddings, and, where they have
# none, transcription, translation, image_generation, image_edit, image_variation. Empty: no inference.
operation: ContextVar[str] = ContextVar("operation", default="")


def gen_ai(model: str, of: str) -> tuple[str, str, str, str]:
    """Returns the first labels of a metric of the conventions. `of`: the operation."""
    return of, PROVIDER, model, model


# --- requests

REQUESTS = Counter("allm_requests", "Requests that ended, well or not.", ("rpc", "model"))
ERRORS = Counter("allm_errors", "Requests that ended with an error.", ("rpc", "code", "model"))
SERVER_DURATION = Histogram(
    "gen_ai_server_request_duration_seconds",
    "Of a request that infers: from its arrival at the service to its last byte, however it ended.",
    (*_GEN_AI, "error_type"),
    buckets=_DURATION,
)
DURATION = Histogram(
    "allm_request_duration_seconds",
    "Of any other request, as one that lists models: from its arrival at the service to its last byte.",
    ("rpc", "model"),
    buckets=_LATENCY,
)
RUNNING = Gauge("allm_requests_running", "Requests that have a place in the batch.", _MODEL)
WAITING = Gauge(
    "allm_requests_waiting", "Requests that wait for their model to load or for a place in the batch.", _MODEL
)
QUEUED = Histogram(
    "allm_request_queue_seconds",
    "From when a request could have been computed, its prompt or first sound being there, to its place in the batch; "
    "without live sound, and without those that never got one.",
    _MODEL,
    buckets=_LATENCY,
)
PREEMPTED = Counter("allm_requests_preempted", "Times that a request had to start over for want of cells.", _MODEL)

# --- text

FIRST_TOKEN = Histogram(
    "gen_ai_server_time_to_first_token_seconds",
    "From when a loaded model was given the request to the answer's first token; loading is not in it.",
    _GEN_AI,
    buckets=_FIRST_TOKEN,
)
PER_TOKEN = Histogram(
    "gen_ai_server_time_per_output_token_seconds",
    "Between the tokens of an answer after its first: their mean, once for each answer of two tokens or more.",
    _GEN_AI,
    buckets=_PER_TOKEN,
)
TOKEN_USAGE = Histogram(
    "gen_ai_client_token_usage",
    "Tokens of a request that ended well: of its prompt or inputs (input), and of each answer (output).",
    (*_GEN_AI, "gen_ai_token_type"),
    buckets=_TOKENS,
)
PROMPT_TOKENS = Counter(
    "allm_prompt_tokens",
    "Tokens of prompts and inputs that were computed or cached, whatever came of it.",
    _MODEL,
)
CACHED_TOKENS = Counter("allm_cached_tokens", "Tokens of prompts that the prefix cache had.", _MODEL)
GENERATED_TOKENS = Counter(
    "allm_generated_tokens", "Tokens generated, as they come, also of answers that are given up.", _MODEL
)
ACTIVE_CELLS = Gauge("allm_kv_cells_active", "Key-value cells that running requests hold.", _MODEL)
CACHED_CELLS = Gauge("allm_kv_cells_cached", "Key-value cells that only the prefix cache holds.", _MODEL)
CELLS = Gauge("allm_kv_cells_capacity", "Key-value cells that all requests of the model share.", _MODEL)

# --- steps of the workers

STEPS = Counter("allm_engine_steps", "Steps that the model's worker computed.", _MODEL)
BATCH_SEQUENCES = Histogram(
    "allm_batch_sequences", "Sequences, or inputs of embeddings, that a step computed together.", _MODEL, buckets=_BATCH
)
BATCH_TOKENS = Histogram(
    "allm_batch_tokens", "Tokens that a step computed, of prompts and answers.", _MODEL, buckets=_BATCH_TOKENS
)
WINDOWS = Histogram("allm_batch_windows", "Windows of sound that a step computed together.", _MODEL, buckets=_BATCH)
BATCH_IMAGES = Histogram("allm_batch_images", "Pictures that a step computed together.", _MODEL, buckets=_BATCH)

# --- audio

AUDIO_SECONDS = Counter("allm_audio_seconds", "Seconds of sound that were transcribed whole.", _MODEL)
SPEECH_SECONDS = Counter("allm_speech_seconds", "Seconds of it that were decoded: the rest was silence.", _MODEL)
FIRST_SEGMENT = Histogram(
    "allm_time_to_first_segment_seconds",
    "From when a loaded model was given the request to its first segment.",
    _MODEL,
    buckets=_LATENCY,
)

# --- images

IMAGES = Counter("allm_images", "Pictures that were drawn, previews not counted.", _MODEL)
IMAGE_STEPS = Counter(
    "allm_image_steps", "Steps of single pictures: a step of a batch is one for each picture in it.", _MODEL
)
FIRST_IMAGE = Histogram(
    "allm_time_to_first_image_seconds",
    "From when a loaded model was given the request to its first picture, previews not counted.",
    _MODEL,
    buckets=_LATENCY,
)

# --- models in memory

LOAD_SECONDS = Histogram(
    "allm_model_load_seconds", "Time to load a model, waiting for room included.", _MODEL, buckets=_LOADING
)
LOAD_FAILURES = Counter("allm_model_load_failures", "Loads that failed, by error code.", ("model", "code"))
LOADED = Gauge("allm_models_loaded", "1 while the model is in memory and takes requests.", _MODEL)
WORKER_DEATHS = Counter("allm_worker_deaths", "Worker processes that ended by themselves or were killed.", _MODEL)
WORKER_RESTARTS = Counter("allm_worker_restarts", "Worker processes that came in place of one that had died.", _MODEL)
EVICTIONS = Counter(
    "allm_model_evictions",
    "Models that were unloaded, by reason: pressure, admission, peer, idle, budget, max_models.",
    ("model", "reason"),
)
OVERRUNS = Counter(
    "allm_memory_overruns", "Loads that came to take over 15% more memory than was reserved for them.", _MODEL
)

# --- memory

HOST_MEMORY = Gauge(
    "allm_host_memory_bytes",
    "Of the machine or container: total, used, and the threshold above which idle models are unloaded.",
    ("kind",),
)
DEVICE_MEMORY = Gauge(
    "allm_device_memory_bytes",
    "Of a GPU: total, used, used by this service's models (ours), and the threshold as for the host.",
    ("device", "kind"),
)
MEMORY_PRESSURE = Gauge("allm_memory_pressure", "1 while a place is above ALLM_MEMORY_THRESHOLD.", ("place",))
WORKER_MEMORY = Gauge(
    "allm_worker_memory_bytes", "What the model's worker holds on the host, mapped files included.", _MODEL
)
WORKER_DEVICE_MEMORY = Gauge(
    "allm_worker_device_memory_bytes", "What the model's worker holds on a GPU.", ("device", "model")
)

# --- the process

SPANS_SENT = Counter("allm_trace_spans_sent", "Spans of traces that the collector took.")
SPANS_DROPPED = Counter(
    "allm_trace_spans_dropped", "Spans that never reached it, by reason: queue_full, not_sent, shutdown.", ("reason",)
)
TASKS = Gauge("allm_tasks", "Tasks of the event loop; grows without end where something is never ended.")


def serve_metrics(host: str, port: int) -> tuple[int, Callable[[], None]]:
    """Serves `/metrics` in a separate thread; returns the port (a free one for 0) and a function that stops it."""
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
