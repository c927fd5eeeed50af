"""Serving plans: execution caches of allowed publishers only, if device and runtime match."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from services.errors import Unsupported
from services.models.descriptor import EngineSettings, LoraFile
from services.models.desired import Artifact, ModelPart
from services.models.manifest import Manifest, ManifestFile
from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import RUNTIMES
from services.provision.plan import make_plans
from services.settings.settings import ModelSettings, load_settings
from tests.provision.desired_models import facts, registration

OWN = Manifest(files=(ManifestFile(path="model.safetensors", size=9),), repository="someone/m", revision="1" * 40)
CACHE = Manifest(
    files=(ManifestFile(path="m.gguf", size=7),), primary="m.gguf", repository="nvidia/m", revision="2" * 40
)
# A registry that reads only the cache's format.
REGISTRY = EngineRegistry("cpu", forced=False, runtimes=tuple(each for each in RUNTIMES if each.name == "llama_cpp"))


def settings(**environ: str) -> ModelSettings:
    return load_settings(environ).model


def artifact(**changes: object) -> Artifact:
    plain = Artifact(runtime="llama_cpp", devices=frozenset({"cpu"}), facts=facts(), manifest=CACHE)
    return dataclasses.replace(plain, **changes)


def with_safetensors(*artifacts: Artifact, architecture: str = "llama", runtime: str = ""):
    wanted = registration(OWN, artifacts=artifacts, runtime=runtime)
    own = dataclasses.replace(wanted.facts, format="safetensors", architecture=architecture)
    return dataclasses.replace(wanted, facts=own)


def test_a_model_is_served_from_its_own_files() -> None:
    (plan,) = make_plans(registration(OWN), REGISTRY, settings())
    assert (plan.manifest, plan.runtime.name, plan.artifact) == (OWN, "llama_cpp", "")


def test_an_official_cache_that_fits_is_used() -> None:
    (plan,) = make_plans(with_safetensors(artifact()), REGISTRY, settings())
    assert (plan.manifest, plan.runtime.name) == (CACHE, "llama_cpp")
    assert plan.artifact == f"nvidia/m@{'2' * 40}"
    assert plan.facts.format == "gguf", "what the runtime reads; the model stays registered as safetensors"


def test_engine_settings_reach_every_way_of_serving() -> None:
    engine = EngineSettings(context_tokens=512)
    wanted = dataclasses.replace(registration(OWN, artifacts=(artifact(),)), engine=engine)
    plans = make_plans(wanted, REGISTRY, settings())
    assert [plan.descriptor(3, [Path("/m")]).engine for plan in plans] == [engine, engine]
    stages = dataclasses.replace(wanted, engine=EngineSettings(pipeline_parallel=2))
    with pytest.raises(Unsupported, match="llama_cpp cannot divide it into stages"):
        make_plans(stages, REGISTRY, settings())


def test_its_own_files_come_after_the_cache_where_a_runtime_reads_them() -> None:
    wanted = registration(OWN, artifacts=(artifact(),))
    assert [plan.manifest for plan in make_plans(wanted, REGISTRY, settings())] == [CACHE, OWN]


@pytest.mark.parametrize(
    "useless",
    [
        artifact(manifest=dataclasses.replace(CACHE, repository="someone/m")),
        artifact(manifest=dataclasses.replace(CACHE, repository="nvidia-fake/m")),
        artifact(devices=frozenset({"cuda"})),
        artifact(runtime="tensorrt"),
        artifact(facts=facts(architecture="exotic")),
    ],
    ids=["publisher", "publisher-prefix", "device", "runtime", "architecture"],
)
def test_a_cache_that_does_not_fit_is_not_used(useless: Artifact) -> None:
    with pytest.raises(Unsupported, match="no runtime here reads text models in safetensors"):
        make_plans(with_safetensors(useless), REGISTRY, settings())
    (plan,) = make_plans(registration(OWN, artifacts=(useless,)), REGISTRY, settings())
    assert plan.manifest == OWN


def test_caches_can_be_switched_off_or_taken_from_others() -> None:
    with pytest.raises(Unsupported):
        make_plans(with_safetensors(artifact()), REGISTRY, settings(ALLM_ARTIFACTS="off"))
    theirs = artifact(manifest=dataclasses.replace(CACHE, repository="someone/m"))
    (plan,) = make_plans(with_safetensors(theirs), REGISTRY, settings(ALLM_ARTIFACT_PUBLISHERS="someone/*"))
    assert plan.artifact.startswith("someone/m@")


def test_an_operator_who_asks_for_another_runtime_gets_no_cache() -> None:
    with pytest.raises(Unsupported):
        make_plans(with_safetensors(artifact(), runtime="torch"), REGISTRY, settings())


def test_parts_of_a_model_are_fetched_first_and_described_with_it() -> None:
    base = ModelPart(kind="base", source="", manifest=dataclasses.replace(OWN, repository="someone/base"))
    lora = ModelPart(kind="lora", source="hf://nvidia/m", manifest=CACHE, scale=0.5)
    wanted = dataclasses.replace(registration(OWN), parts=(base, lora))
    (plan,) = make_plans(wanted, REGISTRY, settings())
    assert plan.manifests == (base.manifest, CACHE, OWN)
    found = plan.descriptor(3, [Path("/base"), Path("/lora"), Path("/own")])
    assert (found.generation, found.primary, found.base) == (3, Path("/own"), Path("/base"))
    assert found.loras == (LoraFile(path=Path("/lora/m.gguf"), scale=0.5),)
    (alone,) = make_plans(registration(OWN), REGISTRY, settings())
    plain = alone.descriptor(1, [Path("/own")])
    assert (plain.base, plain.loras) == (None, ())
