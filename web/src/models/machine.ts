// The state of the machine: one watch of the catalog's samples. It is also the heartbeat of the connection: the server
// sends samples steadily, so a client without samples knows that the connection is dead.

import { durationFromMs, durationMs, timestampMs } from "@bufbuild/protobuf/wkt";
import { computed, effect, signal } from "@preact/signals";
import type { MachineEvent } from "../../generated/allm/models/v1/figures_pb";
import { MachineService, type MachineSample } from "../../generated/allm/models/v1/machine_service_pb";
import { foundSilent, link, manages } from "../catalog";
import { asFailure, Failure, SILENT } from "../failure";
import { stream } from "../grpc_web";
import { key } from "../key";
import { readyAgain, seen, until } from "../waiting";

/** The sample of one moment of the server's clock, in Unix seconds. */
export interface Look {
  at: number;
  sample: MachineSample;
}

/** An event, with its time in Unix seconds of the server's clock. */
export interface Happening {
  at: number;
  event: MachineEvent;
}

export const KEPT_SECONDS = 900;
const FIRST_PATIENCE = 8000;
const LEAST_PATIENCE = 6000; // an overloaded machine stutters
const MISSED = 3; // missed samples that mean a dead connection
const FIRST_WAIT = 1000;
const LONGEST_WAIT = 30_000;
const OVERLAP_MS = 5000;

/** The last minutes, oldest first. */
export const looks = signal<readonly Look[]>([]);
/** The events within them, oldest first. */
export const happenings = computed<readonly Happening[]>(() => looks.value.flatMap(({ sample }) =>
  sample.events.map((event) => ({ at: event.time ? timestampMs(event.time) / 1000 : 0, event }))));
/** Seconds from one sample to the next. */
export const interval = signal(2);
/** Why no samples arrive; null while they do or soon may. */
export const machineFailure = signal<Failure | null>(null);
// Only the view of the machine needs the history, which is many times larger than a heartbeat.
const pastWanted = signal(false);
// The arrival of the last sample by this browser's clock; null before the first.
let heardAt: number | null = null;
let pastKnown = false;

/** Requests the last minutes, unless they are known. */
export function wantPast(): void {
  pastWanted.value = true;
}

/** Follows the machine while the page is open and visible, and the key may. */
export async function followMachine(): Promise<never> {
  let wait = FIRST_WAIT;
  for (;;) {
    await until(mayWatch);
    const failure = await watchOnce(() => (wait = FIRST_WAIT));
    if (failure.kind === "stopped") continue;
    if (failure.message === SILENT) foundSilent(failure);
    machineFailure.value = failure;
    await readyAgain(wait);
    wait = Math.min(wait * 2, LONGEST_WAIT);
  }
}

function mayWatch(): boolean {
  return seen.value && manages.value && link.value.state === "up";
}

async function watchOnce(synced: () => void): Promise<Failure> {
  const ended = new AbortController();
  const [asked, past] = [key.peek(), pastWanted.peek()];
  const dispose = effect(() => {
    if (!mayWatch() || key.value !== asked || pastWanted.value !== past) ended.abort();
  });
  let fresh: Look[] | null = [];
  const patience = { first: FIRST_PATIENCE, next: () => Math.max(LEAST_PATIENCE, MISSED * interval.value * 1000) };
  try {
    for await (const { event } of stream(MachineService.method.watchMachine, [{ history: missing() }], ended.signal, patience)) {
      if (event.case === "synced") {
        if (event.value.interval) interval.value = durationMs(event.value.interval) / 1000;
        keep(fresh ?? []);
        fresh = null;
        pastKnown ||= past;
        machineFailure.value = null;
        synced();
      } else if (event.case === "sample" && event.value.time) {
        const look = { at: timestampMs(event.value.time) / 1000, sample: event.value };
        if (fresh) fresh.push(look);
        else keep([look]);
      }
    }
    return new Failure("away", "The server closed the stream of machine data. The page reconnects automatically");
  } catch (error) {
    return asFailure(error, ended.signal.aborted);
  } finally {
    dispose();
  }
}

/** The history to request: all of it once, then the missed part. */
function missing() {
  if (!pastWanted.peek()) return undefined;
  if (!pastKnown || heardAt === null) return durationFromMs(KEPT_SECONDS * 1000);
  return durationFromMs(Math.min(KEPT_SECONDS * 1000, Date.now() - heardAt + OVERLAP_MS));
}

/** Merges received samples into the known ones; a repeated history replaces the known one. */
function keep(told: Look[]): void {
  if (!told.length) return;
  heardAt = Date.now();
  const [first, last] = [told[0]!.at, told.at(-1)!.at];
  const known = looks.peek();
  const all = [...known.filter((each) => each.at < first), ...told, ...known.filter((each) => each.at > last)];
  const newest = all.at(-1)!.at;
  looks.value = all.filter((each) => each.at > newest - KEPT_SECONDS);
}

// The next key may not see the data of the last one.
effect(() => {
  void key.value;
  looks.value = [];
  machineFailure.value = null;
  [heardAt, pastKnown] = [null, false];
});
