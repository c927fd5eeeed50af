// The models and their states: one watch of the catalog, restarted whenever it breaks.

import { create } from "@bufbuild/protobuf";
import { computed, effect, signal } from "@preact/signals";
import { DesiredModelSchema, type DesiredModel } from "../generated/allm/models/v1/manifest_pb";
import { Modality, ModelState, type Model } from "../generated/allm/models/v1/model_pb";
import { ModelService } from "../generated/allm/models/v1/model_service_pb";
import { asFailure, Failure, SILENT } from "./failure";
import { ask, stream } from "./grpc_web";
import { key, keyWanted } from "./key";
import { readyAgain, seen, until } from "./waiting";

/** The state of the console's link to the server. */
export type Link =
  | { state: "connecting" }
  | { state: "up" }
  | { state: "waiting-for-key" }
  | { state: "away"; why: string; retryAt: number };

const FIRST_WAIT = 500;
const LONGEST_WAIT = 8000;
const PATIENCE = 8000; // a live catalog answers immediately
const LISTED_EVERY = 60_000;

export const link = signal<Link>({ state: "connecting" });
/** True if the key may manage models; keeps its last value while the server is away. */
export const manages = signal(false);
/** True if the server may ask the Hugging Face Hub. */
export const hub = signal(true);
/** All models, by id; kept while the server is away. */
export const desired = signal<ReadonlyMap<string, DesiredModel>>(new Map());
export const models = computed(() => [...desired.value.values()].flatMap((each) => each.model ?? []).sort(byId));
// Ends the open watch, whose connection has died silently.
let hangUp = (_: Failure) => {};

/** Reports a silent server: marks the link as down and restarts it. */
export function foundSilent(failure: Failure): void {
  hangUp(failure);
}

/** True if the model answers requests. */
export function serves(model: Model): boolean {
  return model.state === ModelState.READY || model.state === ModelState.LOADED;
}

/** Models of a modality with a capability, such as `chat`. */
export function having(capability: string, modality: Modality): Model[] {
  return models.value.filter((model) => model.modality === modality && model.capabilities.includes(capability));
}

/** Follows the catalog while the page is open and visible: browsers have few connections for all their tabs. */
export async function follow(): Promise<never> {
  let wait = FIRST_WAIT;
  for (;;) {
    await until(() => seen.value);
    let failure = await watchOnce(() => (wait = FIRST_WAIT));
    if (failure.kind === "stopped") continue; // another key, or the page is hidden
    if (failure.kind === "key") {
      link.value = { state: "waiting-for-key" };
      keyWanted.value = failure.message;
      await keyChange();
      continue;
    }
    if (failure.kind === "forbidden") {
      const unlisted = await listOnce();
      if (!unlisted) {
        await Promise.race([keyChange(), readyAgain(LISTED_EVERY)]);
        continue;
      }
      failure = unlisted;
    }
    link.value = { state: "away", why: failure.sentence, retryAt: Date.now() + wait };
    await Promise.race([keyChange(), readyAgain(wait)]);
    wait = Math.min(wait * 2, LONGEST_WAIT);
  }
}

async function watchOnce(began: () => void): Promise<Failure> {
  const fresh = new Map<string, DesiredModel>();
  let synced = false;
  let silence: Failure | null = null;
  const ended = new AbortController();
  const asked = key.peek();
  hangUp = (failure) => {
    silence = failure;
    ended.abort();
  };
  const dispose = effect(() => {
    if (!seen.value || key.value !== asked) ended.abort();
  });
  try {
    const patience = { first: PATIENCE, next: () => (synced ? null : PATIENCE) };
    for await (const { event } of stream(ModelService.method.watchModels, [{ statuses: true }], ended.signal, patience)) {
      began();
      if (event.case === "changed" && event.value.model) {
        if (synced) put(event.value.model.id, event.value);
        else fresh.set(event.value.model.id, event.value);
      } else if (event.case === "removedId") {
        put(event.value, null);
      } else if (event.case === "synced") {
        synced = true;
        desired.value = fresh;
        manages.value = true;
        hub.value = event.value.hub;
        link.value = { state: "up" };
      }
    }
    return asFailure(new TypeError("the watch ended"));
  } catch (error) {
    return silence ?? asFailure(error, ended.signal.aborted);
  } finally {
    dispose();
    hangUp = () => {};
  }
}

/** Lists the models once, for keys that may use but not manage them. Returns the failure, if any. */
async function listOnce(): Promise<Failure | null> {
  try {
    const { models: listed } = await ask(ModelService.method.listModels, {}, AbortSignal.timeout(PATIENCE));
    desired.value = new Map(listed.map((model) => [model.id, create(DesiredModelSchema, { model })]));
    manages.value = false;
    link.value = { state: "up" };
    return null;
  } catch (error) {
    const failure = asFailure(error);
    return failure.kind === "stopped" ? new Failure("away", SILENT) : failure;
  }
}

function keyChange(): Promise<void> {
  const before = key.peek();
  return new Promise((resolve) => {
    const stop = key.subscribe((now) => {
      if (now !== before) {
        resolve();
        queueMicrotask(() => stop());
      }
    });
  });
}

function put(id: string, after: DesiredModel | null): void {
  const next = new Map(desired.value);
  if (after) next.set(id, after);
  else next.delete(id);
  desired.value = next;
}

function byId(one: Model, other: Model): number {
  return one.id < other.id ? -1 : 1;
}
