// What models there are and how they are: one watch of the catalog, begun again whenever it breaks.

import { create } from "@bufbuild/protobuf";
import { computed, effect, signal } from "@preact/signals";
import { DesiredModelSchema, type DesiredModel } from "../generated/allm/models/v1/manifest_pb";
import { Modality, ModelState, type Model } from "../generated/allm/models/v1/model_pb";
import { ModelService } from "../generated/allm/models/v1/model_service_pb";
import { asFailure, Failure, SILENT } from "./failure";
import { ask, stream } from "./grpc_web";
import { key, keyWanted } from "./key";
import { readyAgain, seen, until } from "./waiting";

/** How the console stands with the server. */
export type Link =
  | { state: "connecting" }
  | { state: "up" }
  | { state: "waiting-for-key" }
  | { state: "away"; why: string; retryAt: number };

const FIRST_WAIT = 500;
const LONGEST_WAIT = 8000;
const PATIENCE = 8000; // a catalog that is there answers at once
const LISTED_EVERY = 60_000;

export const link = signal<Link>({ state: "connecting" });
/** Whether the key may manage models; as last told, while the server is away. */
export const manages = signal(false);
/** All models, by id; kept while the server is away. */
export const desired = signal<ReadonlyMap<string, DesiredModel>>(new Map());
export const models = computed(() => [...desired.value.values()].flatMap((each) => each.model ?? []).sort(byId));
// Ends the watch that is open now; its connection is dead, and nobody has told.
let hangUp = (_: Failure) => {};

/** To be called by whoever finds the server silent that should say something: the link is down then, and begun again. */
export function foundSilent(failure: Failure): void {
  hangUp(failure);
}

/** Whether requests are answered for it. */
export function serves(model: Model): boolean {
  return model.state === ModelState.READY || model.state === ModelState.LOADED;
}

/** Models of a kind that have a capability, such as `chat`. */
export function having(capability: string, modality: Modality): Model[] {
  return models.value.filter((model) => model.modality === modality && model.capabilities.includes(capability));
}

/** Follows the catalog for as long as the page is open, and seen: browsers have few connections for all their tabs. */
export async function follow(): Promise<never> {
  let wait = FIRST_WAIT;
  for (;;) {
    await until(() => seen.value);
    let failure = await watchOnce(() => (wait = FIRST_WAIT));
    if (failure.kind === "stopped") continue; // another key, or nobody looks
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

/** For keys that may use models but not manage them: the list as it is now. Gives what it failed of, if it did. */
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
