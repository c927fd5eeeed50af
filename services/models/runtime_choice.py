"""The choice of a model's runtime: the EngineRegistry finds those that can run the model here, and ranks them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from services.errors import Unsupported
from services.models.descriptor import AS_THE_SERVICE_DOES, EngineSettings, ModelFacts
from services.models.runtimes import RUNTIMES, RuntimeSpec

GIB = 1024**3
_REMEDY = " (with ALLM_DEVICE=auto each runtime takes the best device that it can use)"
CPU_LIMIT_BYTES = 4 * GIB  # most weights that `ALLM_DEVICE=auto` accepts without a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measured performance of a model with one runtime on one device."""

    runtime: str
    device: str
    tokens_per_second: float  # of one request
    first_token_seconds: float
    peak_memory: int  # bytes; 0: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The registry's verdict on one runtime for one model."""

    runtime: RuntimeSpec
    able: bool
    chosen: bool
    reason: str


class EngineRegistry:
    """Resolves models to runtimes.

    `device`: one of DEVICES, the best of this service, and that of runtimes whose own device is not determined;
    `forced`: an operator chose it. `runtimes`: in the order of the table.
    """

    def __init__(self, device: str, *, forced: bool, runtimes: tuple[RuntimeSpec, ...] = RUNTIMES) -> None:
        self.device = device
        self.forced = forced
        self.runtimes = tuple(one if one.device else replace(one, device=device) for one in runtimes)

    def device_of(self, name: str) -> str:
        """Returns the device on which the runtime of that name computes; the service's for an unknown name."""
        return next((one.device for one in self.runtimes if one.name == name), self.device)

    def resolve(
        self,
        model: ModelFacts,
        measured: Iterable[Measurement] = (),
        asked: str = "",
        engine: EngineSettings = AS_THE_SERVICE_DOES,
    ) -> RuntimeSpec:
        """Chooses the runtime for a model: the requested one, else the best measured, else the first that can run it.

        Raises:
            Unsupported: no runtime can; the message names the filter that failed last.
        """
        objections = {runtime.name: self._objection(runtime, model, engine) for runtime in self.runtimes}
        able = [runtime for runtime in self.runtimes if not objections[runtime.name]]
        if asked and not any(runtime.name == asked for runtime in able):
            why = objections.get(asked) or f"there are {', '.join(objections) or 'no runtimes'}"
            raise Unsupported(f"{model.id}: the requested runtime {asked!r} cannot run it here: {why}")
        if not able:
            raise Unsupported(self._refusal(model, engine))
        return next(runtime for runtime in self._ranked(able, measured) if not asked or runtime.name == asked)

    def explain(
        self,
        model: ModelFacts,
        measured: Iterable[Measurement] = (),
        asked: str = "",
        engine: EngineSettings = AS_THE_SERVICE_DOES,
    ) -> list[Verdict]:
        """Returns the verdict on every runtime, best first."""
        figures = self._figures(measured)
        objections = {runtime.name: self._objection(runtime, model, engine) for runtime in self.runtimes}
        able = self._ranked([runtime for runtime in self.runtimes if not objections[runtime.name]], figures.values())
        chosen = next((runtime for runtime in able if not asked or runtime.name == asked), None)
        verdicts = [
            Verdict(
                runtime=runtime,
                able=True,
                chosen=runtime is chosen,
                reason=self._reason(figures.get(runtime.name), runtime is chosen, asked),
            )
            for runtime in able
        ]
        return verdicts + [
            Verdict(runtime=runtime, able=False, chosen=False, reason=objections[runtime.name])
            for runtime in self.runtimes
            if objections[runtime.name]
        ]

    def _objection(self, runtime: RuntimeSpec, model: ModelFacts, engine: EngineSettings) -> str:
        """Returns why a runtime cannot run a model; empty if it can. `missing` applies only if all else fits."""
        return self._inability(runtime, model, engine) or runtime.missing

    def _inability(self, runtime: RuntimeSpec, model: ModelFacts, engine: EngineSettings) -> str:
        """Returns why a runtime could not run a model even if it were installed; empty if it could."""
        if runtime.modality != model.modality or model.format not in runtime.formats:
            return f"it does not read {model.modality} models in {model.format}"
        if not runtime.offers(model):
            return f"it does not offer {_purpose(model.capabilities - runtime.capabilities)}"
        if not runtime.knows(model):
            return f"it does not know the architecture {model.architecture!r}{_for(model, [runtime])}"
        if not runtime.reads(model):
            return f"it does not read weights of {model.architecture} quantised with {model.quantization!r}"
        return _lack(runtime, engine) or self._inability_here(runtime, model)

    def _inability_here(self, runtime: RuntimeSpec, model: ModelFacts) -> str:
        """Returns why a runtime that supports the model cannot run it on this machine; empty if it can."""
        if runtime.device not in runtime.devices:
            return f"it does not run on {runtime.device}{_REMEDY if self.forced else ''}"
        if runtime.gpu and runtime.lacking:
            return f"{runtime.name} cannot compute on {runtime.device} here: {runtime.lacking}"
        if not runtime.gpu and not self.forced and _memory(model) > CPU_LIMIT_BYTES:
            return _needs_gpu(model, runtime)
        return ""

    def _refusal(self, model: ModelFacts, engine: EngineSettings) -> str:
        """Explains why no runtime can run a model: the last filter that any installed runtime reached, then the missing
        runtimes that could run it.
        """
        here = self._refusal_here(model, engine)
        others = [runtime for runtime in self.runtimes if runtime.missing]
        able = [runtime for runtime in others if not self._inability(runtime, model, engine)]
        return "; ".join([here, *(f"{runtime.name} could run it, but {runtime.missing}" for runtime in able)])

    def _refusal_here(self, model: ModelFacts, engine: EngineSettings) -> str:
        left = [runtime for runtime in self.runtimes if runtime.modality == model.modality and not runtime.missing]
        left = [runtime for runtime in left if model.format in runtime.formats]
        if not left:
            return f"{model.id}: no runtime here reads {model.modality} models in {model.format}"
        names = ", ".join(runtime.name for runtime in left)
        able = [runtime for runtime in left if runtime.offers(model)]
        if not able:
            return f"{model.id}: {names} does not offer {_purpose(model.capabilities)}"
        left = [runtime for runtime in able if runtime.knows(model)]
        if not left:
            what = f"architecture {model.architecture!r} is not supported by {names}{_for(model, able)}"
            return f"{model.id}: {what}"
        left = [runtime for runtime in left if runtime.reads(model)]
        if not left:
            quantised = f"weights of {model.architecture} quantised with {model.quantization!r}"
            return f"{model.id}: {quantised} are not supported by {names}"
        return self._refusal_of_place(model, engine, left)

    def _refusal_of_place(self, model: ModelFacts, engine: EngineSettings, left: list[RuntimeSpec]) -> str:
        """Explains why the runtimes in `left`, which can read the model, cannot run it on this machine."""
        names = ", ".join(runtime.name for runtime in left)
        if engine.pipeline_parallel > 1:
            left = [runtime for runtime in left if runtime.pipelines]
            if not left:
                return f"{model.id}: {names} cannot divide it into stages, and {_stages(engine)}"
        if engine.speculation not in ("", "off") and not any(runtime.speculates for runtime in left):
            return f"{model.id}: {names} does not guess tokens, and {_guesses(engine)}"
        if not any(runtime.device in runtime.devices for runtime in left):
            return f"{model.id}: {names} cannot run it on {left[0].device}{_REMEDY if self.forced else ''}"
        reasons = {runtime.name: self._inability_here(runtime, model) for runtime in left}
        if len(set(reasons.values())) == 1:
            return f"{model.id}: {next(iter(reasons.values()))}"
        return f"{model.id}: " + "; ".join(f"{name}: {why}" for name, why in reasons.items())

    def _figures(self, measured: Iterable[Measurement]) -> dict[str, Measurement]:
        return {figure.runtime: figure for figure in measured if figure.device == self.device_of(figure.runtime)}

    def _ranked(self, able: list[RuntimeSpec], measured: Iterable[Measurement]) -> list[RuntimeSpec]:
        """Sorts runtimes: measured ones by tokens/s, first token and memory, then those with a GPU, then the others."""
        figures = self._figures(measured)

        def rank(runtime: RuntimeSpec) -> tuple[float, float, float, bool]:
            if figure := figures.get(runtime.name):
                return -figure.tokens_per_second, figure.first_token_seconds, figure.peak_memory, False
            return 0.0, 0.0, 0.0, not runtime.gpu

        return sorted(able, key=rank)  # stable

    def _reason(self, figure: Measurement | None, chosen: bool, asked: str) -> str:
        what = f"{figure.tokens_per_second:.1f} tokens/s" if figure else "not measured"
        if not chosen:
            return f"it could run it ({what}); another is preferred"
        if asked:
            return f"an operator requested it ({what})"
        return f"the best measured: {what}" if figure else "the first registered that can run it; none was measured"


