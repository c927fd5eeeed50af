// What models there are and how they are: one watch of the catalog, begun again whenever it breaks.

import { create } from "@bufbuild/protobuf";
import { computed, signal } from "@preact/signals";
import { DesiredModelSchema, type DesiredModel } from "../generated/allm/models/v1/manifest_pb";
import { Modality, ModelState, type Model } from "../generated/allm/models/v1/model_pb";
import { ModelService } from "../generated/allm/models/v1/model_service_pb";
import { asFailure, type Failure } from "./failure";
import { ask, stream } from "./grpc_web";
import { key, keyWanted } from "./key";
import { readyAgain } from "./waiting";

/** How the console stands with the server. */
export type Link =
  | { state: "connecting" }
  | { state: "up" }
  | { state: "waiting-for-key" }
  | { state: "away"; why: string; retryAt: number };

/** What a listener is told: what a model was and what it is now; null where it is not there. */
export type Change = (before: DesiredModel | null, after: DesiredModel | null) => void;

const FIRST_WAIT = 500;
const LONGEST_WAIT = 8000;

export const link = signal<Link>({ state: "connecting" });
/** Whether the key may manage models; as last told, while the server is away. */
export const manages = signal(false);
/** All models, by id; kept while the server is away. */
export const desired = signal<ReadonlyMap<string, DesiredModel>>(new Map());
export const models = computed(() => [...desired.value.values()].flatMap((each) => each.model ?? []).sort(byId));
const listeners = new Set<Change>();

/** Has `change` told of everything that changes. */
export function onChange(change: Change): void {
  listeners.add(change);
}

/** Whether requests are answered for it. */
export function serves(model: Model): boolean {
  return model.state === ModelState.READY || model.state === ModelState.LOADED;
}

/** Models of a kind that have a capability, such as `chat`. */
export function having(capability: string, modality: Modality): Model[] {
  return models.value.filter((model) => model.modality === modality && model.capabilities.includes(capability));
}

/** Follows the catalog for as long as the page is open. */
export async function follow(): Promise<never> {
  let wait = FIRST_WAIT;
  for (;;) {
    const failure = await watchOnce(() => (wait = FIRST_WAIT));
    if (failure.kind === "stopped") continue; // another key
    if (failure.kind === "key") {
      link.value = { state: "waiting-for-key" };
      keyWanted.value = failure.message;
      await keyChange();
      continue;
    }
    if (failure.kind === "forbidden" && (await listOnce())) {
      await Promise.race([keyChange(), readyAgain(60_000)]);
      continue;
    }
    link.value = { state: "away", why: failure.sentence, retryAt: Date.now() + wait };
    await Promise.race([keyChange(), readyAgain(wait)]);
    wait = Math.min(wait * 2, LONGEST_WAIT);
  }
}

async function watchOnce(began: () => void): Promise<Failure> {
  const fresh = new Map<string, DesiredModel>();
  let synced = false;
  const ended = new AbortController();
  void keyChange().then(() => ended.abort());
  try {
    for await (const { event } of stream(ModelService.method.watchModels, [{ statuses: true }], ended.signal)) {
      began();
      if (event.case === "changed" && event.value.model) {
        if (synced) put(event.value.model.id, event.value);
        else fresh.set(event.value.model.id, event.value);
      } else if (event.case === "removedId") {
        put(event.value, null);
      } else if (event.case === "synced") {
        synced = true;
        replace(fresh);
        manages.value = true;
        link.value = { state: "up" };
      }
    }
    return asFailure(new TypeError("the watch ended"));
  } catch (error) {
    return asFailure(error, ended.signal.aborted);
  }
}

/** For keys that may use models but not manage them: the list as it is now. */
async function listOnce(): Promise<boolean> {
  try {
    const { models: listed } = await ask(ModelService.method.listModels, {});
    const found = new Map<string, DesiredModel>();
    for (const model of listed) found.set(model.id, create(DesiredModelSchema, { model }));
    replace(found);
    manages.value = false;
    link.value = { state: "up" };
    return true;
  } catch {
    return false;
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
  const before = desired.value.get(id) ?? null;
  const next = new Map(desired.value);
  if (after) next.set(id, after);
  else next.delete(id);
  desired.value = next;
  for (const change of listeners) change(before, after);
}

function replace(fresh: Map<string, DesiredModel>): void {
  const old = desired.value;
  desired.value = fresh;
  for (const id of new Set([...old.keys(), ...fresh.keys()])) {
    for (const change of listeners) change(old.get(id) ?? null, fresh.get(id) ?? null);
  }
}

function byId(one: Model, other: Model): number {
  return one.id < other.id ? -1 : 1;
}
