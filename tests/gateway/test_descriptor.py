"""The transcoder's descriptor set."""

from __future__ import annotations

import json

from allm.openai.v1 import error_pb2
from google.api.annotations_pb2 import http as HTTP  # noqa: N812 - an extension, not a module
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from gateway.descriptor import method_names, transcoded_descriptors, transcoded_names
from tests.gateway.upstream import error_details


def pool() -> DescriptorPool:
    """Loads the descriptor set into an empty pool, as Envoy does."""
    pool = DescriptorPool()
    for file in transcoded_descriptors().file:
        pool.Add(file)  # fails if a file precedes one of its imports
    return pool


def test_it_holds_every_transcoded_service_whole() -> None:
    for name in transcoded_names():
        service = pool().FindServiceByName(name)
        assert service.methods
        assert all(method.GetOptions().IsInitialized() for method in service.methods)


def test_models_are_managed_by_four_verbs_and_nothing_else() -> None:
    """A method without an annotation is for gRPC only: the facade deletes models, services report status."""
    paths = {}
    for name in ("RegisterModel", "UpdateModel", "LoadModel", "UnloadModel"):
        rule = pool().FindMethodByName(f"allm.models.v1.ModelService.{name}").GetOptions().Extensions[HTTP]
        paths[name] = rule.post
        assert rule.body == "*"
        assert not rule.response_body, "Envoy would not start"
    assert paths == {
        "RegisterModel": "/v1/models",
        "UpdateModel": "/v1/models/{id=**}:update",
        "LoadModel": "/v1/models/{id=**}:load",
        "UnloadModel": "/v1/models/{id=**}:unload",
    }
    service = pool().FindServiceByName("allm.models.v1.ModelService")
    assert {method.name for method in service.methods if method.GetOptions().HasExtension(HTTP)} == set(paths)


def test_a_failed_call_prints_as_openai_error() -> None:
    status = GetMessageClass(pool().FindMessageTypeByName("google.rpc.Status"))()
    status.ParseFromString(error_details("broken", "server_error", "internal")[1])
    printed = json.loads(json_format.MessageToJson(status, preserving_proto_field_name=True))
    error = {"message": "broken", "type": "server_error", "param": None, "code": "internal"}
    assert printed == {"error": error}


def test_the_shadow_is_the_python_side_twin() -> None:
    shadow = pool().FindMessageTypeByName("google.rpc.Status")
    twin = error_pb2.ErrorStatus.DESCRIPTOR
    assert {(f.name, f.number, f.type) for f in shadow.fields} == {(f.name, f.number, f.type) for f in twin.fields}


def test_method_names_cover_typed_and_facade_services() -> None:
    names = {(service["name"], method) for service in method_names() for method in service["method_names"]}
    assert ("allm.text.v1.ChatService", "StreamChatCompletion") in names
    assert ("allm.openai.v1.TextService", "CreateChatCompletion") in names
    assert ("allm.anthropic.v1.MessagesService", "CountTokens") in names
    assert ("allm.ollama.v1.TextService", "EmbedPrompt") in names
    assert ("allm.ollama.v1.ModelsService", "ListTags") in names
    assert ("allm.text.v1.ResponseService", "StreamResponse") in names
    assert ("allm.openai.v1.ResponsesService", "CancelResponse") in names
    assert ("allm.audio.v1.TranscriptionService", "StreamTranscribe") in names
    assert ("allm.openai.v1.AudioService", "CreateTranslation") in names
    assert ("allm.image.v1.ImageService", "StreamGenerateImage") in names
    assert ("allm.image.v1.ImageService", "StreamEditImage") in names
    assert ("allm.openai.v1.ImagesService", "GetImageFile") in names
    assert ("allm.models.v1.ModelService", "WatchModels") in names
    assert ("allm.models.v1.MachineService", "WatchMachine") in names
    assert ("allm.openai.v1.ModelsService", "DeleteModel") in names
