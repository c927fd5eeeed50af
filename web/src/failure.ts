// Failures of calls, with advice for the user.

import { bytes } from "./measures";

/** The kinds that the console distinguishes. */
export type FailureKind = "away" | "key" | "forbidden" | "stopped" | "refused" | "busy" | "broken";

const STATUS_NAMES: Record<number, string> = {
  1: "CANCELLED", 3: "INVALID_REQUEST", 4: "TIMEOUT", 5: "MODEL_NOT_FOUND", 6: "INVALID_REQUEST", 7: "FORBIDDEN",
  8: "OVERLOADED", 9: "MODEL_INVALID", 12: "UNSUPPORTED", 13: "INTERNAL", 14: "MODEL_NOT_READY", 16: "UNAUTHENTICATED",
};

const UNAVAILABLE = 14;
const LARGE = 4 * 1024 * 1024; // bytes: smaller requests are unlikely to exceed a limit

const ADVICE: Record<string, string> = {
  FORBIDDEN: "Ask the operator of this server for a key with this permission.",
  INTERNAL: "Try again. If the error persists, search the server's log for the request ID.",
  MODEL_INVALID: "Select Why under Models to see the cause.",
  MODEL_NOT_FOUND: "Choose another model, or register this one under Models.",
  MODEL_NOT_READY: "Wait a moment and try again. Models shows the progress.",
  OUT_OF_MEMORY: "Unload another model under Models, or choose a smaller one.",
  OVERLOADED: "The server is busy. Try again in a moment.",
  TIMEOUT: "Send a smaller request, or ask the operator to raise ALLM_REQUEST_SECONDS.",
  UNAUTHENTICATED: "Enter a valid API key.",
  UNSUPPORTED: "Remove that option, or choose a model that supports it.",
};

// Of the requests that the services refuse, only this one says nothing of what to do.
const TOO_LONG = /context holds \d+/;
const SHORTEN = "Edit a message to shorten it, or start a new conversation.";

/** The message for a connection without data for too long; the server itself may be fine. */
export const SILENT = "The connection to the server is interrupted.";

/** An error of a call. */
export class Failure extends Error {
  override readonly name = "Failure";

  constructor(
    readonly kind: FailureKind,
    message: string,
    /** One of allm's error codes, such as MODEL_NOT_FOUND; empty where the gateway or the network failed. */
    readonly code = "",
    /** The faulty field of the request. */
    readonly param = "",
    /** The id under which the server's log has the request. */
    readonly requestId = "",
  ) {
    super(message);
  }

  /** The failure and the advice, for the user. */
  get sentence(): string {
    const trimmed = this.message.trim();
    const text = trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
    const whole = /[.!?]$/.test(text) ? text : `${text}.`;
    const advice = this.kind === "away" ? "" : TOO_LONG.test(text) ? SHORTEN : (ADVICE[this.code] ?? "");
    return advice ? `${whole} ${advice}` : whole;
  }
}

/** Makes the failure of a gRPC status; `code` is the reason in its details, if any. */
export function fromStatus(status: number, message: string, code: string, param: string, requestId: string): Failure {
  // Without a service's code, the gateway found no service.
  if (status === UNAVAILABLE && !code) return new Failure("away", message || "The server is not available", "", "", requestId);
  const name = code || STATUS_NAMES[status] || "INTERNAL";
  return new Failure(kindOf(name, status), message || `The server ended the call with status ${status}`, name, param, requestId);
}

/** Makes the failure of an HTTP response without a gRPC status. */
export function fromHttp(status: number, body: string, requestId: string): Failure {
  let message = body.trim();
  try {
    message = JSON.parse(body).error.message;
  } catch {
    // A proxy's body is not JSON.
  }
  if (!message || message.startsWith("<")) message = `The server returned HTTP status ${status}`;
  if (status === 401) return new Failure("key", message, "UNAUTHENTICATED", "", requestId);
  if (status === 403) return new Failure("forbidden", message, "FORBIDDEN", "", requestId);
  if (status === 413) return new Failure("refused", `${message} Send a smaller request`, "", "", requestId);
  if (status === 429) return new Failure("busy", message, "OVERLOADED", "", requestId);
  if (status >= 502 && status <= 504) return new Failure("away", `${message} Try again in a moment`, "", "", requestId);
  return new Failure(status >= 500 ? "broken" : "refused", message, "", "", requestId);
}

/**
 * Explains a connection that was closed during a large upload: the gateway closes it on a request that is too large,
 * without an error for browsers. `setting` names the limit. Returns other errors as they are.
 */
export function sizeRefused(error: unknown, size: number, setting: string, advice: string): unknown {
  if (size < LARGE || asFailure(error).kind !== "away") return error;
  return new Failure("refused", `The server did not accept a request of ${bytes(size)}: it is unavailable, or the request exceeds its limit (${setting}). ${advice}`);
}

/** Converts any error to a failure; `stopped` means that the caller ended the call. */
export function asFailure(error: unknown, stopped = false): Failure {
  if (error instanceof Failure) return stopped ? new Failure("stopped", "Stopped") : error;
  if (stopped || (error instanceof DOMException && error.name === "AbortError")) return new Failure("stopped", "Stopped");
  if (error instanceof TypeError) return new Failure("away", "The server cannot be reached. Is it still running?");
  return new Failure("broken", error instanceof Error ? error.message : String(error));
}

function kindOf(code: string, status: number): FailureKind {
  if (code === "UNAUTHENTICATED") return "key";
  if (code === "FORBIDDEN" || status === 7) return "forbidden";
  if (code === "CANCELLED") return "stopped";
  if (code === "OVERLOADED") return "busy";
  if (code === "INTERNAL") return "broken";
  return "refused";
}
