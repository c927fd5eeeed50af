"""All settings that allm reads from its environment: read once, checked, and frozen.

Nothing else in the code base reads `os.environ`. A wrong value stops the start; the error names the variable and the
allowed values (`SettingError` of setting_reader.py).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.settings.cluster_settings import ClusterSettings, read_cluster
from services.settings.setting_reader import SettingReader
from services.settings.tls_settings import TlsSettings, read_tls
from services.settings.trace_settings import TraceSettings, read_traces

MIB = 1024 * 1024
MAX_BYTES = 1024 * 1024 * 1024 * MIB
AUTH_MODES = ("none", "keys", "open")
DEFAULT_CATALOG = "127.0.0.1:50050"
DTYPES = ("auto", "bfloat16", "float16", "float32")  # precision of text and image models
# Precision of audio models, in CTranslate2's names; an int8 type computes its other parts in the type after the `_`.
COMPUTE_TYPES = ("auto", "float32", "float16", "bfloat16", "int8", "int8_float32", "int8_float16", "int8_bfloat16")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The gateway's listener, and access to it."""

    host: str  # ALLM_HOST: address of the listener
    port: int  # ALLM_PORT: 0 picks a free one
    allowed_hosts: tuple[str, ...]  # ALLM_ALLOWED_HOSTS: allowed Host headers in addition to loopback; "*": any
    cors_origins: tuple[str, ...]  # ALLM_CORS_ORIGINS: origins in addition to the gateway's own whose pages may call
    max_body_bytes: int  # ALLM_MAX_BODY_BYTES: the largest request body
    auth: str = "none"  # ALLM_AUTH: none, keys or open; with `none` it listens on loopback, whatever `host` is
    authorizer: str = ""  # ALLM_AUTHORIZER: the authorizer's address, `host:port` or `unix:/path`
    stats_host: str = "127.0.0.1"  # ALLM_GATEWAY_METRICS_HOST: address of the listener for Envoy's own metrics
    stats_port: int = 0  # ALLM_GATEWAY_METRICS_PORT: 0: `allm serve` picks a free one, `allm gateway` has none
    console: bool = True  # ALLM_CONSOLE: whether it serves the console at /


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Authentication of callers."""

    mode: str  # ALLM_AUTH: none, keys or open
    secret_file: Path  # ALLM_IDENTITY_SECRET_FILE: the secret that signs identities (auth/secret_file.py)
    api_key: str = field(default="", repr=False)  # ALLM_API_KEY: the key that commands send to the gateway

    @property
    def keys(self) -> bool:
        """Whether every call needs a signed identity."""
        return self.mode == "keys"


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Settings that every service process shares."""

    listen: str  # ALLM_LISTEN: gRPC address, `host:port` or `unix:/path`
    health_listen: str  # ALLM_HEALTH_LISTEN: address of a plain gRPC health service for probes; empty: none
    metrics_host: str  # ALLM_METRICS_HOST: address of the Prometheus listener
    metrics_port: int  # ALLM_METRICS_PORT: 0 picks a free one
    log_level: str  # ALLM_LOG_LEVEL
    lifeline: int  # ALLM_LIFELINE_FD: the supervisor's pipe; the service stops once it closes; -1: none
    drain_delay_seconds: float  # ALLM_DRAIN_DELAY_SECONDS: after SIGTERM, time for load balancers to react
    drain_seconds: float  # ALLM_DRAIN_SECONDS: time for running requests to finish after that
    max_body_bytes: int  # ALLM_MAX_BODY_BYTES: the gateway's limit; gRPC messages get a little more
    slow_client_seconds: float  # ALLM_SLOW_CLIENT_SECONDS: a caller that reads nothing for so long is dropped


