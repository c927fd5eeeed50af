// A gRPC client of allm: lists models, streams an answer, lets the model call a tool, cancels, reads an error.
//
//     make run          # or: build/client [address [model]]
//
// The headers below allm/ and google/rpc/ are generated from the .proto files by `make`. docs/grpc-clients.md explains each
// step.
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include "allm/models/v1/model_service.grpc.pb.h"
#include "allm/text/v1/response_service.grpc.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace models = allm::models::v1;
namespace text = allm::text::v1;

namespace {

// The context of one call, here with only a deadline: without one, a call may wait forever. Each call needs its own.
class Context : public grpc::ClientContext {
 public:
  Context() { set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120)); }
};

void check(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error_message());
}

// A message of the user.
void add_user(google::protobuf::RepeatedPtrField<text::Item>* input, const std::string& said) {
  text::MessageItem* message = input->Add()->mutable_message();
  message->set_role(text::CHAT_ROLE_USER);
  message->add_content()->set_text(said);
}

// The declaration of the tool, which the model reads.
void add_get_weather(text::ResponseSettings* settings) {
  text::Tool* tool = settings->add_tools();
  tool->set_name("get_weather");
  tool->set_description("Tells the weather of a city.");
  tool->set_strict(true);  // the model cannot write arguments that break this schema
  tool->set_parameters_json(R"({
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": false
  })");
}

// The tool itself: the model only requests a call, and this program runs it.
std::string get_weather(const std::string& arguments_json) {
  google::protobuf::Struct arguments;
  if (!google::protobuf::util::JsonStringToMessage(arguments_json, &arguments).ok()) {
    throw std::runtime_error("the arguments are no JSON");
  }
  return "22 degrees in " + arguments.fields().at("city").string_value();
}

class Client {
 public:
  // A channel keeps one connection open and carries any number of concurrent calls: create one and share it.
  Client(const std::shared_ptr<grpc::Channel>& channel, std::string model)
      : models_(models::ModelService::NewStub(channel)),
        responses_(text::ResponseService::NewStub(channel)),
        model_(std::move(model)) {}

  // Calls an RPC with one answer.
  void list_models() {
    Context context;
    models::ListModelsResponse reply;
    check(models_->ListModels(&context, models::ListModelsRequest(), &reply));
    for (const models::Model& model : reply.models()) {
      std::cout << model.id() << ": " << models::ModelState_Name(model.state()) << "\n";
    }
  }

  void ask() {
    text::StreamResponseRequest request;
    request.set_model(model_);
    add_user(request.mutable_input(), "What is the capital of France?");
    request.mutable_settings()->mutable_sampling()->set_temperature(0);
    request.mutable_settings()->mutable_sampling()->set_max_tokens(100);
    stream(request);
  }

  // Prints an answer while the model writes it.
  void stream(const text::StreamResponseRequest& request) {
    Context context;
    auto reader = responses_->StreamResponse(&context, request);
    text::StreamResponseResponse reply;
    text::ResponseStatus ended = text::RESPONSE_STATUS_UNSPECIFIED;
    int pieces = 0;
    while (reader->Read(&reply)) {
      // A reply holds exactly one event; response_service.proto lists them, in their order.
      switch (reply.event_case()) {
        case text::StreamResponseResponse::kTextDelta:
          ++pieces;
          std::cout << reply.text_delta().text() << std::flush;
          break;
        case text::StreamResponseResponse::kCompleted:
          ended = reply.completed().status();
          break;
        case text::StreamResponseResponse::kIncomplete:
          ended = reply.incomplete().status();
          break;
        case text::StreamResponseResponse::kFailed:
          ended = reply.failed().status();
          break;
        default:
          break;
      }
    }
    check(reader->Finish());
    std::cout << "\n(" << pieces << " pieces, " << text::ResponseStatus_Name(ended) << ")\n";
  }

