// gRPC-Web over fetch: typed calls of the protos' methods, with any number of messages each way.
//
// A browser sends all messages of a call before it reads the first answer (HTTP/1.1 has no other way), and reads the
// answers as a stream. Aborting the signal also ends the call on the server.

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import type { DescMessage, DescMethod, MessageInitShape, MessageShape } from "@bufbuild/protobuf";
import { ErrorInfoSchema } from "../generated/google/rpc/error_details_pb";
import { StatusSchema } from "../generated/google/rpc/status_pb";
import { asFailure, Failure, fromHttp, fromStatus, SILENT } from "./failure";
import { key, keyWanted } from "./key";

const TRAILERS = 0x80;
const PREFIX_BYTES = 5;
const ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo";

/** How long a call may be silent, in milliseconds, before its connection counts as dead; null means no limit. */
export interface Patience {
  /** Until the first answer. */
  first: number;
  /** From each answer to the next. */
  next: () => number | null;
}

// When the last answer of any call arrived.
let heardAt = 0;

type Method<I extends DescMessage, O extends DescMessage> = DescMethod & { input: I; output: O };

/** Calls a method with one answer. Raises a Failure. */
export async function ask<I extends DescMessage, O extends DescMessage>(
  method: Method<I, O>, request: MessageInitShape<I>, signal?: AbortSignal,
): Promise<MessageShape<O>> {
  return askWith(method, [request], signal);
}

/** Calls a method with several messages and one answer. Raises a Failure. */
export async function askWith<I extends DescMessage, O extends DescMessage>(
  method: Method<I, O>, requests: Iterable<MessageInitShape<I>>, signal?: AbortSignal,
): Promise<MessageShape<O>> {
  for await (const answer of stream(method, requests, signal)) return answer;
  throw new Failure("broken", "The server returned no response");
}

/** Calls a method and yields its answers; ending the loop ends the call. Raises a Failure. */
export async function* stream<I extends DescMessage, O extends DescMessage>(
  method: Method<I, O>, requests: Iterable<MessageInitShape<I>>, signal?: AbortSignal, patience?: Patience,
): AsyncGenerator<MessageShape<O>, void> {
  const ended = new AbortController();
  const stop = () => ended.abort();
  let silent = false;
  let timer = 0;
  const listen = (milliseconds: number | null | undefined, from = performance.now()) => {
    clearTimeout(timer);
    if (!milliseconds) return;
    timer = window.setTimeout(() => {
      if (heardAt > from) return listen(milliseconds, heardAt); // a server that answers another call is only busy
      silent = true;
      stop();
    }, from + milliseconds - performance.now());
  };
  signal?.addEventListener("abort", stop);
  // Browsers keep left pages alive with their requests; the server must not compute for them.
  addEventListener("pagehide", stop);
  if (signal?.aborted) stop();
  listen(patience?.first);
  try {
    const frames = [...requests].map((each) => framed(toBinary(method.input, create(method.input, each))));
    const response = await fetch(`/${method.parent.typeName}/${method.name}`, {
      method: "POST",
      headers: {
        "content-type": "application/grpc-web+proto",
        "x-grpc-web": "1",
        ...(key.peek() ? { authorization: `Bearer ${key.peek()}` } : {}),
      },
      body: new Blob(frames),
      signal: ended.signal,
      cache: "no-store",
      credentials: "omit",
    });
    for await (const answer of answers(method.output, response)) {
      heardAt = performance.now();
      listen(patience?.next());
      yield answer;
    }
  } catch (error) {
    const failure = silent && !signal?.aborted ? new Failure("away", SILENT) : asFailure(error, signal?.aborted);
    if (failure.kind === "key") keyWanted.value = failure.message;
    throw failure;
  } finally {
    listen(null);
    signal?.removeEventListener("abort", stop);
    removeEventListener("pagehide", stop);
    ended.abort();
  }
}

function framed(message: Uint8Array): Uint8Array<ArrayBuffer> {
  const frame = new Uint8Array(PREFIX_BYTES + message.length);
  new DataView(frame.buffer).setUint32(1, message.length);
  frame.set(message, PREFIX_BYTES);
  return frame;
}

async function* answers<O extends DescMessage>(output: O, response: Response): AsyncGenerator<MessageShape<O>, void> {
  const requestId = response.headers.get("x-request-id") ?? "";
  if (response.headers.has("grpc-status")) check(response.headers, requestId);
  if (!response.ok || !response.body) throw fromHttp(response.status, await response.text(), requestId);
  let whole = false;
  for await (const [flags, body] of frames(response.body)) {
    if (flags & TRAILERS) {
      check(trailers(body), requestId);
      whole = true;
    } else {
      yield fromBinary(output, body);
    }
  }
  if (!whole && !response.headers.has("grpc-status")) throw new Failure("away", "The connection to the server was lost", "", "", requestId);
}

async function* frames(body: ReadableStream<Uint8Array>): AsyncGenerator<[number, Uint8Array], void> {
  const reader = body.getReader();
  let held = new Uint8Array(0);
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      held = joined(held, value);
      let at = 0;
      while (held.length - at >= PREFIX_BYTES) {
        const size = new DataView(held.buffer, held.byteOffset + at).getUint32(1);
        if (held.length - at < PREFIX_BYTES + size) break;
        yield [held[at]!, held.subarray(at + PREFIX_BYTES, at + PREFIX_BYTES + size)];
        at += PREFIX_BYTES + size;
      }
      held = held.slice(at);
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

function joined(first: Uint8Array, second: Uint8Array): Uint8Array<ArrayBuffer> {
  const both = new Uint8Array(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}

function trailers(body: Uint8Array): Map<string, string> {
  const lines = new TextDecoder().decode(body).split("\r\n").filter(Boolean);
  return new Map(lines.map((line) => {
    const colon = line.indexOf(":");
    return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
  }));
}

/** Raises the failure of a status other than OK. */
function check(metadata: { get(name: string): string | null | undefined }, requestId: string): void {
  const status = Number(metadata.get("grpc-status") ?? 0);
  if (status === 0) return;
  const info = errorInfo(metadata.get("grpc-status-details-bin") ?? "");
  const message = decodeURIComponent(metadata.get("grpc-message") ?? "");
  throw fromStatus(status, message, info.code, info.param, requestId);
}

function errorInfo(details: string): { code: string; param: string } {
  try {
    const bytes = Uint8Array.from(atob(details), (character) => character.charCodeAt(0));
    for (const detail of fromBinary(StatusSchema, bytes).details) {
      if (detail.typeUrl !== ERROR_INFO) continue;
      const { reason, metadata } = fromBinary(ErrorInfoSchema, detail.value);
      return { code: reason, param: metadata["param"] ?? "" };
    }
  } catch {
    // Without details, use the status itself.
  }
  return { code: "", param: "" };
}
