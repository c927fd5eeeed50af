"""Embeddings with the official Python SDK and with LangChain, both unmodified, against the real stack."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import openai
import pytest
from langchain_openai import OpenAIEmbeddings

from tests.minilm import ENCODER, SIZE, unpack
from tests.stack import Stack

TEXTS = ["A man is eating food.", "Somebody eats a meal.", "The stock market fell sharply on Tuesday."]


def options(stack: Stack) -> dict[str, Any]:
    return {"base_url": stack.base_url, "api_key": "unused", "max_retries": 0}


def test_the_sdk_asks_for_base64_and_gives_floats(stack: Stack) -> None:
    with openai.OpenAI(**options(stack)) as client:
        reply = client.embeddings.create(model=ENCODER, input=TEXTS)
        assert [(one.index, one.object, len(one.embedding)) for one in reply.data] == [
            (at, "embedding", SIZE) for at in range(3)
        ]
        assert (reply.object, reply.model) == ("list", ENCODER)
        assert reply.usage.prompt_tokens == reply.usage.total_tokens > 0
        floats = client.embeddings.create(model=ENCODER, input=TEXTS, encoding_format="float")
        raw: Any = client.embeddings.create(model=ENCODER, input=TEXTS, encoding_format="base64")
    for ours, theirs, packed in zip(reply.data, floats.data, raw.data, strict=True):
        assert ours.embedding == pytest.approx(theirs.embedding, abs=1e-5)
        assert unpack(base64.b64decode(packed.embedding)).tolist() == pytest.approx(ours.embedding, abs=1e-5)


async def test_the_asynchronous_sdk_with_tokens_and_fewer_dimensions(stack: Stack) -> None:
    async with openai.AsyncOpenAI(**options(stack)) as client:
        reply = await client.embeddings.create(
            model=ENCODER, input=[[101, 7592, 102], [101, 2088, 102]], dimensions=16, user="me"
        )
        assert [len(one.embedding) for one in reply.data] == [16, 16]
        assert np.linalg.norm(reply.data[0].embedding) == pytest.approx(1, abs=1e-5)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.embeddings.create(model=ENCODER, input=["fine", ""])
    assert caught.value.param == "input[1]"


def test_langchain_embeds_documents_and_finds_the_right_one(stack: Stack) -> None:
    # Otherwise it sends tokens of OpenAI's own models, which have other meanings here.
    embeddings = OpenAIEmbeddings(model=ENCODER, check_embedding_ctx_length=False, **options(stack))
    documents = np.array(embeddings.embed_documents(TEXTS))
    assert int((documents @ np.array(embeddings.embed_query("What happened on the exchange?"))).argmax()) == 2
