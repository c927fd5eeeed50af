"""Image models of several parts, over gRPC: the base of a single-file checkpoint, LoRAs, and image defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
from allm.models.v1 import manifest_pb2, model_pb2, model_service_pb2

from services.models.wire import read_desired
from tests.catalog.catalog_service import Service, refusal, running, snapshot
from tests.loopback_hub import LoopbackHub
from tests.models.formats.handmade_models import UNET, safetensors, write_json, write_pipeline
from tests.models.formats.test_original_layout import ATTENTION, PLAIN, PREFIX, SD1

Code = grpc.StatusCode
SD_BASE = "stable-diffusion-v1-5/stable-diffusion-v1-5"
KEYS = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k"


def checkpoint(path: Path, padding: int = 1) -> Path:
    """Writes the header of a Stable Diffusion 1.x single-file checkpoint."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shapes = {f"{PREFIX}input_blocks.0.0.weight": ("F16", PLAIN), ATTENTION: ("F16", (320, 768))}
    path.write_bytes(safetensors(shapes | dict.fromkeys(SD1, ("F16", (padding, 768)))))
    return path


def base(folder: Path) -> Path:
    """Writes a pipeline of matching size."""
    write_pipeline(folder)
    sizes = {"in_channels": 4, "block_out_channels": [320, 640], "cross_attention_dim": 768}
    write_json(folder / "unet" / "config.json", sizes)
    weights = {f"{KEYS.removeprefix('unet.')}.weight": ("F16", (320, 768))}
    (folder / "unet" / f"{UNET}.safetensors").write_bytes(safetensors(weights))
    return folder


def lora(path: Path, inputs: int = 768) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        safetensors({f"{KEYS}.lora_A.weight": ("F16", (4, inputs)), f"{KEYS}.lora_B.weight": ("F16", (320, 4))})
    )
    return path


def request(source: str | Path, **more: Any) -> model_service_pb2.RegisterModelRequest:
    text = source.as_uri() if isinstance(source, Path) else source
    return model_service_pb2.RegisterModelRequest(id="m", source=text, format="diffusers", **more)


async def desired(service: Service) -> manifest_pb2.DesiredModel:
    (found,) = await snapshot(service.watch())
    return found


async def refused(service: Service, code: Code = Code.FAILED_PRECONDITION, **more: Any):
    found = await refusal(service.models.RegisterModel(request(**more)))
    assert found.code == code, found
    return found


async def test_a_checkpoint_takes_what_it_lacks_from_the_usual_repository(hub: LoopbackHub, tmp_path: Path) -> None:
    commit = hub.add(SD_BASE, base(tmp_path / "base"))
    own = hub.add("org/one", checkpoint(tmp_path / "one" / "sub" / "x.safetensors").parent.parent)
    async with running(tmp_path) as service:
        answer = await service.models.RegisterModel(request("hf://org/one#sub/x.safetensors"))
        assert (answer.model.architecture, answer.model.base) == ("StableDiffusionPipeline", f"hf://{SD_BASE}")
        found = await desired(service)
        assert (found.manifest.repository, found.manifest.revision) == ("org/one", own)
        assert found.manifest.primary == "sub/x.safetensors"
        (part,) = found.parts
        assert (part.kind, part.source) == (manifest_pb2.PART_KIND_BASE, "")
        assert (part.manifest.repository, part.manifest.revision) == (SD_BASE, commit)
        names = [file.path for file in part.manifest.files]
        assert "model_index.json" in names
        assert not any(name.endswith(".safetensors") for name in names)
        assert answer.model.size_bytes == sum(
            file.size_bytes for manifest in (found.manifest, part.manifest) for file in manifest.files
        )
        assert read_desired(found).parts[0].manifest.revision == commit, "services read what was sent"
    assert not [request for request in hub.requests if request.file.endswith("diffusion_pytorch_model.safetensors")]


