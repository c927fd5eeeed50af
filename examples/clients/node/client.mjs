// A gRPC client of allm: lists models, streams an answer, lets the model call a tool, cancels, reads an error.
//
//     npm install && node client.mjs [address [model]]
//
// The program creates the stubs from the .proto files when it starts. docs/grpc-clients.md explains each step.
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const [address = "127.0.0.1:8080", model = "smollm2-135m-instruct"] = process.argv.slice(2);

const definition = protoLoader.loadSync(
  [
    "allm/models/v1/model_service.proto",
    "allm/text/v1/response_service.proto",
    "google/rpc/error_details.proto",
    "google/rpc/status.proto",
  ],
  {
    includeDirs: ["protos", "third_party"].map((name) => fileURLToPath(new URL(`../../../${name}`, import.meta.url))),
    enums: String, // names instead of numbers
    longs: Number,
    oneofs: true, // `reply.event` is the name of the field that is set
  },
);
const { allm } = grpc.loadPackageDefinition(definition);

// A client keeps one connection open and carries any number of concurrent calls: create one and share it.
const models = new allm.models.v1.ModelService(address, grpc.credentials.createInsecure());
const responses = new allm.text.v1.ResponseService(address, grpc.credentials.createInsecure());

// A deadline for every call: without one, a call may wait forever.
const inTime = () => ({ deadline: Date.now() + 120_000 });

/** Calls an RPC with one answer; grpc-js itself has callbacks only. */
const call = (client, method, request) =>
  new Promise((resolve, reject) =>
    client[method](request, inTime(), (error, reply) => (error ? reject(error) : resolve(reply))),
  );

const getWeather = {
  // The declaration of the tool, which the model reads.
  tool: {
    name: "get_weather",
    description: "Tells the weather of a city.",
    strict: true, // the model cannot write arguments that break this schema
    parametersJson: JSON.stringify({
      type: "object",
      properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
      required: ["city"],
      additionalProperties: false,
    }),
  },
  // The tool itself: the model only requests a call, and this program runs it.
  run: ({ city }) => `22 degrees in ${city}`,
};

const user = (text) => ({ message: { role: "CHAT_ROLE_USER", content: [{ text }] } });

async function listModels() {
  const reply = await call(models, "ListModels", {});
  for (const { id, state } of reply.models) console.log(`${id}: ${state}`);
}

/** Prints an answer while the model writes it, and returns the whole response. */
async function stream(request) {
  let pieces = 0;
  let response;
  // A reply holds exactly one event; response_service.proto lists them, in their order.
  for await (const reply of responses.StreamResponse(request, inTime())) {
    if (reply.event === "textDelta") {
      pieces += 1;
      process.stdout.write(reply.textDelta.text);
    } else if (["completed", "incomplete", "failed"].includes(reply.event)) {
      response = reply[reply.event];
    }
  }
  console.log(`\n(${pieces} pieces, ${response.status})`);
  return response;
}

/** Lets the model call a tool, runs the tool, and lets the model answer with its result. */
async function callTool() {
  const settings = {
    sampling: { temperature: 0, maxTokens: 100 },
    tools: [getWeather.tool],
    parallelToolCalls: false,
    // By default, the model decides whether to call a tool. Very small models decide badly, so this requires the call.
    toolChoice: { mode: "MODE_REQUIRED", names: ["get_weather"] },
  };
  const input = [user("What is the weather in Paris?")];
  const { response: asked } = await call(responses, "CreateResponse", { model, input, settings });

  const results = [];
  for (const { kind, functionCall } of asked.output) {
    if (kind !== "functionCall") continue;
    const output = getWeather.run(JSON.parse(functionCall.argumentsJson));
    console.log(`${functionCall.name}(${functionCall.argumentsJson}) = ${output}`);
    results.push({ functionCallOutput: { callId: functionCall.callId, output } });
  }

  // The server has stored the conversation so far; the response's id refers to it.
  const next = { ...settings, previousResponseId: asked.id, toolChoice: { mode: "MODE_NONE" } };
  await stream({ model, input: results, settings: next });
}

/** Cancels in the middle of a long answer; the model stops immediately. */
async function cancel() {
  const sampling = { maxTokens: 4000, ignoreEos: true }; // for a long answer
  const running = responses.StreamResponse(
    { model, input: [user("Count to a thousand.")], settings: { sampling } },
    inTime(),
  );
  let pieces = 0;
  try {
    for await (const { event } of running) {
      if (event === "textDelta") pieces += 1;
      if (pieces === 3) running.cancel();
    }
  } catch (error) {
    console.log(`${grpc.status[error.code]} after ${pieces} pieces`);
  }
}

/** Returns the ErrorInfo for programs: the reason and its metadata. A google.rpc.Status in a trailer holds it. */
function errorInfo(error) {
  for (const bytes of error.metadata.get("grpc-status-details-bin")) {
    for (const detail of definition["google.rpc.Status"].deserialize(bytes).details) {
      if (detail.type_url.endsWith("/google.rpc.ErrorInfo")) {
        return definition["google.rpc.ErrorInfo"].deserialize(detail.value);
      }
    }
  }
  return { reason: "", domain: "", metadata: {} };
}

/** Requests a model that does not exist. */
async function fail() {
  try {
    await call(responses, "CreateResponse", { model: "no/such-model", input: [user("Hello?")] });
  } catch (error) {
    const { reason, domain, metadata } = errorInfo(error);
    console.log(`${grpc.status[error.code]}: ${error.details}`);
    console.log(`reason: ${reason}`);
    console.log(`domain: ${domain}`);
    for (const key of Object.keys(metadata).sort()) console.log(`${key}: ${metadata[key]}`);
  }
}

try {
  console.log("== models");
  await listModels();
  console.log("== stream");
  const sampling = { temperature: 0, maxTokens: 100 };
  await stream({ model, input: [user("What is the capital of France?")], settings: { sampling } });
  console.log("== tool");
  await callTool();
  console.log("== cancel");
  await cancel();
  console.log("== error");
  await fail();
} catch (error) {
  console.error(`${grpc.status[error.code] ?? error.name}: ${error.details ?? error.message}`);
  process.exitCode = 1;
} finally {
  models.close();
  responses.close();
}
