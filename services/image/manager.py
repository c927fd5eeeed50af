"""ImageManager: the image models of this process."""

from __future__ import annotations

from services.image.loaded import LoadedPipeline
from services.image.sd_manager import SDManager
from services.residency.manager import ModelManager
from services.settings.settings import ImageSettings


class ImageManager(ModelManager[LoadedPipeline]):
    """Leases image models and loads them on first use. How a model of a family is started is the family's own matter:
    diffusers' pipelines are the only one so far, and another would stand beside it.
    """

    def __init__(self, settings: ImageSettings, device: str) -> None:
        """`device` is where models run: cuda, mps or cpu."""
        family = SDManager(settings, device)
        super().__init__(family.start)
        self.options = family.options  # how a model is run here