@dataclass(frozen=True, slots=True)
class TextSettings:
    """Settings of text models. Zero means: derived from the model and the machine."""

    device: str  # ALLM_DEVICE: auto, cuda, mps or cpu
    threads: int  # ALLM_THREADS: compute threads of one model; 0: one per core that this process may use
    context_tokens: int  # ALLM_CONTEXT_TOKENS: most tokens of prompt and answer; 0: the model's trained length
    kv_tokens: int  # ALLM_KV_TOKENS: KV cells that all requests share; 0: derived by the engine
    max_sequences: int  # ALLM_MAX_SEQUENCES: requests that decode at the same time
    batch_tokens: int  # ALLM_BATCH_TOKENS: most tokens computed in one step
    chunk_tokens: int  # ALLM_CHUNK_TOKENS: most prompt tokens in one step while other requests decode
    queue_limit: int  # ALLM_QUEUE_LIMIT: requests that may wait for a batch slot; more are refused as OVERLOADED
    queue_tokens: int  # ALLM_QUEUE_TOKENS: prompt tokens of all waiting requests together; 0: derived
    prefix_cache: bool  # ALLM_PREFIX_CACHE: whether later requests of a client reuse the prefixes of earlier ones
    dtype: str  # ALLM_DTYPE: precision of safetensors models: auto, bfloat16, float16 or float32
    tensor_parallel: int  # ALLM_TENSOR_PARALLEL: GPUs of this machine that compute a safetensors model together
    request_seconds: float  # ALLM_REQUEST_SECONDS: a request that takes longer ends with TIMEOUT
    stall_seconds: float  # ALLM_STALL_SECONDS: a worker without progress for so long is killed
    load_seconds: float  # ALLM_LOAD_SECONDS: a model that takes longer to load has failed
    vllm_python: str = ""  # ALLM_VLLM_PYTHON: the interpreter that has vLLM and allm; empty: the service's own
    ray_address: str = ""  # ALLM_RAY_ADDRESS: the Ray cluster that vLLM computes on: auto, or host:port; empty: none
    vllm_compile: bool = True  # ALLM_VLLM_COMPILE: whether vLLM compiles models: slower to load, faster to run
    vllm_cache: Path = Path()  # under ALLM_HOME: compiled models


@dataclass(frozen=True, slots=True)
class AudioSettings:
    """Settings of audio models, and limits on audio files. Zero means: derived from the model and the machine."""

    device: str  # ALLM_DEVICE: auto, cuda, mps or cpu
    threads: int  # ALLM_THREADS: compute threads of one model; 0: one per core that this process may use
    compute_type: str  # ALLM_AUDIO_COMPUTE_TYPE: precision that models run in
    batch_windows: int  # ALLM_AUDIO_BATCH: most windows of 30 seconds in one batch
    whole_windows: bool  # ALLM_AUDIO_WHOLE_WINDOWS: whether short windows are padded to 30 seconds
    beam_size: int  # ALLM_BEAM_SIZE: width of the beam search if the request has none
    max_audio_bytes: int  # ALLM_MAX_AUDIO_BYTES: the largest file
    max_audio_seconds: float  # ALLM_MAX_AUDIO_SECONDS: the longest audio
    decoders: int  # ALLM_AUDIO_DECODERS: files that are decoded at the same time, each in its own process
    queue_limit: int  # ALLM_AUDIO_QUEUE: requests that may wait for a model, and as many for a decoder
    request_seconds: float  # ALLM_AUDIO_REQUEST_SECONDS: a request that takes longer ends with TIMEOUT
    stall_seconds: float  # ALLM_STALL_SECONDS: a worker without progress for so long is killed
    load_seconds: float  # ALLM_LOAD_SECONDS: a model that takes longer to load has failed
    cache_folder: Path  # under ALLM_HOME: converted weights
    upload_folder: Path  # under ALLM_HOME: uploaded files during decoding


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """Settings of image models, limits on image files, and storage of results. Zero means: derived."""

    device: str  # ALLM_DEVICE: auto, cuda, mps or cpu
    threads: int  # ALLM_THREADS: compute threads of one model; 0: one per core that this process may use
    dtype: str  # ALLM_IMAGE_DTYPE: precision that models run in: auto, bfloat16, float16 or float32
    batch_images: int  # ALLM_IMAGE_BATCH: most images in one batch
    queue_limit: int  # ALLM_IMAGE_QUEUE: requests that may wait for a model; more are refused as OVERLOADED
    request_seconds: float  # ALLM_IMAGE_REQUEST_SECONDS: a request that takes longer ends with TIMEOUT
    stall_seconds: float  # ALLM_STALL_SECONDS: a worker without progress for so long is killed
    load_seconds: float  # ALLM_LOAD_SECONDS: a model that takes longer to load has failed
    max_image_bytes: int  # ALLM_MAX_IMAGE_BYTES: the largest file in a request
    upload_bytes: int  # ALLM_IMAGE_UPLOAD_BYTES: files of all requests in memory; more are OVERLOADED
    max_image_pixels: int  # ALLM_MAX_IMAGE_PIXELS: width x height of an image in a request
    codecs: int  # ALLM_IMAGE_CODECS: files that are decoded at the same time, and as many that are encoded
    metadata: bool  # ALLM_IMAGE_METADATA: whether PNG files contain model, seed and settings
    folder: Path  # ALLM_IMAGE_FOLDER: images that answers link to, kept for an hour; replicas share it
    folder_bytes: int  # ALLM_IMAGE_FOLDER_BYTES: the folder's capacity; when it is full, `url` is refused
    public_url: str  # ALLM_PUBLIC_URL: the gateway's URL for callers, without a trailing slash


