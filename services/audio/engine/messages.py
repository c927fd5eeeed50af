"""Messages between the audio service and its worker. Times are seconds in the file; sound is 16 kHz mono int16."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from services.worker.messages import Cancel, LoadFailed, Loading, Phase, RequestRefused, Stop

SAMPLE_RATE = 16_000  # of all sound that a worker takes
Task = Literal["transcribe", "translate"]
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of Whisper's paper: the next one applies where a result looks wrong

CPU_WINDOWS = 8  # computed together: more gain nothing on a few cores and delay the next request
GPU_WINDOWS = 24
SMALL_BYTES = 160_000_000  # of weights: tiny and base, in 16 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of a loaded model; zero means derived from the model and the machine."""

    model_id: str
    path: str
    threads: int
    gpu: bool
    device: str = ""  # the kind of the GPU: cuda or mps; empty: cuda
    compute_type: str = "auto"  # auto, or one of the runtime's: float32, float16, bfloat16, int8, int8_float16, ...
    batch_windows: int = 0  # most windows of 30 s that are computed together
    cache_folder: str = ""  # folder for a runtime's converted weights; empty: none
    whole_windows: bool = False  # pad every window to 30 s, as the reference does: slower

    @property
    def most_windows(self) -> int:
        """Windows that are computed together: the operator's limit, or the default of the device."""
        return self.batch_windows or (GPU_WINDOWS if self.gpu else CPU_WINDOWS)

    def lanes(self, weight_bytes: int) -> int:
        """Returns the parallel calls of a CTranslate2 model, which share the threads: 2 for two threads, 4 for eight
        and more.

        The operations of a small model are so short that its threads wait for each other a quarter of the time;
        parallel calls do not wait, and they share the weights. A large model keeps all threads busy with one call,
        which answers a single caller sooner.
        """
        if self.gpu or weight_bytes > SMALL_BYTES:
            return 1
        return max(count for count in (1, 2, 4) if count * count <= 2 * max(1, self.threads))


@dataclass(frozen=True, slots=True, kw_only=True)
class VadOptions:
    """Options of voice activity detection."""

    threshold: float = 0.5  # least probability at which sound is speech
    silence_ms: int = 200  # pause that ends a stretch of speech
    padding_ms: int = 300  # kept before and after a stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Options of one request."""

    task: Task = "transcribe"
    language: str = ""  # ISO 639-1, as Whisper names it; empty: detected in the first window
    prompt: str = ""
    temperatures: tuple[float, ...] = TEMPERATURES  # tried in this order; never empty
    beam_size: int = 5  # at temperature 0; 1 is greedy
    best_of: int = 5  # samples above temperature 0
    words: bool = False  # return words with their times
    logprobs: bool = False  # return each token's logprob
    vad: VadOptions | None = field(default_factory=VadOptions)  # None: every second is decoded, as Whisper itself does
    live: bool = False  # sound arrives as it is spoken: pauses end windows, and partials are sent
    conditioned: bool = True  # without `vad`: each window is prompted with the text before it


@dataclass(frozen=True, slots=True)
class Load:
    """First message to a worker: the runtime and the model."""

    runtime: str
    options: EngineOptions


@dataclass(frozen=True, slots=True)
class Submit:
    """A request; its sound follows."""

    request: int
    client: str
    decoding: Decoding
    deadline: float | None = None  # on the monotonic clock; the caller waits no longer


@dataclass(frozen=True, slots=True)
class Sound:
    """The next sound of a request: little-endian int16, 16 kHz, mono. Nothing follows `last`."""

    request: int
    samples: bytes
    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperReady:
    """The model is loaded."""

    languages: list[str]  # codes, as in `Decoding.language`
    multilingual: bool  # detects languages and translates; else it knows one language
    batch_windows: int  # most windows that are computed together


@dataclass(frozen=True, slots=True)
class Consumed:
    """The worker no longer holds the request's first `samples` samples, except in windows."""

    request: int
    samples: int


@dataclass(frozen=True, slots=True)
class LanguageFound:
    """The request's language, once before its first segment; never if nothing was said. A given language has 1.0."""

    request: int
    language: str
    probability: float


@dataclass(frozen=True, slots=True)
class Word:
    """A word with the space or punctuation that belongs to it."""

    word: str
    start: float
    end: float
    probability: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The logprob of a text token at temperature 1."""

    piece: bytes  # may be only part of a character
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A phrase."""

    index: int  # in the request, from 0
    seek: int  # start of the window, in hundredths of a second, as in Whisper's own output
    start: float
    end: float
    text: str
    tokens: list[int]  # with timestamp tokens, which count from the window's beginning
    temperature: float
    avg_logprob: float  # of the window
    compression_ratio: float  # of the window's text
    no_speech_prob: float  # of the window
    words: list[Word] | None = None  # if requested
    logprobs: list[TokenLogprob] | None = None  # if requested


@dataclass(frozen=True, slots=True)
class Transcribed:
    """The next segments of a request, in order."""

    request: int
    segments: list[Segment]


@dataclass(frozen=True, slots=True)
class PartialText:
    """The text so far of speech that is not over; the request's next partial or segment replaces it."""

    request: int
    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The request is done; the worker has forgotten it."""

    request: int
    language: str  # empty if nothing was said
    seconds: float  # of sound
    speech_seconds: float  # of these, seconds that were decoded
    tokens: int  # of all segments' text


@dataclass(frozen=True, slots=True)
class Counters:
    """The loop's own counters after a step."""

    steps: int
    running: int  # requests with a window in progress
    waiting: int  # requests whose windows wait, or that have sent nothing to decode yet
    windows: int  # computed together in the last step


@dataclass(frozen=True, slots=True)
class Stepped:
    """The end of a batch loop step: the heartbeat."""

    counters: Counters
    phases: list[Phase] = field(default_factory=list)  # `windows`, of requests whose first window is in progress


ToWorker = Load | Submit | Sound | Cancel | Stop
Result = LanguageFound | Transcribed | PartialText | Finished
FromWorker = Loading | WhisperReady | LoadFailed | RequestRefused | Consumed | Result | Stepped