  // Lets the model call a tool, runs the tool, and lets the model answer with its result.
  void call_tool() {
    text::CreateResponseRequest request;
    request.set_model(model_);
    add_user(request.mutable_input(), "What is the weather in Paris?");
    text::ResponseSettings* settings = request.mutable_settings();
    settings->mutable_sampling()->set_temperature(0);
    settings->mutable_sampling()->set_max_tokens(100);
    settings->set_parallel_tool_calls(false);
    add_get_weather(settings);
    // By default, the model decides whether to call a tool. Very small models decide badly, so this requires the call.
    settings->mutable_tool_choice()->set_mode(text::ToolChoice::MODE_REQUIRED);
    settings->mutable_tool_choice()->add_names("get_weather");

    Context context;
    text::CreateResponseResponse reply;
    check(responses_->CreateResponse(&context, request, &reply));
    const text::Response& asked = reply.response();

    text::StreamResponseRequest next;
    next.set_model(model_);
    for (const text::Item& item : asked.output()) {
      if (!item.has_function_call()) continue;
      const text::FunctionCallItem& call = item.function_call();
      const std::string result = get_weather(call.arguments_json());
      std::cout << call.name() << "(" << call.arguments_json() << ") = " << result << "\n";
      text::FunctionCallOutputItem* output = next.add_input()->mutable_function_call_output();
      output->set_call_id(call.call_id());
      output->set_output(result);
    }

    // The server has stored the conversation so far; the response's id refers to it.
    *next.mutable_settings() = *settings;
    next.mutable_settings()->set_previous_response_id(asked.id());
    next.mutable_settings()->mutable_tool_choice()->Clear();
    next.mutable_settings()->mutable_tool_choice()->set_mode(text::ToolChoice::MODE_NONE);
    stream(next);
  }

  // Cancels in the middle of a long answer; the model stops immediately.
  void cancel() {
    text::StreamResponseRequest request;
    request.set_model(model_);
    add_user(request.mutable_input(), "Count to a thousand.");
    request.mutable_settings()->mutable_sampling()->set_max_tokens(4000);
    request.mutable_settings()->mutable_sampling()->set_ignore_eos(true);  // for a long answer

    Context context;
    auto reader = responses_->StreamResponse(&context, request);
    text::StreamResponseResponse reply;
    int pieces = 0;
    while (reader->Read(&reply)) {
      if (reply.has_text_delta()) ++pieces;
      if (pieces == 3) context.TryCancel();
    }
    if (reader->Finish().error_code() == grpc::StatusCode::CANCELLED) {
      std::cout << "CANCELLED after " << pieces << " pieces\n";
    }
  }

  // Requests a model that does not exist. The ErrorInfo in the error's details is for programs.
  void fail() {
    text::CreateResponseRequest request;
    request.set_model("no/such-model");
    add_user(request.mutable_input(), "Hello?");

    Context context;
    text::CreateResponseResponse reply;
    const grpc::Status status = responses_->CreateResponse(&context, request, &reply);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) {
      std::cout << "NOT_FOUND: " << status.error_message() << "\n";
    }
    google::rpc::Status details;
    details.ParseFromString(status.error_details());
    for (const google::protobuf::Any& detail : details.details()) {
      google::rpc::ErrorInfo info;
      if (!detail.UnpackTo(&info)) continue;
      std::cout << "reason: " << info.reason() << "\ndomain: " << info.domain() << "\n";
      for (const auto& [key, value] : std::map(info.metadata().begin(), info.metadata().end())) {
        std::cout << key << ": " << value << "\n";
      }
    }
  }

 private:
  std::unique_ptr<models::ModelService::Stub> models_;
  std::unique_ptr<text::ResponseService::Stub> responses_;
  std::string model_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string address = argc > 1 ? argv[1] : "127.0.0.1:8080";
  const std::string model = argc > 2 ? argv[2] : "smollm2-135m-instruct";
  Client client(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()), model);
  try {
    std::cout << "== models\n";
    client.list_models();
    std::cout << "== stream\n";
    client.ask();
    std::cout << "== tool\n";
    client.call_tool();
    std::cout << "== cancel\n";
    client.cancel();
    std::cout << "== error\n";
    client.fail();
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
