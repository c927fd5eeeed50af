"""The scope of each path at the gateway equals the scope that the service requires."""

from __future__ import annotations

from collections.abc import Iterator

from google.api import annotations_pb2

from gateway.descriptor import CHAT, EMBEDDINGS, FACADES, IMAGES, KEYS, MACHINE, MODELS, RESPONSES, TRANSCRIPTIONS
from services.audio.api.facade import AudioFacade
from services.audio.api.servicer import TranscriptionServicer
from services.auth.identity import ADMIN, INFERENCE, SERVICE
from services.authorizer.scopes import ANY, needed_scope
from services.catalog.api.keys_servicer import KeyServicer
from services.catalog.api.machine_servicer import MachineServicer
from services.catalog.api.models_facade import ModelsFacade
from services.catalog.api.models_servicer import ModelServicer
from services.image.api.facade import ImagesFacade
from services.image.api.servicer import ImageServicer
from services.text.api.chat.facade import TextFacade
from services.text.api.chat.servicer import ChatServicer
from services.text.api.embeddings.servicer import EmbeddingServicer
from services.text.api.responses.facade import ResponsesFacade
from services.text.api.responses.servicer import ResponseServicer
from tests.case import case

TEXT, RESPONSES_FACADE, AUDIO, IMAGES_FACADE, MODELS_FACADE = FACADES
SERVICES = (
    (TEXT, TextFacade),
    (RESPONSES_FACADE, ResponsesFacade),
    (AUDIO, AudioFacade),
    (IMAGES_FACADE, ImagesFacade),
    (MODELS_FACADE, ModelsFacade),
    (CHAT, ChatServicer),
    (EMBEDDINGS, EmbeddingServicer),
    (RESPONSES, ResponseServicer),
    (TRANSCRIPTIONS, TranscriptionServicer),
    (IMAGES, ImageServicer),
    (MODELS, ModelServicer),
    (MACHINE, MachineServicer),
    (KEYS, KeyServicer),
)


def methods() -> Iterator[tuple[str, str, str, str]]:
    """Yields every RPC behind the gateway: its name, its servicer's scope, and each verb and path to it."""
    for service, servicer in SERVICES:
        for method in service.methods:
            scope = getattr(servicer, method.name).scope
            yield method.full_name, scope, "POST", f"/{service.full_name}/{method.name}"
            rule = method.GetOptions().Extensions[annotations_pb2.http]
            for each in (rule, *rule.additional_bindings):
                if verb := each.WhichOneof("pattern"):
                    path = getattr(each, verb).replace("=**", "")
                    yield method.full_name, scope, verb.upper(), path.partition("?")[0]


WAYS = sorted(set(methods()))


def test_the_gateway_asks_for_the_same_scope_as_the_service() -> None:
    """The gateway requires the admin scope for methods of allm's own processes, which do not call through it."""
    for name, scope, verb, path in WAYS:
        with case(name=name, scope=scope, verb=verb, path=path):
            assert needed_scope(verb, path) == (ADMIN if scope == SERVICE else scope)


def test_there_are_ways_of_both_kinds() -> None:
    assert {needed_scope(verb, path) for _, _, verb, path in WAYS} == {ANY, INFERENCE, ADMIN}
    assert len(WAYS) > 60


def test_no_spelling_makes_management_look_like_anything_else() -> None:
    for path in [
        "/v1/models?x=/v1/chat/completions",
        "/v1//models",
        "//v1/models",
        "/v1/%6dodels",
        "/v1%2Fmodels",
        "/v1/models/",
        "/v1/models/org/m:load",
        "/v1/models/org%2Fm%3Aload",
        "/v1/models:x",
        "/v1/models/\n:load",
    ]:
        with case(path=path):
            assert needed_scope("POST", path) == needed_scope("DELETE", path) == needed_scope("PUT", path) == ADMIN


def test_keys_are_for_operators_alone() -> None:
    for method in ["GET", "POST", "DELETE", "HEAD"]:
        for path in ["/v1/api_keys", "/v1/api_keys/key_1", "/v1/%61pi_keys", "/v1/api_keys?x"]:
            with case(method=method, path=path):
                assert needed_scope(method, path) == ADMIN


def test_what_is_not_known_of_ours_is_for_operators() -> None:
    for path in [
        "/allm.new.v1.Service/Method",
        "/allm.models.v1.ModelService/NewMethod",
        "/allm.models.v1.ResidencyService/Release",
        "/allm.text.v1.NewService/Method",
        "/allm.openai.v1.ModelsService/DeleteModel",
        "/allm.models.v1.ModelService/ListModels/",
        "/allm%2Emodels.v1.ModelService/DeleteModel",
    ]:
        with case(path=path):
            assert needed_scope("POST", path) == ADMIN


def test_who_asks_for_nothing_that_there_is_hears_that_there_is_nothing() -> None:
    for path in ["/v1/modelsx", "/v1/assistants", "/favicon.ico", "/", "", "/v1/api_keysx"]:
        with case(path=path):
            assert needed_scope("POST", path) == INFERENCE