def _needs_gpu(model: ModelFacts, runtime: RuntimeSpec) -> str:
    dequantised = f" dequantised from {model.size / GIB:.1f} GiB in {model.quantization}" if model.unpacked_size else ""
    why = f". {runtime.name} has none: {runtime.lacking}" if runtime.lacking else ""
    return (
        f"needs a GPU: its weights take {_memory(model) / GIB:.1f} GiB{dequantised}, without a GPU "
        f"{CPU_LIMIT_BYTES / GIB:.0f} GiB are accepted (ALLM_DEVICE=cpu lifts the limit){why}"
    )


def _memory(model: ModelFacts) -> int:
    """Returns the bytes of the weights on a CPU, which computes only with dequantised numbers."""
    return max(model.size, model.unpacked_size)


def _lack(runtime: RuntimeSpec, engine: EngineSettings) -> str:
    """Returns which of the engine settings a runtime does not support; empty if it supports all."""
    if engine.pipeline_parallel > 1 and not runtime.pipelines:
        return f"it does not divide models into stages, and {_stages(engine)}"
    if engine.speculation not in ("", "off") and not runtime.speculates:
        return f"it does not guess tokens, and {_guesses(engine)}"
    return ""


def _guesses(engine: EngineSettings) -> str:
    return f"speculation={engine.speculation} is requested"


def _stages(engine: EngineSettings) -> str:
    return f"{engine.pipeline_parallel} are requested (pipeline_parallel)"


def _purpose(capabilities: frozenset[str]) -> str:
    return ", ".join(sorted(capabilities)) or "the model's capabilities"


def _for(model: ModelFacts, runtimes: Iterable[RuntimeSpec]) -> str:
    """Names the model's capabilities if it takes pictures, or if a runtime supports its architecture for other ones."""
    known = any(model.architecture in names for runtime in runtimes for names in runtime.architectures.values())
    return f" for {', '.join(sorted(model.capabilities))}" if known or "vision" in model.capabilities else ""
