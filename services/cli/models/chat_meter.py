"""One round of benchmarking a chat model: a prompt that no cache holds, and an answer of fixed length."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from allm.text.v1 import chat_pb2, chat_service_pb2, chat_service_pb2_grpc

from services.cli.models.connection import by_model, told
from services.cli.models.round import ROUND_SECONDS, Round
from services.cli.problem import Problem

# One token each in almost every vocabulary; longer prompts repeat them.
WORDS = [
    "the",
    "sea",
    "was",
    "calm",
    "and",
    "the",
    "small",
    "boat",
    "moved",
    "slowly",
    "to",
    "the",
    "far",
    "side",
    "of",
    "the",
    "bay",
    "where",
    "a",
    "light",
    "was",
    "on",
]


@dataclass(frozen=True, slots=True)
class ChatMeter:
    """Measures a chat model through the typed chat API."""

    chat: chat_service_pb2_grpc.ChatServiceStub
    tokens: int  # tokens of each answer, at least 2
    prompt_tokens: int  # approximate

    def round(self, model_id: str) -> Round:
        """Sends one request. Raises Problem if it fails, or its answer is too short to measure."""
        request = chat_service_pb2.StreamChatCompletionRequest(
            model=model_id,
            messages=[
                chat_pb2.ChatMessage(
                    role=chat_pb2.CHAT_ROLE_USER, content=[chat_pb2.ContentPart(text=prompt(self.prompt_tokens))]
                )
            ],
            sampling=chat_pb2.SamplingParameters(temperature=0, max_tokens=self.tokens, ignore_eos=True),
        )
        began = time.perf_counter()
        first = last = 0.0
        generated = 0
        with told():
            for event in self.chat.StreamChatCompletion(request, timeout=ROUND_SECONDS, metadata=by_model(model_id)):
                if event.HasField("delta"):
                    first = first or time.perf_counter()
                elif event.HasField("finished"):
                    last = time.perf_counter()
                    generated = event.finished.usage.completion_tokens
        if not first or generated < 2 or last <= first:
            raise Problem(
                f"{model_id} answered with {generated} tokens, which is too little to measure: raise --tokens"
            )
        return Round(first - began, (generated - 1) / (last - first))


def prompt(tokens: int) -> str:
    """Returns a text of about that many tokens, with a unique beginning, so that no cache holds it."""
    words = [WORDS[at % len(WORDS)] for at in range(max(0, tokens - 12))]  # about 12 tokens are the random number's
    return f"{uuid.uuid4().hex[:8]}: {' '.join(words)}"
