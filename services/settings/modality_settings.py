"""Settings of the three services that run models: text with its store of responses, audio, image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from services.settings import setting

MIB = 1024 * 1024
MAX_BYTES = 1024 * 1024 * 1024 * MIB
SPECULATIONS = ("off", "ngram")  # how a text model guesses tokens
DTYPES = ("auto", "bfloat16", "float16", "float32")  # precision of text and image models
# Precision of audio models, in CTranslate2's names; an int8 type computes its other parts in the type after the `_`.
COMPUTE_TYPES = ("auto", "float32", "float16", "bfloat16", "int8", "int8_float32", "int8_float16", "int8_bfloat16")
MODALITIES = "text, audio, image"  # the services that run models


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings that workers of all modalities share."""

    SECTION: ClassVar = "Text models"
    device: str = setting.choice("ALLM_DEVICE", "auto", ("auto", "cuda", "vulkan", "mps", "cpu"), MODALITIES)
    """device that models run on; with `auto` each runtime takes the best one that it can use, and without a GPU accepts
    models of up to 4 GiB; with any other value a runtime that cannot use the device serves nothing"""
    threads: int = setting.integer(
        "ALLM_THREADS", 0, 0, 512, "threads", MODALITIES, means="one per core that this process may use"
    )
    """compute threads of one model"""
    stall_seconds: float = setting.seconds("ALLM_STALL_SECONDS", 30.0, 1.0, 86_400.0, MODALITIES)
    """a worker that has work but completes no step for so long is killed, see
    [architecture.md](architecture.md#what-ends-a-request-early)"""
    load_seconds: float = setting.seconds("ALLM_LOAD_SECONDS", 600.0, 1.0, 86_400.0, MODALITIES)
    """maximum time to load a model"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSettings(WorkerSettings):
    """Settings of text models. Zero means: derived from the model and the machine."""

    context_tokens: int = setting.integer(
        "ALLM_CONTEXT_TOKENS", 0, 0, 10_000_000, "tokens", "text", means="the model's trained length, at most 32768"
    )
    """maximum number of tokens of prompt and answer together"""
    kv_tokens: int = setting.integer(
        "ALLM_KV_TOKENS",
        0,
        0,
        100_000_000,
        "tokens",
        "text",
        means="512 for each of `ALLM_MAX_SEQUENCES`, but at least one context",
    )
    """number of KV cells, which all requests share"""
    max_sequences: int = setting.integer("ALLM_MAX_SEQUENCES", 32, 1, 192, "requests", "text")
    """maximum number of requests that decode at the same time"""
    batch_tokens: int = setting.integer("ALLM_BATCH_TOKENS", 2048, 32, 65536, "tokens", "text")
    """maximum number of tokens computed in one step; without a GPU, generative models compute at most 512"""
    chunk_tokens: int = setting.integer("ALLM_CHUNK_TOKENS", 512, 16, 65536, "tokens", "text")
    """maximum number of prompt tokens in a step in which other requests decode; most such steps have fewer, so that
    running answers go on evenly"""
    queue_limit: int = setting.integer("ALLM_QUEUE_LIMIT", 256, 0, 100_000, "requests", "text")
    """maximum number of waiting requests; more are refused with OVERLOADED"""
    queue_tokens: int = setting.integer(
        "ALLM_QUEUE_TOKENS",
        0,
        0,
        1_000_000_000,
        "tokens",
        "text",
        means="16 times the KV cells; 1200000 for embedding models",
    )
    """maximum number of prompt tokens of all waiting requests together; requests beyond it are refused with OVERLOADED,
    but never a request that would wait alone"""
    prefix_cache: bool = setting.switch("ALLM_PREFIX_CACHE", True, "text")
    """whether later requests of a client reuse the prefixes of its earlier requests"""
    speculation: str = setting.choice("ALLM_SPECULATION", "ngram", SPECULATIONS, "text")
    """how the next tokens are guessed, to compute several in one step; `ngram`: from repetitions in the request's and
    the client's own texts, where that is faster. The tokens stay the same, see [speculation.md](speculation.md)"""
    dtype: str = setting.choice("ALLM_DTYPE", "auto", DTYPES, "text")
    """precision of safetensors models; `auto` is 16 bits on every device that computes in 16 bits, even for checkpoints
    of 32 bits; rerankers stay in 32 bits on a CPU"""
    tensor_parallel: int = setting.integer("ALLM_TENSOR_PARALLEL", 1, 1, 64, "GPUs", "text")
    """GPUs of this machine that compute one safetensors model together; without a GPU, processes"""
    llama_libraries: Path | None = setting.file(
        "ALLM_LLAMA_LIBRARIES", "text", allowed="folder", means="`llama.cpp` in the Python environment"
    )
    """folder with the builds of llama.cpp for GPUs, in `cuda` and `vulkan`: `make llama-cuda`, `make llama-vulkan`"""
    vllm_python: str = setting.program(
        "ALLM_VLLM_PYTHON", "text", allowed="path of an interpreter", means="the service's own interpreter"
    )
    """Python interpreter with vLLM, for models with the runtime `vllm`; it also needs allm: `make vllm` creates such an
    environment"""
    ray_address: str = setting.endpoint("ALLM_RAY_ADDRESS", "auto", "text")
    """Ray cluster on which vLLM computes models that need more GPUs than this machine has; `auto`: the cluster that
    this machine belongs to. Unset: no cluster, vLLM uses processes of this machine"""
    vllm_compile: bool = setting.switch("ALLM_VLLM_COMPILE", True, "text")
    """whether vLLM compiles models: they load more slowly, the first time by minutes, and compute faster; without a GPU
    this needs g++ or clang++, and without either of them models are not compiled"""
    vllm_cache: Path = Path("$ALLM_HOME/cache/vllm")  # compiled models
    platform_tools: str = setting.choice("ALLM_PLATFORM_TOOLS", "ignore", ("ignore", "refuse"), "text")
    """whether Responses leave out tools that only OpenAI's platform runs, such as `web_search`, and Messages those that
    only Anthropic defines, if the caller also brings functions, or refuse them
    ([responses.md](responses.md#differences-from-openai), [messages.md](messages.md#parameters))"""
    request_seconds: float = setting.seconds("ALLM_REQUEST_SECONDS", 600.0, 0.1, 86_400.0, "text")
    """maximum duration of a text request"""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Retention of responses, which can be read again and continued."""

    SECTION: ClassVar = "Text models"
    enabled: bool = setting.switch("ALLM_STORE", True, "text")
    """whether responses are stored, in `$ALLM_HOME/responses.db`, so that they can be read again and continued; `off`
    stores nothing"""
    days: float = setting.number("ALLM_STORE_DAYS", 30.0, 0.001, 3650.0, "days", "text")
    """age at which a stored response is deleted"""
    client_bytes: int = setting.integer("ALLM_STORE_BYTES", 1024 * MIB, 0, 1024 * 1024 * MIB, "bytes", "text")
    """size of the stored responses of one key, at which further ones are refused; 0 stores none"""
    redis_url: str = setting.redis("ALLM_REDIS_URL", f"{MODALITIES}, authorizer")
    """Redis that stores responses and counts the tokens of keys, in place of `ALLM_HOME`, for replicas on several
    hosts, and the requests of keys, for several gateways; `rediss://` is TLS; never logged"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioSettings(WorkerSettings):
    """Settings of audio models, and limits on audio files. Zero means: derived from the model and the machine."""

    SECTION: ClassVar = "Audio models"
    compute_type: str = setting.choice("ALLM_AUDIO_COMPUTE_TYPE", "auto", COMPUTE_TYPES, "audio")
    """precision of audio models; a precision that the device does not support is refused when a model is loaded"""
    batch_windows: int = setting.integer(
        "ALLM_AUDIO_BATCH", 0, 0, 256, "windows", "audio", means="derived from the model and the device"
    )
    """maximum number of windows of 30 seconds, of all requests, that are computed together"""
    whole_windows: bool = setting.switch("ALLM_AUDIO_WHOLE_WINDOWS", False, "audio")
    """whether the encoder computes 30 seconds for every window, as Whisper's own code does, even if the audio is
    shorter: several times slower for short clips"""
    beam_size: int = setting.integer("ALLM_BEAM_SIZE", 5, 1, 10, "beams", "audio")
    """width of the beam search for transcriptions that do not set one; 1 is greedy"""
    max_audio_bytes: int = setting.integer("ALLM_MAX_AUDIO_BYTES", 25 * MIB, 1024, 64 * 1024 * MIB, "bytes", "audio")
    """maximum size of an audio file"""
    max_audio_seconds: float = setting.seconds("ALLM_MAX_AUDIO_SECONDS", 14_400.0, 1.0, 864_000.0, "audio")
    """maximum length of the audio"""
    decoders: int = setting.integer("ALLM_AUDIO_DECODERS", 16, 1, 256, "processes", "audio")
    """files that are decoded at the same time, each in its own process"""
    queue_limit: int = setting.integer("ALLM_AUDIO_QUEUE", 64, 0, 10_000, "requests", "audio")
    """transcriptions that may wait for a batch slot, and as many for a decoder; more are refused with OVERLOADED"""
    request_seconds: float = setting.seconds("ALLM_AUDIO_REQUEST_SECONDS", 3600.0, 0.1, 864_000.0, "audio")
    """maximum duration of a transcription, including live ones"""
    cache_folder: Path = Path("$ALLM_HOME/cache/audio")  # converted weights
    upload_folder: Path = Path("$ALLM_HOME/uploads")  # uploaded files during decoding


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings(WorkerSettings):
    """Settings of image models, limits on image files, and storage of results. Zero means: derived."""

    SECTION: ClassVar = "Image models"
    dtype: str = setting.choice("ALLM_IMAGE_DTYPE", "auto", DTYPES, "image")
    """precision of image models"""
    batch_images: int = setting.integer(
        "ALLM_IMAGE_BATCH", 0, 0, 256, "images", "image", means="derived from the free memory"
    )
    """maximum number of images, of all requests, that are computed together"""
    queue_limit: int = setting.integer("ALLM_IMAGE_QUEUE", 64, 0, 10_000, "requests", "text, image")
    """image requests that may wait for a model, and as many for a file to be fetched, decoded or encoded; more are
    refused with OVERLOADED"""
    request_seconds: float = setting.seconds("ALLM_IMAGE_REQUEST_SECONDS", 600.0, 0.1, 86_400.0, "image")
    """maximum duration of an image request"""
    max_image_bytes: int = setting.integer("ALLM_MAX_IMAGE_BYTES", 25 * MIB, 1024, 128 * MIB, "bytes", "text, image")
    """maximum size of an image file in a request"""
    upload_bytes: int = setting.integer(
        "ALLM_IMAGE_UPLOAD_BYTES", 512 * MIB, 256 * MIB, MAX_BYTES, "bytes", "text, image"
    )
    """size of the input images of all requests together, in conversations of their pixels; they stay in memory until
    their request ends; requests beyond it are refused with OVERLOADED, but for those of keys below an equal share, up
    to twice as many bytes in all"""
    max_image_pixels: int = setting.integer("ALLM_MAX_IMAGE_PIXELS", 16 * MIB, 4096, 64 * MIB, "pixels", "text, image")
    """maximum number of pixels, width times height, of an image in a request"""
    codecs: int = setting.integer("ALLM_IMAGE_CODECS", 4, 1, 64, "processes", "text, image")
    """image files that are decoded at the same time, and as many that are encoded, each in its own process"""
    metadata: bool = setting.switch("ALLM_IMAGE_METADATA", True, "image")
    """whether PNG files contain model, seed and settings in their text chunks"""
    folder: Path = setting.path("ALLM_IMAGE_FOLDER", "$ALLM_HOME/images", "text, image")
    """folder for images that are answered with a `url`; each is kept for one hour. All replicas of the image service
    must share it; the text service reads images from it that a conversation names by their `url`"""
    folder_bytes: int = setting.integer("ALLM_IMAGE_FOLDER_BYTES", 10 * 1024 * MIB, MIB, MAX_BYTES, "bytes", "image")
    """maximum size of all images in `ALLM_IMAGE_FOLDER` together; beyond it, requests with `response_format` `url` are
    refused with OVERLOADED"""
    public_url: str = setting.url(
        "ALLM_PUBLIC_URL",
        "text, image",
        means="`http://` (`https://` with `ALLM_TLS_CERT`), `ALLM_HOST` and `ALLM_PORT`",
        section="The gateway",
    )
    """URL at which callers reach the gateway; the `url` of an image begins with it. If it contains a host name, add
    that name to `ALLM_ALLOWED_HOSTS`"""
    hosts: tuple[str, ...] = setting.hosts("ALLM_IMAGE_HOSTS", "text")
    """hosts from which the text service fetches the pictures of conversations, with https: `host` or `host:port`. A
    private address to which a host resolves must be in the list as well"""
    fetch_seconds: float = setting.seconds("ALLM_IMAGE_FETCH_SECONDS", 10.0, 0.1, 600.0, "text")
    """maximum time to fetch a picture from such a host"""