@dataclass(frozen=True, slots=True)
class ResidencySettings:
    """Memory budgets, and which models are loaded. Zero bytes mean: no limit but the machine's."""

    folder: Path  # under ALLM_HOME: the ledger that the services of a host share
    threshold: float  # ALLM_MEMORY_THRESHOLD: share of host or device memory above which idle models are unloaded
    host_bytes: int  # ALLM_HOST_MEMORY_BYTES: the budget of all models of this host together
    device_bytes: int  # ALLM_DEVICE_MEMORY_BYTES: their budget on each device
    model_bytes: int  # ALLM_MODEL_MEMORY_BYTES: the budget of one model
    idle_seconds: float  # ALLM_IDLE_SECONDS: a model that is idle for so long is unloaded; 0: never
    max_models: int  # ALLM_MAX_LOADED_MODELS: most models that a service keeps in memory; 0: as many as fit
    preload: tuple[str, ...]  # ALLM_PRELOAD: ids or aliases of models that are loaded at the start
    visible_devices: str = ""  # CUDA_VISIBLE_DEVICES, CUDA's own variable: the GPUs that workers see; empty: all


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Retention of responses, which can be read again and continued."""

    enabled: bool  # ALLM_STORE
    days: float  # ALLM_STORE_DAYS: the age at which a response is deleted
    # ALLM_REDIS_URL: the Redis that stores them for replicas on many hosts; empty: a file. It may contain a password.
    redis_url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Sources and storage of models, and the catalog."""

    folder: Path  # ALLM_MODELS_DIR: the folder for fetched models
    roots: tuple[Path, ...]  # ALLM_MODEL_ROOTS: the only folders that `file://` sources may point to
    catalog: str  # ALLM_CATALOG: the catalog's gRPC address, `host:port` or `unix:/path`
    replica: str  # ALLM_REPLICA: this process's name, unique among all replicas of all services
    artifacts: bool  # ALLM_ARTIFACTS: whether official optimised execution caches may be used
    publishers: tuple[str, ...]  # ALLM_ARTIFACT_PUBLISHERS: their allowed publishers: `org/*` or `org/name`
    supported: Path | None  # ALLM_SUPPORTED_MODELS: the data file of known models; None: the bundled one
    models_file: Path | None  # ALLM_MODELS_FILE: models that the catalog registers by itself; None: none


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a process."""

    home: Path  # ALLM_HOME: caches, logs, state
    models: tuple[tuple[str, Path], ...]  # ALLM_MODELS: `id=path.gguf` pairs that `allm serve` registers
    aliases: tuple[tuple[str, str], ...]  # ALLM_ALIASES: `alias=id` pairs for them, comma-separated
    text_replicas: int  # ALLM_TEXT_REPLICAS: processes of the text service that `allm serve` runs
    audio_replicas: int  # ALLM_AUDIO_REPLICAS: processes of the audio service that it runs; 0: none
    image_replicas: int  # ALLM_IMAGE_REPLICAS: processes of the image service that it runs; 0: none
    gateway: GatewaySettings
    auth: AuthSettings
    service: ServiceSettings
    model: ModelSettings
    text: TextSettings
    audio: AudioSettings
    image: ImageSettings
    residency: ResidencySettings
    store: StoreSettings
    tls: TlsSettings
    cluster: ClusterSettings
    trace: TraceSettings


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Reads all settings from `environ` (default: the process's own).

    Raises:
        SettingError: a variable has a value that is not allowed.
    """
    return read_settings(SettingReader(os.environ if environ is None else environ))


