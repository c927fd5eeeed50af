"""The examination of one part: answers, batch, memory, a killed worker, eviction, speed, graphs, peers."""

from __future__ import annotations

import asyncio
import importlib.metadata
import multiprocessing
import os
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu import answers, apart, material, speed
from bench.gpu.material import Place
from bench.gpu.parts import Part
from bench.gpu.result import Failed, NotRun, Result
from bench.gpu.session import Peak, Session, Subject
from bench.gpu.speed import Sizes
from bench.gpu.tolerances import TOLERANCES
from services.byte_count import bytes_word
from services.errors import AllmError
from services.models.descriptor import EngineSettings

ANSWER_TOKENS = 24
STEPS = 20  # of a picture
DIES_SECONDS = 60.0  # for a request to notice that its worker was killed


@dataclass(frozen=True, slots=True)
class Plan:
    """What all parts share."""

    place: Place
    out: Path
    sizes: Sizes
    bandwidth: float  # bytes per second; 0: not measured

    @property
    def device(self) -> str:
        """The device under examination."""
        return self.place.device


class Examination:
    """One part on one device."""

    def __init__(self, part: Part, plan: Plan, result: Result) -> None:
        self._part = part
        self._plan = plan
        self._result = result
        self._subject = Subject("", Path(), part.format, part.runtime, EngineSettings())
        self._expected: Any = None  # the processor's answers
        self._loaded: Any = None  # the device's first answers

    async def run(self) -> None:
        """Runs all checks of the part. Raises NotRun if none of them can run."""
        path = await asyncio.to_thread(_made, self._part, self._plan.place)
        sizes = self._plan.sizes
        engine = EngineSettings()
        if self._part.format in ("gguf", "safetensors") and self._part.name != "minilm":
            most = max(sizes.clients)
            # The cache is said, not derived: so that what is taken can be compared with what was reckoned.
            engine = EngineSettings(
                context_tokens=sizes.context_tokens, max_sequences=most, kv_tokens=most * sizes.context_tokens
            )
        self._subject = Subject(f"bench/{self._part.name}", path, self._part.format, self._part.runtime, engine)
        async with self._session(self._plan.device) as session:
            self._describe(session)
            if self._part.processor:
                await self._ask_the_processor()
            await self._on_the_device(session)
        if self._part.speed and self._part.runtime == "torch":
            await asyncio.to_thread(self._peer)
        if self._part.graphs:
            await asyncio.to_thread(self._graphs)

    def _session(self, device: str) -> Any:
        return Session.open(self._subject, device, self._plan.out / "home" / device)

    def _describe(self, session: Session) -> None:
        found = session.descriptor
        self._result.document |= {
            "model": found.id,
            "architecture": found.architecture,
            "format": found.format,
            "quantization": found.quantization,
            "size_bytes": found.size,
            "weights": "real" if self._part.real else "random",
            "runtime": session.runtime.name,
            "device": session.device,
        }

    async def _ask_the_processor(self) -> None:
        with self._result.check("the processor answers", "the same worker, without the device") as seen:
            async with self._session("cpu") as session, session.lease() as model:
                self._expected = await self._answers(model)
            seen.append("it does")

    async def _answers(self, model: Any) -> Any:
        modality = "text" if self._part.format in ("gguf", "safetensors") else self._part.format
        if modality == "whisper":
            return await answers.transcribe(model, material.speech(self._plan.place))
        if modality == "diffusers":
            return await answers.draw(model, STEPS if not self._plan.place.small else 4)
        if hasattr(model, "embed"):
            return await answers.embed(model)
        asked = answers.prompts(self._part.real, model.ready.vocabulary)
        return await answers.say_all(model, asked, ANSWER_TOKENS, together=False)

    def _compare(self, expected: Any, found: Any, parting: str = "parting") -> str:
        if self._part.format == "whisper":
            return answers.check_transcripts(expected, found)
        if self._part.format == "diffusers":
            return answers.check_pictures(expected, found)
        if isinstance(found[0][0], float):
            return answers.check_vectors(expected, found)
        distance = answers.distance(expected, found)
        try:
            distance.check(parting)
        except Failed as failure:
            raise Failed(f"{failure}: {distance}") from None
        return str(distance)

    async def _on_the_device(self, session: Session) -> None:
        before = await asyncio.to_thread(session.taken)
        peak = Peak(session)
        async with peak:
            await self._load_and_answer(session)
            if self._loaded is None:
                return
            await self._batch(session)
            if self._part.speed:
                await self._speed(session)
        self._memory(session, before, peak.bytes)
        await self._kill(session, before)
        await self._evict(session, before)

    async def _load_and_answer(self, session: Session) -> None:
        loop = asyncio.get_running_loop()
        compared = (
            "the answers of the same worker on the processor" if self._part.processor else "that there are answers"
        )
        with self._result.check(f"answers on {session.device}", f"{compared}; {_tolerances(self._part)}") as seen:
            begun = loop.time()
            async with session.lease() as model:
                self._result.figure("load_seconds", round(loop.time() - begun, 1))
                self._result.figure("loaded_bytes", await asyncio.to_thread(session.taken))
                self._loaded = await self._answers(model)
            if self._part.processor and self._expected is None:
                raise NotRun("the processor did not answer")
            seen.append(self._compare(self._expected or self._loaded, self._loaded))

    async def _batch(self, session: Session) -> None:
        if not isinstance(self._loaded[0], list):
            return
        with self._result.check("answers in a batch", f"answers one by one; parting {TOLERANCES['again']}") as seen:
            async with session.lease() as model:
                asked = answers.prompts(self._part.real, model.ready.vocabulary)
                found = await answers.say_all(model, asked, ANSWER_TOKENS, together=True)
            seen.append(self._compare(self._loaded, found, "again"))

    async def _speed(self, session: Session) -> None:
        sizes = self._plan.sizes
        for clients in sizes.clients:
            with self._result.check(
                f"{clients} clients", "tokens/s, greedy, random prompts that do not repeat"
            ) as seen:
                async with session.lease() as model:
                    level = await speed.measure(model, sizes, clients)
                self._result.document["figures"].setdefault("levels", []).append(level.plain())
                seen.append(f"{level.tokens_per_second:.1f} tokens/s, {level.gap_ms:.2f} ms between tokens")
                if clients == 1 and self._plan.bandwidth and level.gap_ms:
                    read = speed.bytes_of_a_step(self._subject.path)
                    part = read / (level.gap_ms / 1000) / self._plan.bandwidth
                    self._result.figure("bandwidth_share", round(part, 4))
                    seen.append(f"{bytes_word(read)} of weights a step: {100 * part:.1f}% of the measured bandwidth")

    def _memory(self, session: Session, before: int, peak: int) -> None:
        compared = f"what admission reserves; {TOLERANCES['reckoning']}"
        with self._result.check("memory against the reckoning", compared) as seen:
            reckoned, taken = session.reckoned(), peak - before
            self._result.figure("reckoned_bytes", reckoned)
            self._result.figure("taken_bytes", taken)
            share = taken / max(1, reckoned)
            seen.append(f"taken {bytes_word(max(0, taken))}, reckoned {bytes_word(reckoned)}: {share:.2f}")
            if session.device != "cpu" and taken < session.descriptor.size // 2:
                raise Failed("the weights are not on the device")
            if share > TOLERANCES["reckoning"].limit and session.device != "cpu":  # mapped files count on the processor
                raise Failed("more than the reckoning")

    async def _kill(self, session: Session, before: int) -> None:
        compared = f"the memory before loading; {TOLERANCES['given back']}"
        with self._result.check("a killed worker gives memory back", compared) as seen:
            async with session.lease() as model:
                steps = model.counters.steps
                work = asyncio.ensure_future(self._answers(model))
                await asyncio.sleep(0)
                # A text model dies amid an answer. The counters come with each step and wake nobody.
                while isinstance(self._loaded[0], list) and model.counters.steps == steps and not work.done():  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                os.kill(model.pid, signal.SIGKILL)
                try:
                    await asyncio.wait_for(work, DIES_SECONDS)
                except AllmError as error:
                    seen.append(f"the request got {error.code}")
                else:
                    raise Failed("the request was answered by a killed worker")
            seen.append(await self._given_back(session, before))
        with self._result.check("a new worker answers the same", "the first answers") as seen:
            async with session.lease() as model:
                again = await self._answers(model)
            seen.append(self._compare(self._loaded, again, "again"))

    async def _evict(self, session: Session, before: int) -> None:
        compared = f"the memory before loading; {TOLERANCES['given back']}"
        with self._result.check("eviction gives memory back", compared) as seen:
            freed = await session.manager.evict(session.key, "bench")
            if freed is None:
                raise Failed("the idle model was not evicted")
            seen.append(f"{bytes_word(freed)} were reserved")
            seen.append(await self._given_back(session, before))

    async def _given_back(self, session: Session, before: int) -> str:
        limit = TOLERANCES["given back"].limit
        beyond, seconds = await session.given_back(before, limit)
        if beyond > limit:
            raise Failed(f"{bytes_word(beyond)} are still taken after {seconds:.0f} s")
        return f"{bytes_word(max(0, beyond))} beyond the start after {seconds:.1f} s"

    def _peer(self) -> None:
        sizes, device = self._plan.sizes, self._plan.device
        with self._result.check("transformers' continuous batching", "tokens/s for the same requests") as seen:
            found = apart.ask("peer", str(self._subject.path), "--device", device, *apart.at(sizes, sizes.clients))
            self._result.figure("transformers", found)
            seen.append(", ".join(f"{level}: {rate:.1f} tokens/s" for level, rate in found["levels"].items()))
        with self._result.check("vLLM", "tokens/s, in the part smollm2-vllm") as seen:
            if not _installed("vllm"):
                raise NotRun("vllm is not installed: docs/vllm-runtime.md says how")
            seen.append("see there")

    def _graphs(self) -> None:
        sizes = self._plan.sizes
        levels = [one for one in sizes.clients if one <= 8] or [1]
        with self._result.check("CUDA graphs on and off", "the same greedy tokens; times of a decoding step") as seen:
            found = apart.ask(
                "graphs", str(self._subject.path), "--device", self._plan.device, *apart.at(sizes, levels)
            )
            self._result.figure("graphs", found)
            for level, one in found["levels"].items():
                times = f"{one['on_ms']:.2f} ms on, {one['off_ms']:.2f} ms off"
                seen.append(f"{level}: {times}, {one['same']} of {one['answers']} the same")
            if found["recurrent"]:
                raise NotRun(f"recurrent models are not recorded; {'; '.join(seen)}")
            if found["warnings"]:
                raise Failed("; ".join(found["warnings"]))


def _tolerances(part: Part) -> str:
    names = {"whisper": ("words",), "diffusers": ("pixels",)}.get(part.format, ("logprobs", "parting"))
    names = ("cosine",) if part.name == "minilm" else names
    return "; ".join(str(TOLERANCES[name]) for name in names)


def _made(part: Part, place: Place) -> Path:
    """Makes the model in a process of its own, so that the device's memory is free afterwards."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        make: Callable[[Place], Path] = part.make
        return pool.apply(make, (place,))


def _installed(package: str) -> bool:
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def examine(part: Part, plan: Plan, result: Result) -> None:
    """Runs a part and finishes its result; what is missing becomes "not run" with the reason."""
    work: Coroutine[Any, Any, None] = Examination(part, plan, result).run()
    try:
        asyncio.run(work)
    except NotRun as reason:
        print(f"  not run: {reason}", flush=True)
        result.finish(str(reason))
    else:
        result.finish()
