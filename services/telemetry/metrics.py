"""Prometheus metrics of a service process. docs/metrics.md is generated from them (`python -m monitoring`).

Names: metrics and attributes of OpenTelemetry's conventions for generative AI keep their names, with underscores for
dots: `gen_ai_...`. All others are `allm_...`. No value has two metrics. Every metric of a model has the label `model`,
even next to `gen_ai_request_model`. Times are in seconds, sizes in bytes.

Only ids of existing models become labels; the series of a removed model are removed, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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
# none, rerank, transcription, translation, image_generation, image_edit, image_variation. Empty: no inference.
operation: ContextVar[str] = ContextVar("operation", default="")


def gen_ai(model: str, of: str) -> tuple[str, str, str, str]:
    """Returns the first labels of a metric of the conventions. `of`: the operation."""
    return of, PROVIDER, model, model


# --- requests

REQUESTS = Counter("allm_requests", "Finished requests, successful or failed.", ("rpc", "model"))
ERRORS = Counter("allm_errors", "Failed requests.", ("rpc", "code", "model"))
IGNORED_PARAMETERS = Counter(
    "allm_ignored_parameters",
    "Parameters of requests without effect on the answer, such as unknown ones; the log names them.",
    ("rpc", "model"),
)
SERVER_DURATION = Histogram(
    "gen_ai_server_request_duration_seconds",
    "Duration of an inference request, from its arrival at the service to its last byte, including failed requests.",
    (*_GEN_AI, "error_type"),
    buckets=_DURATION,
)
DURATION = Histogram(
    "allm_request_duration_seconds",
    "Duration of any other request, such as a list of models, from its arrival at the service to its last byte.",
    ("rpc", "model"),
    buckets=_LATENCY,
)
RUNNING = Gauge("allm_requests_running", "Requests in the batch.", _MODEL)
WAITING = Gauge("allm_requests_waiting", "Requests that wait for their model to load or for the batch.", _MODEL)
QUEUED = Histogram(
    "allm_request_queue_seconds",
    "Time from the moment a request is ready for computation (its prompt or first audio has arrived) to its start in "
    "the batch. Excludes live audio and requests that never start.",
    _MODEL,
    buckets=_LATENCY,
)
PREEMPTED = Counter("allm_requests_preempted", "Restarts of requests for lack of KV cells.", _MODEL)

# --- text

FIRST_TOKEN = Histogram(
    "gen_ai_server_time_to_first_token_seconds",
    "Time from the moment a loaded model receives the request to the first token; excludes loading.",
    _GEN_AI,
    buckets=_FIRST_TOKEN,
)
PER_TOKEN = Histogram(
    "gen_ai_server_time_per_output_token_seconds",
    "Mean time between the tokens of an answer after its first, once per answer of two tokens or more.",
    _GEN_AI,
    buckets=_PER_TOKEN,
)
TOKEN_USAGE = Histogram(
    "gen_ai_client_token_usage",
    "Tokens of a successful request: of its prompt or inputs (input), and of each answer (output).",
    (*_GEN_AI, "gen_ai_token_type"),
    buckets=_TOKENS,
)
PROMPT_TOKENS = Counter(
    "allm_prompt_tokens",
    "Tokens of prompts and inputs that were computed or cached, whether or not the request succeeds.",
    _MODEL,
)
CACHED_TOKENS = Counter("allm_cached_tokens", "Prompt tokens found in the prefix cache.", _MODEL)
GENERATED_TOKENS = Counter(
    "allm_generated_tokens",
    "Generated tokens, counted as they are generated, including those of cancelled answers.",
    _MODEL,
)
DRAFT_TOKENS = Counter("allm_draft_tokens", "Guesses of tokens that steps computed (ALLM_SPECULATION).", _MODEL)
ACCEPTED_TOKENS = Counter("allm_accepted_draft_tokens", "Guesses that were the sampled tokens.", _MODEL)
ACTIVE_CELLS = Gauge("allm_kv_cells_active", "Key-value cells of running requests.", _MODEL)
CACHED_CELLS = Gauge("allm_kv_cells_cached", "Key-value cells that belong only to the prefix cache.", _MODEL)
CELLS = Gauge("allm_kv_cells_capacity", "Key-value cells that all requests of the model share.", _MODEL)

# --- steps of the workers

STEPS = Counter("allm_engine_steps", "Steps that the model's worker computed.", _MODEL)
BATCH_SEQUENCES = Histogram("allm_batch_sequences", "Sequences, or embedding inputs, per step.", _MODEL, buckets=_BATCH)
BATCH_TOKENS = Histogram("allm_batch_tokens", "Tokens of prompts and answers per step.", _MODEL, buckets=_BATCH_TOKENS)
WINDOWS = Histogram("allm_batch_windows", "Audio windows per step.", _MODEL, buckets=_BATCH)
BATCH_IMAGES = Histogram("allm_batch_images", "Images per step.", _MODEL, buckets=_BATCH)

# --- audio

AUDIO_SECONDS = Counter("allm_audio_seconds", "Seconds of audio in finished transcriptions.", _MODEL)
SPEECH_SECONDS = Counter(
    "allm_speech_seconds", "Seconds of that audio that were decoded; the rest was silence.", _MODEL
)
FIRST_SEGMENT = Histogram(
    "allm_time_to_first_segment_seconds",
    "Time from the moment a loaded model receives the request to its first segment.",
    _MODEL,
    buckets=_LATENCY,
)

# --- images

IMAGES = Counter("allm_images", "Generated images, without previews.", _MODEL)
IMAGE_STEPS = Counter(
    "allm_image_steps",
    "Denoising steps, counted for each image: one step of a batch counts once per image in it.",
    _MODEL,
)
FIRST_IMAGE = Histogram(
    "allm_time_to_first_image_seconds",
    "Time from the moment a loaded model receives the request to its first image, without previews.",
    _MODEL,
    buckets=_LATENCY,
)

# --- models in memory

LOAD_SECONDS = Histogram(
    "allm_model_load_seconds", "Time to load a model, including the wait for free memory.", _MODEL, buckets=_LOADING
)
LOAD_FAILURES = Counter("allm_model_load_failures", "Failed loads, by error code.", ("model", "code"))
LOADED = Gauge("allm_models_loaded", "1 while the model is loaded and accepts requests.", _MODEL)
WORKER_DEATHS = Counter("allm_worker_deaths", "Worker processes that exited unexpectedly or were killed.", _MODEL)
WORKER_RESTARTS = Counter("allm_worker_restarts", "Worker processes that replaced a dead one.", _MODEL)
EVICTIONS = Counter(
    "allm_model_evictions",
    "Unloaded models, by reason: pressure, admission, peer, idle, budget, max_models.",
    ("model", "reason"),
)
OVERRUNS = Counter("allm_memory_overruns", "Loads whose memory exceeded their reservation by more than 15%.", _MODEL)

# --- memory

HOST_MEMORY = Gauge(
    "allm_host_memory_bytes",
    "Memory of the machine or container: total, used, and the threshold above which idle models are unloaded.",
    ("kind",),
)
DEVICE_MEMORY = Gauge(
    "allm_device_memory_bytes",
    "Memory of a GPU: total, used, used by this service's models (ours), and the threshold as for the host.",
    ("device", "kind"),
)
MEMORY_PRESSURE = Gauge(
    "allm_memory_pressure", "1 while the host or the GPU is above ALLM_MEMORY_THRESHOLD.", ("place",)
)
WORKER_MEMORY = Gauge("allm_worker_memory_bytes", "Host memory of the model's worker, including mapped files.", _MODEL)
WORKER_DEVICE_MEMORY = Gauge(
    "allm_worker_device_memory_bytes", "GPU memory of the model's worker.", ("device", "model")
)

# --- the process

SPANS_SENT = Counter("allm_trace_spans_sent", "Trace spans that the collector accepted.")
SPANS_DROPPED = Counter(
    "allm_trace_spans_dropped",
    "Trace spans that did not reach the collector, by reason: queue_full, not_sent, shutdown.",
    ("reason",),
)
TASKS = Gauge("allm_tasks", "Tasks of the event loop. Unlimited growth indicates a task leak.")


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


SWEEP_SECONDS = 10.0  # between two removals of series
_MODEL_LABEL = "model"
Metric = Counter | Gauge | Histogram

_parts: dict[tuple[Gauge, str], dict[ModelPart, float]] = {}


class ModelPart:
    """The contribution of one worker of a model, or of requests that wait for one, to the model's gauges.

    Two generations of a model may run at the same time: the gauge is the sum of all parts.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._closed = False
        self._values: dict[Gauge, float] = {}

    def set(self, gauge: Gauge, value: float) -> None:
        """Sets this part's value. Does nothing after `close`."""
        if self._closed or self._values.get(gauge) == value:
            return
        self._values[gauge] = value
        _parts.setdefault((gauge, self._model), {})[self] = value
        self._sum(gauge)

    def close(self) -> None:
        """Withdraws all values; safe to repeat."""
        self._closed = True
        for gauge in self._values:
            _parts[gauge, self._model].pop(self, None)
            self._sum(gauge)
        self._values.clear()

    def _sum(self, gauge: Gauge) -> None:
        parts = _parts[gauge, self._model]
        gauge.labels(self._model).set(sum(parts.values()))
        if not parts:
            del _parts[gauge, self._model]


def model_metrics() -> list[Metric]:
    """Returns all of this process's metrics with the label `model`."""
    return [each for each in globals().values() if isinstance(each, Metric) and _MODEL_LABEL in each._labelnames]


def forget_others(known: Collection[str]) -> set[str]:
    """Removes the series of all models but those in `known`; returns the removed models.

    A request that still runs when its model goes may recreate a series: call this periodically.
    """
    gone = set()
    for metric in model_metrics():
        place = metric._labelnames.index(_MODEL_LABEL)
        models = {labels[place] for labels in list(metric._metrics)}  # `collect` would take milliseconds
        for model in models - {"", *known}:
            metric.remove_by_labels({_MODEL_LABEL: model})
            gone.add(model)
    return gone
