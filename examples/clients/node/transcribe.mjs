// Transcribes an audio file over gRPC, while the audio is being sent.
//
//     npm install && node transcribe.mjs FILE [address [model]]
//
// The program creates the stub from the .proto files when it starts. docs/grpc-clients.md explains it.
import { createReadStream } from "node:fs";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const [path, address = "127.0.0.1:8080", model = "whisper-tiny.en"] = process.argv.slice(2);

const definition = protoLoader.loadSync("allm/audio/v1/transcription_service.proto", {
  includeDirs: [fileURLToPath(new URL("../../../protos", import.meta.url))],
  defaults: true, // includes a start of 0
  oneofs: true, // `reply.event` is the name of the field that is set
});
const { allm } = grpc.loadPackageDefinition(definition);
const transcriptions = new allm.audio.v1.TranscriptionService(address, grpc.credentials.createInsecure());

/**
 * Yields the configuration, then the audio as it arrives. For a microphone, `raw` describes the format of the samples.
 * The end of the generator ends the sound, not the answers.
 */
async function* requests() {
  yield { config: { model } };
  for await (const audio of createReadStream(path)) yield { audio };
}

/** Prints the text as soon as it is known. */
async function transcribe() {
  // A deadline: without one, the call may wait forever.
  const call = transcriptions.StreamTranscribe({ deadline: Date.now() + 600_000 });
  const sending = pipeline(Readable.from(requests()), call);
  sending.catch((error) => call.destroy(error)); // a file that cannot be read ends the call too
  // A reply holds exactly one event; transcription_service.proto lists them, in their order.
  for await (const { event, partial, segment, finished } of call) {
    if (event === "partial") {
      console.log(`...${partial.text}`); // of an unfinished phrase: the next partial or segment replaces it
    } else if (event === "segment") {
      console.log(`${segment.start.toFixed(2)}-${segment.end.toFixed(2)}${segment.text}`);
    } else if (event === "finished") {
      console.log(`(${finished.duration.toFixed(1)} s, ${finished.tokens} tokens)`);
    }
  }
}

try {
  if (!path) throw new Error("usage: node transcribe.mjs FILE [address [model]]");
  await transcribe();
} catch (error) {
  console.error(`${grpc.status[error.code] ?? error.name}: ${error.details ?? error.message}`);
  process.exitCode = 1;
} finally {
  transcriptions.close();
}