async def test_unavailable_base_is_reported_with_the_remedy(hub: LoopbackHub, tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        path = checkpoint(service.files / "x.safetensors")
        found = await refused(service, source=path)
        assert (
            f"takes its configuration and tokenizers from hf://{SD_BASE} unless `base` names another" in found.message
        )
        assert "private or gated" in found.message
        hub.add(SD_BASE, base(tmp_path / "base"))
        hub.status("", 503, times=9)
        assert "unless `base` names another" in (await refused(service, Code.UNAVAILABLE, source=path)).message
        hub.heal()
        answer = await service.models.RegisterModel(request(path, base=base(service.files / "base").as_uri()))
        assert answer.model.base == (service.files / "base").as_uri()
        (part,) = (await desired(service)).parts
        assert part.manifest.folder == str(service.files / "base")


async def test_ambiguous_values_are_refused_by_name(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        folder, one = base(service.files / "base"), checkpoint(service.files / "x.safetensors")
        path = lora(service.files / "l.safetensors").as_uri()
        wide = lora(service.files / "w.safetensors", inputs=1024).as_uri()
        bad, invalid = Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT
        for more, param, code, what in (
            ({"base": folder.as_uri()}, "base", invalid, "has its own configuration"),
            ({"base": "hf://org/x#f.json"}, "base", invalid, "f.json is a single file"),
            ({"base": "http://x"}, "base", invalid, "is neither hf://"),
            ({"loras": [{"source": "file:///etc/x"}]}, "loras", invalid, "not below one of ALLM_MODEL_ROOTS"),
            ({"loras": [{"source": path, "scale": 0}]}, "loras", invalid, "from -10 to 10 and not 0, not 0"),
            ({"loras": [{"source": path, "scale": float("nan")}]}, "loras", invalid, "not nan"),
            ({"loras": [{"source": path}, {"source": path}]}, "loras", invalid, "appears twice"),
            ({"loras": [{"source": f"{path}{n}"} for n in range(17)]}, "loras", invalid, "at most 16 LoRAs"),
            ({"loras": [{"source": wide}]}, "loras", bad, "w.safetensors was made for another model"),
            ({"loras": [{"source": one.as_uri()}]}, "loras", bad, "x.safetensors is not a LoRA"),
            ({"image_defaults": {"steps": 0}}, "image_defaults", invalid, "from 1 to 1000, not 0"),
            ({"image_defaults": {"guidance": -1.0}}, "image_defaults", invalid, "from 0 to 100, not -1"),
        ):
            found = await refused(service, code, source=folder, **more)
            assert (found.param, what in found.message) == (param, True), found
        for more in ({"base": path}, {"loras": [{"source": path}]}, {"image_defaults": {"steps": 3}}):
            text = model_service_pb2.RegisterModelRequest(id="m", source=path, format="gguf", **more)
            assert "for " in (await refusal(service.models.RegisterModel(text))).message
            assert (await refusal(service.models.RegisterModel(text))).param == next(iter(more))


async def test_loras_and_defaults_are_shown_kept_and_changed(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        folder = base(service.files / "base")
        one, two = lora(service.files / "one.safetensors").as_uri(), lora(service.files / "two.safetensors").as_uri()
        asked = [model_pb2.Lora(source=one, scale=0.5), model_pb2.Lora(source=two)]
        defaults = model_pb2.ImageDefaults(steps=20, guidance=0)
        model = (await service.models.RegisterModel(request(folder, loras=asked, image_defaults=defaults))).model
        assert [(each.source, each.scale) for each in model.loras] == [(one, 0.5), (two, 1.0)]
        assert model.image_defaults == defaults, "a guidance of 0 is one"
        assert [part.manifest.primary for part in (await desired(service)).parts] == [
            "one.safetensors",
            "two.safetensors",
        ]

        async def changed(**more: Any) -> model_pb2.Model:
            answer = await service.models.UpdateModel(model_service_pb2.UpdateModelRequest(id="m", **more))
            return answer.model

        model = await changed(image_defaults=model_pb2.ImageDefaults(steps=4))
        assert (model.generation, model.image_defaults) == (1, model_pb2.ImageDefaults(steps=4)), "no files changed"
        model = await changed(loras=model_service_pb2.LoraList(loras=asked[:1]))
        assert (model.generation, [each.source for each in model.loras]) == (2, [one])
        assert (await changed()).generation == 2
        lora(service.files / "one.safetensors", inputs=768).touch()
        assert (await changed()).generation == 3, "a LoRA's file counts as the model's own do"
        model = await changed(loras=model_service_pb2.LoraList(), image_defaults=model_pb2.ImageDefaults())
        assert (model.generation, len(model.loras), model.HasField("image_defaults")) == (4, 0, False)


async def test_another_base_is_a_new_generation_and_is_kept(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add(SD_BASE, base(tmp_path / "usual"))
    async with running(tmp_path) as service:
        path = checkpoint(service.files / "x.safetensors")
        await service.models.RegisterModel(request(path))
        other = base(service.files / "other").as_uri()
        ask = model_service_pb2.UpdateModelRequest
        model = (await service.models.UpdateModel(ask(id="m", base=other))).model
        assert (model.generation, model.base) == (2, other)
        checkpoint(path, padding=2)
        model = (await service.models.UpdateModel(ask(id="m"))).model
        assert (model.generation, model.base) == (3, other)
        model = (await service.models.UpdateModel(ask(id="m", source=other))).model
        assert (model.generation, model.base) == (4, ""), "a folder needs none"


async def test_parts_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        path = lora(service.files / "l.safetensors").as_uri()
        ask = request(
            base(service.files / "base"),
            loras=[model_pb2.Lora(source=path, scale=-2)],
            image_defaults=model_pb2.ImageDefaults(guidance=2.5),
        )
        await service.models.RegisterModel(ask)
        before = await desired(service)
    async with running(tmp_path) as service:
        again = await desired(service)
    assert (again.parts, again.model.loras, again.model.image_defaults) == (
        before.parts,
        before.model.loras,
        before.model.image_defaults,
    )
