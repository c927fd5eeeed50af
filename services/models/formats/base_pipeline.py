"""The base of a single-file image checkpoint: the small files of a diffusers pipeline, without its weights."""

from __future__ import annotations

from services.errors import ModelInvalid
from services.models.formats.config import architecture_of
from services.models.formats.diffusers import INDEX, companions, components
from services.models.formats.document import read_object
from services.models.formats.finding import missing, place, there
from services.models.formats.original_layout import Layout, Tensors
from services.models.hub.source_tree import FileTree
from services.models.manifest import Manifest

_UNUSED = "safety_checker"  # which diffusers leaves out of a pipeline made from a single file
_INPUTS = "model.diffusion_model.input_blocks.0.0.weight"
_KEYS = ".attn2.to_k.weight"  # cross-attention keys


def inspect_base(tree: FileTree, layout: Layout, tensors: Tensors) -> Manifest:
    """Returns the files that complete a checkpoint of this layout and with these tensors.

    Raises:
        ModelInvalid: the pipeline's kind or sizes differ, or files are missing or damaged; names them.
    """
    if not there(tree, INDEX):
        raise missing(tree, [INDEX])
    index = read_object(tree, INDEX)
    found = architecture_of(index.get("_class_name"), f"_class_name in {INDEX}")
    if found != layout.architecture:
        raise ModelInvalid(
            f"{place(tree)} is a {found}; the base of a checkpoint of {layout.name} must be a {layout.architecture}"
        )
    left_out = {_UNUSED, *layout.left_out(tensors)}
    left_out |= {name.replace("text_encoder", "tokenizer") for name in left_out}
    paths, absent = {INDEX}, []
    for component in components(index):
        if component.name in left_out:
            continue
        if component.stem and not layout.holds(component.name, tensors):
            raise ModelInvalid(
                f"{place(tree)} has a {component.name}, which a checkpoint of {layout.name} has no weights for"
            )
        if lacking := component.absent(tree):
            absent.append(lacking)
        paths |= companions(tree, component)
    if absent:
        raise missing(tree, absent)
    if layout.holds("unet", tensors):
        _check_unet(tree, tensors)
    manifest = Manifest(
        files=tuple(tree.files[path] for path in sorted(paths)),
        repository=tree.repository,
        revision=tree.revision,
        folder=tree.folder,
    )
    manifest.check()
    return manifest


def _check_unet(tree: FileTree, tensors: Tensors) -> None:
    """Checks that the base's UNet has the checkpoint's sizes. Other mismatches are found when the model is loaded."""
    path = "unet/config.json"
    config = read_object(tree, path)
    outputs, inputs = tensors[_INPUTS].shape[:2]
    widths = config.get("block_out_channels")
    sizes = {
        "in_channels": (config.get("in_channels"), inputs),
        "block_out_channels": (widths[0] if isinstance(widths, list) and widths else None, outputs),
    }
    keys = next((tensor for name, tensor in tensors.items() if name.endswith(_KEYS)), None)
    if keys is not None and len(keys.shape) > 1:
        sizes["cross_attention_dim"] = (config.get("cross_attention_dim"), keys.shape[1])
    for name, (configured, real) in sizes.items():
        if type(configured) is int and configured != real:
            raise ModelInvalid(
                f"{place(tree)} is not a base of this checkpoint: {name} in {path} is {configured}, here it is {real}"
            )