def read_settings(read: SettingReader) -> Settings:
    """Reads all settings from a reader. setting_table.toml describes each variable. Raises SettingError."""
    home = read.path("ALLM_HOME", Path.home() / ".allm")
    max_body_bytes = read.integer("ALLM_MAX_BODY_BYTES", 32 * MIB, 1024, 1024 * MIB)
    return Settings(
        home=home,
        models=tuple((name, Path(path).expanduser()) for name, path in read.pairs("ALLM_MODELS", "id=/path/m.gguf")),
        aliases=read.pairs("ALLM_ALIASES", "alias=id"),
        text_replicas=read.integer("ALLM_TEXT_REPLICAS", 1, 1, 64),
        audio_replicas=read.integer("ALLM_AUDIO_REPLICAS", 1, 0, 64),
        image_replicas=read.integer("ALLM_IMAGE_REPLICAS", 1, 0, 64),
        gateway=_gateway(read, max_body_bytes),
        auth=AuthSettings(
            mode=read.choice("ALLM_AUTH", "none", AUTH_MODES),
            secret_file=read.path("ALLM_IDENTITY_SECRET_FILE", home / "identity.secret"),
            api_key=read.text("ALLM_API_KEY", ""),
        ),
        service=_service(read, max_body_bytes),
        model=_model(read, home),
        text=_text(read, home),
        audio=_audio(read, home),
        image=_image(read, home),
        residency=_residency(read, home),
        store=StoreSettings(
            enabled=read.switch("ALLM_STORE", True),
            days=read.number("ALLM_STORE_DAYS", 30.0, 0.001, 3650.0),
            redis_url=read.redis("ALLM_REDIS_URL"),
        ),
        tls=read_tls(read),
        cluster=read_cluster(read),
        trace=read_traces(read),
    )


def _gateway(read: SettingReader, max_body_bytes: int) -> GatewaySettings:
    return GatewaySettings(
        host=read.text("ALLM_HOST", "127.0.0.1"),
        port=read.integer("ALLM_PORT", 8080, 0, 65535),
        allowed_hosts=read.names("ALLM_ALLOWED_HOSTS"),
        cors_origins=read.origins("ALLM_CORS_ORIGINS"),
        max_body_bytes=max_body_bytes,
        auth=read.choice("ALLM_AUTH", "none", AUTH_MODES),
        authorizer=read.text("ALLM_AUTHORIZER", "127.0.0.1:50052"),
        stats_host=read.text("ALLM_GATEWAY_METRICS_HOST", "127.0.0.1"),
        stats_port=read.integer("ALLM_GATEWAY_METRICS_PORT", 0, 0, 65535),
        console=read.switch("ALLM_CONSOLE", True),
    )


def _service(read: SettingReader, max_body_bytes: int) -> ServiceSettings:
    return ServiceSettings(
        listen=read.text("ALLM_LISTEN", "127.0.0.1:50051"),
        health_listen=read.text("ALLM_HEALTH_LISTEN", ""),
        metrics_host=read.text("ALLM_METRICS_HOST", "127.0.0.1"),
        metrics_port=read.integer("ALLM_METRICS_PORT", 9464, 0, 65535),
        log_level=read.choice("ALLM_LOG_LEVEL", "info", ("debug", "info", "warning", "error")),
        lifeline=read.integer("ALLM_LIFELINE_FD", -1, -1, 1_000_000),
        drain_delay_seconds=read.seconds("ALLM_DRAIN_DELAY_SECONDS", 3.0, 0.0, 600.0),
        drain_seconds=read.seconds("ALLM_DRAIN_SECONDS", 30.0, 0.0, 3600.0),
        max_body_bytes=max_body_bytes,
        slow_client_seconds=read.seconds("ALLM_SLOW_CLIENT_SECONDS", 60.0, 0.1, 3600.0),
    )


