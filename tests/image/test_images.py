"""The image core on a real pipeline with random weights: the pictures are noise, but follow the request."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import pytest_asyncio

from services.errors import AllmError, Internal, InvalidRequest, ModelNotFound, RateLimited, Timeout
from services.image.engine import messages
from services.image.engine.messages import Finished, Progress
from services.image.images import Images, PictureFile, Started
from services.image.manager import TILE, GenerationJob
from services.image.parameters import OutputFormat
from services.settings.settings import load_settings
from services.worker import watchdog
from services.worker.model_in_worker import JUST
from tests.case import case
from tests.image.engine.tiny_pipelines import SIDE, TOKENS, saved
from tests.image.image_core import PATIENCE_SECONDS, Studio, asked, image_core, opened
from tests.pictures.picture_files import file, halves
from tests.spending import Purse

pytestmark = pytest.mark.asyncio(loop_scope="module")
BATCH, QUEUE = 4, 4  # pictures per batch, and requests that may wait


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def studio(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Studio]:
    folder = saved("StableDiffusionPipeline", tmp_path_factory.mktemp("tiny"))
    limits = {"ALLM_IMAGE_BATCH": str(BATCH), "ALLM_IMAGE_QUEUE": str(QUEUE)}
    async with image_core(tmp_path_factory.mktemp("home"), {"tiny": folder}, **limits) as studio:
        await studio.generated()  # starts the worker here, so that no test has to wait for it
        yield studio


async def test_pictures_are_generated_with_their_parameters(studio: Studio) -> None:
    first, second = await studio.generated(count=2)
    assert [(each.index, each.seed, each.width, each.height) for each in (first, second)] == [
        (0, 7, SIDE, SIDE),
        (1, 8, SIDE, SIDE),
    ]
    image = opened(second)
    assert (image.format, image.size) == ("PNG", (SIDE, SIDE))
    reported = {"Software": "allm", "Model": "tiny", "Seed": "8", "Steps": "2", "Guidance": "7.5"}
    assert reported.items() <= image.info.items()
    assert "a red circle" not in str(image.info)
    (again,) = await studio.generated(seed=8)
    assert opened(again).info["Seed"] == "8"
    assert first.data != second.data


async def test_the_same_seed_gives_the_same_picture(studio: Studio) -> None:
    (one,), (other,), (another,) = [await studio.generated(seed=seed) for seed in (1, 1, 2)]
    assert one.data == other.data != another.data


async def test_news_come_in_order(studio: Studio) -> None:
    events = await studio.events(asked(steps=4, partials=2, progress=True))
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert (events[0].parameters.steps, events[0].seed) == (4, 7)
    assert events[0].prompt_tokens > 0
    steps = [event.step for event in events if isinstance(event, Progress)]
    assert steps == sorted(steps)
    assert steps[-1] == 4
    assert [event.partial for event in events if isinstance(event, PictureFile)] == [0, 1, None]
    assert events[-1].steps == 4


@pytest.mark.parametrize("kind", ["jpeg", "webp"])
async def test_other_formats(studio: Studio, kind: str) -> None:
    (picture,) = await studio.generated(output=OutputFormat(kind, 90), size=(SIDE * 2, SIDE))  # type: ignore[arg-type]
    image = opened(picture)
    assert (image.format, image.size) == (kind.upper(), (SIDE * 2, SIDE))


async def test_an_image_is_redrawn_everywhere_or_under_a_mask(studio: Studio) -> None:
    image = file(halves(100, 50))
    mask = file(halves(100, 50, (0, 0, 0, 0), (0, 0, 0, 255)))
    (whole,), (part,), (varied,) = [
        await studio.generated(task="edit", image=image),
        await studio.generated(task="edit", image=image, mask=mask),
        await studio.generated(task="vary", prompt="", image=image),
    ]
    for picture in (whole, part, varied):
        assert picture.width > picture.height, "the shape of the image"
    assert opened(whole).info["Strength"] != opened(part).info["Strength"], "the model's own, for each"
    (square,) = await studio.generated(task="vary", prompt="", image=image, size=(SIDE, SIDE), strength=0.5)
    assert (square.width, square.height) == (SIDE, SIDE)


async def test_mismatch_is_refused_by_name(studio: Studio) -> None:
    for changes, param, says in [
        ({"size": (SIDE + 1, SIDE)}, "size", "multiples of"),
        ({"steps": 100_000}, "steps", "from 1 to"),
        ({"guidance": 1000.0}, "guidance", "not 1000"),
        ({"scheduler": "magic"}, "scheduler", "one of"),
        ({"prompt": "word " * 1000}, "prompt", f"at most {TOKENS - 2}"),
        ({"task": "edit", "image": b"nothing"}, "image", "not a PNG, JPEG or WebP"),
        ({"task": "edit", "image": file(halves()), "mask": file(halves(8, 8))}, "mask", "8x8.*64x32"),
        ({"task": "edit", "image": file(halves()), "strength": 0.1}, "strength", "less than one step"),
    ]:
        with case(changes=changes, param=param, says=says):
            with pytest.raises(InvalidRequest, match=says) as caught:
                await studio.generated(**changes)
            assert caught.value.param == param


async def test_the_worker_gets_the_whole_request(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    (resident,) = studio.residents
    sent: list[object] = []
    send = resident._worker.send
    monkeypatch.setattr(resident._worker, "send", lambda message: (sent.append(message), send(message)))
    await studio.generated(count=3, negative_prompt="blue", partials=1, progress=True, seed=9, size=(SIDE, SIDE * 2))
    (generate,) = sent
    assert isinstance(generate, messages.Generate)
    assert (generate.client, generate.count, generate.partials, generate.progress) == ("me", 3, 1, True)
    assert (generate.draft.prompt, generate.draft.negative, generate.draft.seed) == ("a red circle", "blue", 9)
    parameters = generate.parameters
    assert (parameters.width, parameters.height, parameters.steps, parameters.strength) == (SIDE, SIDE * 2, 2, None)


async def test_unknown_model_is_reported_by_name(studio: Studio) -> None:
    with pytest.raises(ModelNotFound, match="nobody"):
        await studio.generated(model="nobody")


async def test_requests_of_many_callers_all_get_theirs(studio: Studio) -> None:
    found = await asyncio.gather(*(studio.generated(seed=1 + at % 2, prompt="a red circle") for at in range(6)))
    assert len(found) == 6
    assert all(opened(picture).size == (SIDE, SIDE) for (picture,) in found)
    assert [picture.seed for (picture,) in found] == [1, 2, 1, 2, 1, 2]


async def test_a_caller_that_leaves_makes_room(studio: Studio) -> None:
    async with studio.generating(asked(steps=40, count=10, progress=True)) as events:
        async for event in events:
            if isinstance(event, Progress):
                break
    (resident,) = studio.residents
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert len(await studio.generated()) == 1
        while resident.counters.running:  # noqa: ASYNC110 (of another process)
            await asyncio.sleep(0.01)


async def test_full_queue_is_reported_with_its_setting(studio: Studio) -> None:
    (resident,) = studio.residents
    os.kill(resident.pid, signal.SIGSTOP)  # no picture can be done before the last request arrives
    try:
        async with AsyncExitStack() as stack:
            for _ in range(BATCH + QUEUE):
                await stack.enter_async_context(studio.generating(asked()))
            with pytest.raises(AllmError, match="ALLM_IMAGE_QUEUE"):
                await studio.generated()
    finally:
        os.kill(resident.pid, signal.SIGCONT)
    assert len(await studio.generated()) == 1


async def test_pictures_say_nothing_where_the_operator_wants_that(studio: Studio) -> None:
    settings = load_settings({"ALLM_IMAGE_METADATA": "off"}).image
    silent = replace(studio, images=Images(studio.images._models, studio.pictures, settings))
    (plain,) = await silent.generated()
    assert opened(plain).info == {}


@pytest.mark.slow
async def test_dead_worker_is_reported_and_replaced(studio: Studio) -> None:
    (resident,) = studio.residents
    os.kill(resident.pid, signal.SIGSTOP)  # the picture cannot be done before the worker dies
    with pytest.raises(Internal, match="SIGKILL"):
        async with studio.generating(asked()) as events:
            (request,) = resident._requests.values()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while time.monotonic() - request.started <= JUST:  # noqa: ASYNC110 (it might not have been read)
                    await asyncio.sleep(0.01)
            os.kill(resident.pid, signal.SIGKILL)
            async for _ in events:
                pass
    assert len(await studio.generated()) == 1
    (other,) = studio.residents
    assert other.pid != resident.pid


@pytest.mark.slow
async def test_a_hung_worker_is_replaced_and_its_requests_end_with_timeout(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    (resident,) = studio.residents
    os.kill(resident.pid, signal.SIGSTOP)
    since, clock = time.monotonic(), time.monotonic
    fast = SimpleNamespace(monotonic=lambda: since + 5 * (clock() - since))  # 30 seconds pass in six
    monkeypatch.setattr(watchdog, "time", fast)
    with pytest.raises(Timeout, match="no progress for 30 seconds"):
        await studio.generated()
    monkeypatch.undo()
    assert len(await studio.generated()) == 1
    (other,) = studio.residents
    assert other.pid != resident.pid
    assert not psutil.pid_exists(resident.pid)


# --- keys with a token rate limit


async def test_pixels_count_as_tokens(studio: Studio) -> None:
    purse = Purse(tokens=4)
    events = await purse.pays(studio.events(asked(count=2)))
    (started,) = [event for event in events if isinstance(event, Started)]
    assert purse.spent == started.prompt_tokens + 2 * SIDE * SIDE / TILE**2
    with pytest.raises(RateLimited):
        await purse.pays(studio.events(asked()))


async def test_computed_share_of_a_cancelled_image_counts(studio: Studio) -> None:
    purse = Purse(tokens=1_000_000)

    async def part() -> None:
        async with studio.generating(asked(steps=50), "ann") as events:
            async for event in events:
                if isinstance(event, Progress) and event.step >= 5:
                    return

    await purse.pays(part())
    assert purse.spent > 0


async def test_cost_of_a_partial_image() -> None:
    job, pixels = GenerationJob(), 2 * 1024 * 1024
    assert job.tokens(pixels) == 0
    job.push(messages.Accepted(1, 7))
    assert job.tokens(pixels) == 7
    job.push(messages.Progress(1, 5, 20))
    assert job.tokens(pixels) == 7 + 2048
    job.push(messages.Finished(1, 1.0, 40))
    assert job.tokens(pixels) == 7 + 8192
