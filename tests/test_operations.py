"""RPCs and the kind of inference they do, which labels their metrics."""

from __future__ import annotations

import pytest

from services.audio.api.facade import AudioFacade
from services.audio.api.servicer import TranscriptionServicer
from services.image.api.facade import ImagesFacade
from services.image.api.servicer import ImageServicer
from services.text.api.chat.facade import TextFacade
from services.text.api.chat.servicer import ChatServicer
from services.text.api.embeddings import EmbeddingServicer
from services.text.api.messages.facade import MessagesFacade
from services.text.api.ollama.facade import OllamaFacade
from services.text.api.rerank import RerankServicer
from services.text.api.responses.conversations_facade import ConversationsFacade
from services.text.api.responses.facade import ResponsesFacade
from services.text.api.responses.servicer import ResponseServicer

OPERATIONS = {
    TextFacade: {
        "CreateChatCompletion": "chat",
        "CreateCompletion": "text_completion",
        "CreateEmbedding": "embeddings",
        "CreateRerank": "rerank",
        "CreateScore": "rerank",
    },
    ChatServicer: {"CreateChatCompletion": "chat", "StreamChatCompletion": "chat"},
    EmbeddingServicer: {"CreateEmbeddings": "embeddings"},
    RerankServicer: {"Rerank": "rerank", "Score": "rerank"},
    ConversationsFacade: {},
    MessagesFacade: {"CreateMessage": "chat"},
    OllamaFacade: {
        "Chat": "chat",
        "Generate": "text_completion",
        "Embed": "embeddings",
        "EmbedPrompt": "embeddings",
    },
    ResponsesFacade: {"CreateResponse": "chat"},
    ResponseServicer: {"CreateResponse": "chat", "StreamResponse": "chat"},
    AudioFacade: {"CreateTranscription": "transcription", "CreateTranslation": "translation"},
    TranscriptionServicer: {
        "Transcribe": "transcription",
        "Translate": "translation",
        "StreamTranscribe": "transcription",
    },
    ImagesFacade: {
        "CreateImage": "image_generation",
        "CreateImageEdit": "image_edit",
        "CreateImageVariation": "image_variation",
    },
    ImageServicer: {
        "GenerateImage": "image_generation",
        "StreamGenerateImage": "image_generation",
        "EditImage": "image_edit",
        "StreamEditImage": "image_edit",
        "CreateVariation": "image_variation",
        "StreamCreateVariation": "image_variation",
    },
}


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
def test_every_rpc_says_what_it_infers(kind: type) -> None:
    """RPCs that only read, count or delete have none."""
    found = {
        name: method.operation for name, method in vars(kind).items() if "operation" in getattr(method, "__dict__", ())
    }
    assert {name: operation for name, operation in found.items() if operation} == OPERATIONS[kind]
    assert set(found) == {name for name in vars(kind.__base__) if name[0].isupper()}