def _model(read: SettingReader, home: Path) -> ModelSettings:
    folder = read.path("ALLM_MODELS_DIR", home / "models")
    roots = tuple(Path(part).expanduser().absolute() for part in read.names("ALLM_MODEL_ROOTS"))
    supported = read.text("ALLM_SUPPORTED_MODELS", "")
    models_file = read.text("ALLM_MODELS_FILE", "")
    return ModelSettings(
        folder=folder,
        roots=roots or (folder, Path.cwd()),
        catalog=read.text("ALLM_CATALOG", DEFAULT_CATALOG),
        replica=read.text("ALLM_REPLICA", f"{socket.gethostname()}-{os.getpid()}"),
        artifacts=read.choice("ALLM_ARTIFACTS", "auto", ("auto", "off")) == "auto",
        publishers=read.names("ALLM_ARTIFACT_PUBLISHERS") or ("openai/*", "nvidia/*"),
        supported=Path(supported).expanduser().absolute() if supported else None,
        models_file=Path(models_file).expanduser().absolute() if models_file else None,
    )


def _text(read: SettingReader, home: Path) -> TextSettings:
    return TextSettings(
        device=read.choice("ALLM_DEVICE", "auto", ("auto", "cuda", "mps", "cpu")),
        threads=read.integer("ALLM_THREADS", 0, 0, 512),
        context_tokens=read.integer("ALLM_CONTEXT_TOKENS", 0, 0, 10_000_000),
        kv_tokens=read.integer("ALLM_KV_TOKENS", 0, 0, 100_000_000),
        max_sequences=read.integer("ALLM_MAX_SEQUENCES", 32, 1, 192),
        batch_tokens=read.integer("ALLM_BATCH_TOKENS", 2048, 32, 65536),
        chunk_tokens=read.integer("ALLM_CHUNK_TOKENS", 512, 16, 65536),
        queue_limit=read.integer("ALLM_QUEUE_LIMIT", 256, 0, 100_000),
        queue_tokens=read.integer("ALLM_QUEUE_TOKENS", 0, 0, 1_000_000_000),
        prefix_cache=read.switch("ALLM_PREFIX_CACHE", True),
        dtype=read.choice("ALLM_DTYPE", "auto", DTYPES),
        tensor_parallel=read.integer("ALLM_TENSOR_PARALLEL", 1, 1, 64),
        request_seconds=read.seconds("ALLM_REQUEST_SECONDS", 600.0, 0.1, 86_400.0),
        stall_seconds=read.seconds("ALLM_STALL_SECONDS", 30.0, 1.0, 86_400.0),
        load_seconds=read.seconds("ALLM_LOAD_SECONDS", 600.0, 1.0, 86_400.0),
        vllm_python=_program(read.text("ALLM_VLLM_PYTHON", "")),
        ray_address=read.endpoint("ALLM_RAY_ADDRESS", "auto"),
        vllm_compile=read.switch("ALLM_VLLM_COMPILE", True),
        vllm_cache=home / "cache" / "vllm",
    )


def _program(path: str) -> str:
    """Makes the path absolute but keeps its links: an interpreter finds its packages by its own path."""
    return str(Path(path).expanduser().absolute()) if path else ""


def _audio(read: SettingReader, home: Path) -> AudioSettings:
    return AudioSettings(
        device=read.choice("ALLM_DEVICE", "auto", ("auto", "cuda", "mps", "cpu")),
        threads=read.integer("ALLM_THREADS", 0, 0, 512),
        compute_type=read.choice("ALLM_AUDIO_COMPUTE_TYPE", "auto", COMPUTE_TYPES),
        batch_windows=read.integer("ALLM_AUDIO_BATCH", 0, 0, 256),
        whole_windows=read.switch("ALLM_AUDIO_WHOLE_WINDOWS", False),
        beam_size=read.integer("ALLM_BEAM_SIZE", 5, 1, 10),
        max_audio_bytes=_max_audio_bytes(read),
        max_audio_seconds=read.seconds("ALLM_MAX_AUDIO_SECONDS", 14_400.0, 1.0, 864_000.0),
        decoders=read.integer("ALLM_AUDIO_DECODERS", 16, 1, 256),
        queue_limit=read.integer("ALLM_AUDIO_QUEUE", 64, 0, 10_000),
        request_seconds=read.seconds("ALLM_AUDIO_REQUEST_SECONDS", 3600.0, 0.1, 864_000.0),
        stall_seconds=read.seconds("ALLM_STALL_SECONDS", 30.0, 1.0, 86_400.0),
        load_seconds=read.seconds("ALLM_LOAD_SECONDS", 600.0, 1.0, 86_400.0),
        cache_folder=home / "cache" / "audio",
        upload_folder=home / "uploads",
    )


