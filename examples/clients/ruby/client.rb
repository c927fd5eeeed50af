# frozen_string_literal: true

# A gRPC client of allm: lists models, streams an answer, lets the model call a tool, cancels, reads an error.
#
#     make run          # or: ruby -Ibuild client.rb [address [model]]
#
# The files below build/allm are generated from the .proto files by `make`. docs/grpc-clients.md explains each step.

require "json"
require "grpc"
require "google/protobuf/well_known_types" # lets an Any be unpacked
require "google/rpc/error_details_pb"
require "allm/models/v1/model_service_services_pb"
require "allm/text/v1/response_service_services_pb"

Models = Allm::Models::V1
Text = Allm::Text::V1

SECONDS = 120 # a deadline for every call: without one, a call may wait forever

GET_WEATHER = Text::Tool.new(
  name: "get_weather",
  description: "Tells the weather of a city.",
  strict: true, # the model cannot write arguments that break this schema
  parameters_json: JSON.generate(
    type: "object",
    properties: { city: { type: "string", enum: %w[Paris Rome] } },
    required: ["city"],
    additionalProperties: false
  )
)

# The tool itself: the model only requests a call, and this program runs it.
def get_weather(city:)
  "22 degrees in #{city}"
end

# A message of the user.
def user(text)
  Text::Item.new(message: { role: :CHAT_ROLE_USER, content: [{ text: text }] })
end

# The five steps, one method for each.
class Client
  def initialize(address, model)
    # A channel keeps one connection open and carries any number of concurrent calls: create one and share it.
    channel = GRPC::ClientStub.setup_channel(nil, address, :this_channel_is_insecure)
    options = { channel_override: channel, timeout: SECONDS }
    @models = Models::ModelService::Stub.new(address, :this_channel_is_insecure, **options)
    @responses = Text::ResponseService::Stub.new(address, :this_channel_is_insecure, **options)
    @model = model
  end

  # Calls an RPC with one answer.
  def list_models
    @models.list_models(Models::ListModelsRequest.new).models.each { |model| puts "#{model.id}: #{model.state}" }
  end

  def ask
    stream(
      model: @model,
      input: [user("What is the capital of France?")],
      settings: { sampling: { temperature: 0, max_tokens: 100 } }
    )
  end

  # Prints an answer while the model writes it.
  def stream(**request)
    pieces = 0
    status = nil
    @responses.stream_response(Text::StreamResponseRequest.new(**request)).each do |reply|
      # A reply holds exactly one event; response_service.proto lists them, in their order.
      case reply.event
      when :text_delta
        pieces += 1
        print reply.text_delta.text
        $stdout.flush
      when :completed, :incomplete, :failed
        status = reply[reply.event.to_s].status
      end
    end
    puts "\n(#{pieces} pieces, #{status})"
  end

  # Lets the model call a tool, runs the tool, and lets the model answer with its result.
  def call_tool
    settings = Text::ResponseSettings.new(
      sampling: { temperature: 0, max_tokens: 100 },
      tools: [GET_WEATHER],
      parallel_tool_calls: false,
      # By default, the model decides whether to call a tool. Very small models decide badly, so this requires the call.
      tool_choice: { mode: :MODE_REQUIRED, names: ["get_weather"] }
    )
    input = [user("What is the weather in Paris?")]
    request = Text::CreateResponseRequest.new(model: @model, input: input, settings: settings)
    asked = @responses.create_response(request).response

    results = asked.output.map(&:function_call).compact.map do |call|
      result = get_weather(**JSON.parse(call.arguments_json, symbolize_names: true))
      puts "#{call.name}(#{call.arguments_json}) = #{result}"
      Text::Item.new(function_call_output: { call_id: call.call_id, output: result })
    end

    # The server has stored the conversation so far; the response's id refers to it.
    settings.previous_response_id = asked.id
    settings.tool_choice = Text::ToolChoice.new(mode: :MODE_NONE)
    stream(model: @model, input: results, settings: settings)
  end

  # Cancels in the middle of a long answer; the model stops immediately.
  def cancel
    request = Text::StreamResponseRequest.new(
      model: @model,
      input: [user("Count to a thousand.")],
      settings: { sampling: { max_tokens: 4000, ignore_eos: true } } # so that it is long
    )
    # Returns an operation instead of the replies, because an operation can be cancelled.
    operation = @responses.stream_response(request, return_op: true)
    pieces = 0
    operation.execute.each do |reply|
      pieces += 1 if reply.event == :text_delta
      operation.cancel if pieces == 3
    end
  rescue GRPC::Cancelled => e
    puts "#{e.class} after #{pieces} pieces"
  end

  # Requests a model that does not exist. The error's ErrorInfo is for programs.
  def fail_to_ask
    @responses.create_response(Text::CreateResponseRequest.new(model: "no/such-model", input: [user("Hello?")]))
  rescue GRPC::NotFound => e
    puts "#{e.class}: #{e.details}"
    e.to_rpc_status.details.map { |detail| detail.unpack(Google::Rpc::ErrorInfo) }.compact.each do |info|
      puts "reason: #{info.reason}", "domain: #{info.domain}"
      info.metadata.to_h.sort.each { |key, value| puts "#{key}: #{value}" }
    end
  end

  def run
    { models: :list_models, stream: :ask, tool: :call_tool, cancel: :cancel, error: :fail_to_ask }.each do |name, step|
      puts "== #{name}"
      send(step)
    end
  end
end

begin
  Client.new(ARGV.fetch(0, "127.0.0.1:8080"), ARGV.fetch(1, "smollm2-135m-instruct")).run
rescue GRPC::BadStatus => e
  abort "#{e.class}: #{e.details}"
end
