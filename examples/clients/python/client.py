"""A gRPC client of allm: lists models, streams an answer, lets the model call a tool, cancels, reads an error.

    make run          # or: PYTHONPATH=build python client.py [address [model]]

The modules below `allm` are generated from the .proto files by `make`. docs/grpc-clients.md explains each step.
"""

from __future__ import annotations

import json
import sys

import grpc
from allm.models.v1 import model_pb2, model_service_pb2, model_service_pb2_grpc
from allm.text.v1 import chat_pb2, response_pb2, response_service_pb2, response_service_pb2_grpc
from google.rpc import error_details_pb2, status_pb2

SECONDS = 120  # the deadline of every call: without one, a call may wait forever

GET_WEATHER = chat_pb2.Tool(
    name="get_weather",
    description="Tells the weather of a city.",
    # Strict: the model cannot write arguments that break this schema.
    strict=True,
    parameters_json=json.dumps(
        {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        }
    ),
)


def get_weather(city: str) -> str:
    """The tool itself: the model only requests a call, and this program runs it."""
    return f"22 degrees in {city}"


def user(text: str) -> response_pb2.Item:
    """Returns a message of the user."""
    return response_pb2.Item(
        message=response_pb2.MessageItem(role=chat_pb2.CHAT_ROLE_USER, content=[chat_pb2.ContentPart(text=text)])
    )


def list_models(channel: grpc.Channel) -> None:
    """Calls an RPC with one answer."""
    models = model_service_pb2_grpc.ModelServiceStub(channel)
    for model in models.ListModels(model_service_pb2.ListModelsRequest(), timeout=SECONDS).models:
        print(f"{model.id}: {model_pb2.ModelState.Name(model.state)}")


def stream(
    responses: response_service_pb2_grpc.ResponseServiceStub, request: response_service_pb2.StreamResponseRequest
) -> response_pb2.Response:
    """Prints an answer while the model writes it, and returns the whole response."""
    pieces = 0
    response = response_pb2.Response()
    for reply in responses.StreamResponse(request, timeout=SECONDS):
        # A reply holds exactly one event; response_service.proto lists them, in their order.
        event = reply.WhichOneof("event")
        if event == "text_delta":
            pieces += 1
            print(reply.text_delta.text, end="", flush=True)
        elif event in ("completed", "incomplete", "failed"):
            response = getattr(reply, event)
    print(f"\n({pieces} pieces, {response_pb2.ResponseStatus.Name(response.status)})")
    return response


def call_tool(responses: response_service_pb2_grpc.ResponseServiceStub, model: str) -> None:
    """Lets the model call a tool, runs the tool, and lets the model answer with its result."""
    settings = response_pb2.ResponseSettings(
        sampling=chat_pb2.SamplingParameters(temperature=0, max_tokens=100),
        tools=[GET_WEATHER],
        parallel_tool_calls=False,
        # By default, the model decides whether to call a tool. Very small models decide badly: this requires the call.
        tool_choice=chat_pb2.ToolChoice(mode=chat_pb2.ToolChoice.MODE_REQUIRED, names=["get_weather"]),
    )
    request = response_service_pb2.CreateResponseRequest(
        model=model, input=[user("What is the weather in Paris?")], settings=settings
    )
    asked = responses.CreateResponse(request, timeout=SECONDS).response

    results = []
    for call in (item.function_call for item in asked.output if item.HasField("function_call")):
        result = get_weather(**json.loads(call.arguments_json))
        print(f"{call.name}({call.arguments_json}) = {result}")
        output = response_pb2.FunctionCallOutputItem(call_id=call.call_id, output=result)
        results.append(response_pb2.Item(function_call_output=output))

    # The server has stored the conversation so far; the response's id refers to it.
    settings.previous_response_id = asked.id
    settings.tool_choice.CopyFrom(chat_pb2.ToolChoice(mode=chat_pb2.ToolChoice.MODE_NONE))
    stream(responses, response_service_pb2.StreamResponseRequest(model=model, input=results, settings=settings))


def cancel(responses: response_service_pb2_grpc.ResponseServiceStub, model: str) -> None:
    """Cancels in the middle of a long answer; the model stops immediately."""
    request = response_service_pb2.StreamResponseRequest(
        model=model,
        input=[user("Count to a thousand.")],
        settings=response_pb2.ResponseSettings(
            sampling=chat_pb2.SamplingParameters(max_tokens=4000, ignore_eos=True)  # for a long answer
        ),
    )
    call = responses.StreamResponse(request, timeout=SECONDS)
    pieces = 0
    try:
        for reply in call:
            pieces += reply.HasField("text_delta")
            if pieces == 3:
                call.cancel()
    except grpc.RpcError as error:
        print(f"{error.code().name} after {pieces} pieces")


def error_info(error: grpc.RpcError) -> error_details_pb2.ErrorInfo:
    """Returns the ErrorInfo for programs: reason and metadata. A google.rpc.Status in a trailer holds it."""
    info = error_details_pb2.ErrorInfo()
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                detail.Unpack(info)
    return info


def fail(responses: response_service_pb2_grpc.ResponseServiceStub) -> None:
    """Requests a model that does not exist."""
    request = response_service_pb2.CreateResponseRequest(model="no/such-model", input=[user("Hello?")])
    try:
        responses.CreateResponse(request, timeout=SECONDS)
    except grpc.RpcError as error:
        info = error_info(error)
        print(f"{error.code().name}: {error.details()}")
        print(f"reason: {info.reason}")
        print(f"domain: {info.domain}")
        for key, value in sorted(info.metadata.items()):
            print(f"{key}: {value}")


def main(address: str = "127.0.0.1:8080", model: str = "smollm2-135m-instruct") -> None:
    """Runs all steps in order."""
    # A channel keeps one connection open and carries any number of concurrent calls: create one and share it.
    with grpc.insecure_channel(address) as channel:
        responses = response_service_pb2_grpc.ResponseServiceStub(channel)
        print("== models")
        list_models(channel)
        print("== stream")
        question = response_service_pb2.StreamResponseRequest(
            model=model,
            input=[user("What is the capital of France?")],
            settings=response_pb2.ResponseSettings(sampling=chat_pb2.SamplingParameters(temperature=0, max_tokens=100)),
        )
        stream(responses, question)
        print("== tool")
        call_tool(responses, model)
        print("== cancel")
        cancel(responses, model)
        print("== error")
        fail(responses)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except grpc.RpcError as error:
        sys.exit(f"{error.code().name}: {error.details()}")