def _image(read: SettingReader, home: Path) -> ImageSettings:
    return ImageSettings(
        device=read.choice("ALLM_DEVICE", "auto", ("auto", "cuda", "mps", "cpu")),
        threads=read.integer("ALLM_THREADS", 0, 0, 512),
        dtype=read.choice("ALLM_IMAGE_DTYPE", "auto", DTYPES),
        batch_images=read.integer("ALLM_IMAGE_BATCH", 0, 0, 256),
        queue_limit=read.integer("ALLM_IMAGE_QUEUE", 64, 0, 10_000),
        request_seconds=read.seconds("ALLM_IMAGE_REQUEST_SECONDS", 600.0, 0.1, 86_400.0),
        stall_seconds=read.seconds("ALLM_STALL_SECONDS", 30.0, 1.0, 86_400.0),
        load_seconds=read.seconds("ALLM_LOAD_SECONDS", 600.0, 1.0, 86_400.0),
        max_image_bytes=read.integer("ALLM_MAX_IMAGE_BYTES", 25 * MIB, 1024, 128 * MIB),
        upload_bytes=read.integer("ALLM_IMAGE_UPLOAD_BYTES", 512 * MIB, 256 * MIB, MAX_BYTES),
        max_image_pixels=read.integer("ALLM_MAX_IMAGE_PIXELS", 16 * MIB, 4096, 64 * MIB),
        codecs=read.integer("ALLM_IMAGE_CODECS", 4, 1, 64),
        metadata=read.switch("ALLM_IMAGE_METADATA", True),
        folder=read.path("ALLM_IMAGE_FOLDER", home / "images"),
        folder_bytes=read.integer("ALLM_IMAGE_FOLDER_BYTES", 10 * 1024 * MIB, MIB, MAX_BYTES),
        public_url=read.address("ALLM_PUBLIC_URL", _gateway_url(read)),
    )


def _residency(read: SettingReader, home: Path) -> ResidencySettings:
    return ResidencySettings(
        folder=home / "ledger",
        threshold=read.number("ALLM_MEMORY_THRESHOLD", 0.9, 0.1, 1.0),
        host_bytes=read.integer("ALLM_HOST_MEMORY_BYTES", 0, 0, MAX_BYTES),
        device_bytes=read.integer("ALLM_DEVICE_MEMORY_BYTES", 0, 0, MAX_BYTES),
        model_bytes=read.integer("ALLM_MODEL_MEMORY_BYTES", 0, 0, MAX_BYTES),
        idle_seconds=read.seconds("ALLM_IDLE_SECONDS", 0.0, 0.0, 31_536_000.0),
        max_models=read.integer("ALLM_MAX_LOADED_MODELS", 0, 0, 10_000),
        preload=read.names("ALLM_PRELOAD"),
        visible_devices=read.text("CUDA_VISIBLE_DEVICES", ""),
    )


def _gateway_url(read: SettingReader) -> str:
    """Returns the gateway's URL on this machine."""
    host = read.text("ALLM_HOST", "127.0.0.1")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (nothing is bound here)
    scheme = "https" if read.text("ALLM_TLS_CERT", "") else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{read.integer('ALLM_PORT', 8080, 0, 65535)}"


def _max_audio_bytes(read: SettingReader) -> int:
    return read.integer("ALLM_MAX_AUDIO_BYTES", 25 * MIB, 1024, 64 * 1024 * MIB)
