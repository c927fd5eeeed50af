"""A scripted runtime that makes no images and records its calls, for tests of the order of computation."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.image.engine.loop import BatchLoop
from services.image.engine.messages import (
    Draft,
    Finished,
    Generate,
    GuidanceRange,
    Parameters,
    Picture,
    PipelineReady,
    Progress,
    Sizes,
    Stepped,
)
from services.image.engine.runtime import AfterStep, PromptLength
from services.worker.messages import Cancel, EngineError, RequestRefused

READY = PipelineReady(
    family="Scripted",
    sizes=Sizes(width=64, height=64, multiple_of=8, min_side=16, max_side=256, max_pixels=128 * 128),
    default_steps=20,
    max_steps=100,
    guidance=GuidanceRange(default=7.5, minimum=0.0, maximum=30.0),
    schedulers=["ddim", "euler"],
    default_scheduler="ddim",
    prompt_tokens=5,
    modes=["text_to_image", "image_to_image", "inpainting"],
    negative=True,
    image_strength=0.8,
    mask_strength=1.0,
    batch_images=4,
)


def asked(request: int = 1, **changed: object) -> Generate:
    """Builds a request that fits READY. `changed` are fields of the request, its parameters or its draft."""
    parameters = {"width": 64, "height": 64, "steps": 4, "guidance": 7.5, "scheduler": "ddim"}
    if "image" in changed:
        parameters["strength"] = 1.0
    draft = {"prompt": f"p{request}", "seed": 100 * request}
    whole: dict[str, object] = {"client": "a"}
    for name, value in changed.items():
        part = next(
            (part for part, kind in ((parameters, Parameters), (draft, Draft)) if name in kind.__slots__), whole
        )
        part[name] = value  # type: ignore[assignment]
    return Generate(request=request, parameters=Parameters(**parameters), draft=Draft(**draft), **whole)  # type: ignore[arg-type]


@dataclass
class Scripted:
    """A runtime whose pixels are the image's seed. Each word is a token."""

    ready: PipelineReady = READY
    faults: dict[int, EngineError] = field(default_factory=dict)  # seeds that cannot be computed
    most: int = 100  # largest batch that fits in memory
    between: dict[int, Callable[[], None]] = field(default_factory=dict)  # callbacks during a batch's steps
    batches: list[tuple[Parameters, list[Draft]]] = field(default_factory=list)
    wanted: list[list[int]] = field(default_factory=list)  # after each step
    ended: int = 0  # batches that ended early because no request needed them

    def fit(self, prompt: str) -> PromptLength:
        return PromptLength(len(prompt.split()), self.ready.prompt_tokens)

    def generate(
        self, parameters: Parameters, drafts: Sequence[Draft], after_step: AfterStep, beat: Callable[[], None]
    ) -> list[bytes | None]:
        self.batches.append((parameters, list(drafts)))
        if len(drafts) > self.most:
            raise EngineError("OUT_OF_MEMORY", "not enough memory")
        for draft in drafts:
            if draft.seed in self.faults:
                raise self.faults[draft.seed]
        beat()
        rows: set[int] = set()
        for step in range(1, parameters.steps + 1):
            self.between.get(step, lambda: None)()

            def preview(rows: Sequence[int], step: int = step) -> list[bytes]:
                return [b"%d after %d" % (drafts[row].seed, step) for row in rows]

            rows = set(after_step(step, parameters.steps, preview))
            self.wanted.append(sorted(rows))
            if not rows:
                self.ended += 1
                return [None] * len(drafts)
        return [b"%d" % draft.seed if row in rows else None for row, draft in enumerate(drafts)]

    @property
    def seeds(self) -> list[list[int]]:
        """Returns the image seeds of each batch."""
        return [[draft.seed for draft in drafts] for _, drafts in self.batches]


class LoopOfImages:
    """A batch loop that is stepped by hand."""

    def __init__(self, runtime: Scripted) -> None:
        self.runtime = runtime
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.sent: list[object] = []
        self.loop = BatchLoop(runtime, self.inbox, self.sent.append)  # type: ignore[arg-type]

    def ask(self, request: int, **changed: object) -> None:
        self.inbox.put(asked(request, **changed))

    def cancel(self, request: int) -> None:
        self.inbox.put(Cancel(request))

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.loop.turn()

    def work(self, *requests: int) -> None:
        """Steps the loop until the requests have ended."""
        for _ in range(100):
            if {message.request for message in (*self.of(Finished), *self.of(RequestRefused))} >= set(requests):
                return
            self.turn()
        raise AssertionError("the requests do not end")

    def of(self, kind: type) -> list:
        return [message for message in self.sent if isinstance(message, kind)]

    def pictures(self, request: int) -> list[bytes]:
        """Returns the pixels of a request's images, by index."""
        found = [one for one in self.of(Picture) if one.request == request and one.partial is None]
        return [one.pixels for one in sorted(found, key=lambda one: one.index)]

    def partials(self, request: int) -> list[Picture]:
        return [one for one in self.of(Picture) if one.request == request and one.partial is not None]

    def progress(self, request: int) -> list[tuple[int, int]]:
        return [(one.step, one.steps) for one in self.of(Progress) if one.request == request]

    @property
    def counters(self):
        return self.of(Stepped)[-1].counters
