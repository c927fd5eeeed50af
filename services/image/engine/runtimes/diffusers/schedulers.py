"""Schedulers by name, each built from the configuration of the model's own scheduler."""

from __future__ import annotations

import inspect
from typing import Any

import diffusers
from diffusers.utils.import_utils import is_scipy_available

# For models that predict noise or velocity, such as Stable Diffusion and XL.
_NOISE = {
    "ddim": "DDIMScheduler",
    "ddpm": "DDPMScheduler",
    "dpmpp_2m": "DPMSolverMultistepScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler_a": "EulerAncestralDiscreteScheduler",
    "heun": "HeunDiscreteScheduler",
    "lms": "LMSDiscreteScheduler",
    "pndm": "PNDMScheduler",
    "unipc": "UniPCMultistepScheduler",
}
# For models trained by flow matching, such as Stable Diffusion 3 and Flux.
_FLOW = {
    "flow_match_euler": "FlowMatchEulerDiscreteScheduler",
    "flow_match_heun": "FlowMatchHeunDiscreteScheduler",
}
# Overrides of a scheduler's defaults, for options that the model's own scheduler does not set: Stable Diffusion was
# published with PNDM without Runge-Kutta steps, which would take three network runs each and at least four steps.
_OPTIONS: dict[str, dict[str, Any]] = {"PNDMScheduler": {"skip_prk_steps": True}}
_NEED_SCIPY = {"LMSDiscreteScheduler"}


class Schedulers:
    """The schedulers that a model can use. `own` is the model's scheduler; `sigmas` is true if its pipeline passes the
    noise levels itself, which not every scheduler accepts."""

    def __init__(self, own: Any, sigmas: bool) -> None:
        self._own = own
        kind = type(own).__name__
        family = next((table for table in (_NOISE, _FLOW) if kind in table.values()), {})
        self._classes = {name: getattr(diffusers, what) for name, what in family.items() if self._fits(what, sigmas)}
        self.default = next((name for name, what in self._classes.items() if what is type(own)), kind)
        self._classes[self.default] = type(own)

    @property
    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._classes)

    def build(self, name: str) -> Any:
        """Builds a new scheduler, without state of earlier images."""
        kind = self._classes[name]
        options = {} if kind is type(self._own) else _OPTIONS.get(kind.__name__, {})
        return kind.from_config(self._own.config, **options)

    def _fits(self, what: str, sigmas: bool) -> bool:
        if what == type(self._own).__name__:
            return True
        scipy: Any = is_scipy_available
        if what in _NEED_SCIPY and not scipy():
            return False
        return not sigmas or "sigmas" in inspect.signature(getattr(diffusers, what).set_timesteps).parameters
