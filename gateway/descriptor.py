"""The descriptor set for Envoy's transcoder: the REST facades, and the REST methods that manage models and keys.

It is built from the checked-in stubs, so it cannot become outdated and needs no protoc. One file in it differs from the
published one: see `_status_shadow`.
"""

from __future__ import annotations

from typing import Any

from allm.anthropic.v1 import messages_service_pb2
from allm.audio.v1 import transcription_service_pb2
from allm.image.v1 import image_service_pb2
from allm.keys.v1 import keys_pb2
from allm.models.v1 import machine_service_pb2, model_service_pb2
from allm.ollama.v1 import models_service_pb2 as ollama_models_service_pb2
from allm.ollama.v1 import text_service_pb2 as ollama_text_service_pb2
from allm.openai.v1 import (
    audio_service_pb2,
    conversations_service_pb2,
    error_pb2,
    models_service_pb2,
    responses_service_pb2,
    text_service_pb2,
)
from allm.openai.v1 import image_service_pb2 as openai_image_service_pb2
from allm.text.v1 import chat_service_pb2, embedding_service_pb2, rerank_service_pb2, response_service_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

FACADES = (
    messages_service_pb2.DESCRIPTOR.services_by_name["MessagesService"],
    ollama_text_service_pb2.DESCRIPTOR.services_by_name["TextService"],
    ollama_models_service_pb2.DESCRIPTOR.services_by_name["ModelsService"],
    text_service_pb2.DESCRIPTOR.services_by_name["TextService"],
    responses_service_pb2.DESCRIPTOR.services_by_name["ResponsesService"],
    conversations_service_pb2.DESCRIPTOR.services_by_name["ConversationsService"],
    audio_service_pb2.DESCRIPTOR.services_by_name["AudioService"],
    openai_image_service_pb2.DESCRIPTOR.services_by_name["ImagesService"],
    models_service_pb2.DESCRIPTOR.services_by_name["ModelsService"],
)
CHAT = chat_service_pb2.DESCRIPTOR.services_by_name["ChatService"]
EMBEDDINGS = embedding_service_pb2.DESCRIPTOR.services_by_name["EmbeddingService"]
RERANK = rerank_service_pb2.DESCRIPTOR.services_by_name["RerankService"]
RESPONSES = response_service_pb2.DESCRIPTOR.services_by_name["ResponseService"]
TRANSCRIPTIONS = transcription_service_pb2.DESCRIPTOR.services_by_name["TranscriptionService"]
IMAGES = image_service_pb2.DESCRIPTOR.services_by_name["ImageService"]
MODELS = model_service_pb2.DESCRIPTOR.services_by_name["ModelService"]
MACHINE = machine_service_pb2.DESCRIPTOR.services_by_name["MachineService"]
KEYS = keys_pb2.DESCRIPTOR.services_by_name["KeyService"]
# The facades write OpenAI's, Anthropic's and Ollama's JSON themselves; the APIs for models and keys are ours, so the
# transcoder's JSON suffices.
TRANSCODED = (*FACADES, MODELS, KEYS)


def transcoded_names() -> list[str]:
    """Returns the full names of the services that REST requests are transcoded to, by their methods with a path."""
    return [service.full_name for service in TRANSCODED]


def method_names() -> list[dict[str, Any]]:
    """Returns all methods with their own statistics, as Envoy's `GrpcMethodList`."""
    return [
        {"name": service.full_name, "method_names": [method.name for method in service.methods]}
        for service in (*FACADES, CHAT, EMBEDDINGS, RERANK, RESPONSES, TRANSCRIPTIONS, IMAGES, MODELS, MACHINE, KEYS)
    ]


def transcoded_descriptors() -> FileDescriptorSet:
    """Returns all files that the transcoder needs, each after the files that it imports."""
    found: dict[str, FileDescriptorProto] = {}
    for service in TRANSCODED:
        _add(service.file, found)
    _add(error_pb2.DESCRIPTOR, found)
    shadow = _status_shadow()
    found[shadow.name] = shadow
    return FileDescriptorSet(file=found.values())


def _add(file: FileDescriptor, found: dict[str, FileDescriptorProto]) -> None:
    if file.name in found:
        return
    for dependency in file.dependencies:
        _add(dependency, found)
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    found[file.name] = proto


def _status_shadow() -> FileDescriptorProto:
    """Returns google.rpc.Status in the shape of `allm.openai.v1.ErrorStatus`.

    The transcoder prints a failed call's google.rpc.Status as the JSON body. With this description of the message it
    prints `{"error": {...}}`, OpenAI's error object, without any scripting. gRPC callers never see the field.
    """
    field = FieldDescriptorProto
    shadow = FileDescriptorProto(
        name="google/rpc/status.proto",
        package="google.rpc",
        syntax="proto3",
        dependency=[error_pb2.DESCRIPTOR.name],
    )
    status = shadow.message_type.add(name="Status")
    error = error_pb2.ErrorStatus.DESCRIPTOR.fields_by_name["error"]
    for name, number, kind in (("code", 1, field.TYPE_INT32), ("message", 2, field.TYPE_STRING)):
        status.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    status.field.add(
        name=error.name,
        number=error.number,
        type=field.TYPE_MESSAGE,
        type_name=f".{error_pb2.Error.DESCRIPTOR.full_name}",
        label=field.LABEL_OPTIONAL,
    )
    return shadow
