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
export interface TimedSample {
  at: number;
  sample: MachineSample;
}

/** An event, with its time in Unix seconds of the server's clock. */
export interface TimedEvent {
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
export const samples = signal<readonly TimedSample[]>([]);
/** The events within them, oldest first. */
export const machineEvents = computed<readonly TimedEvent[]>(() => samples.value.flatMap(({ sample }) =>
  sample.events.map((event) => ({ at: event.time ? timestampMs(event.time) / 1000 : 0, event }))));
/** Seconds from one sample to the next. */
export const interval = signal(2);
/** Why no samples arrive; null while they do or soon may. */
export const machineFailure = signal<Failure | null>(null);
// Only the view of the machine needs the history, which is many times larger than a heartbeat.
const pastWanted = signal(false);
// The arrival of the last sample by this browser's clock; null before the first.
let receivedAt: number | null = null;
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
  let fresh: TimedSample[] | null = [];
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
        const timed = { at: timestampMs(event.value.time) / 1000, sample: event.value };
        if (fresh) fresh.push(timed);
        else keep([timed]);
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
  if (!pastKnown || receivedAt === null) return durationFromMs(KEPT_SECONDS * 1000);
  return durationFromMs(Math.min(KEPT_SECONDS * 1000, Date.now() - receivedAt + OVERLAP_MS));
}

/** Merges received samples into the known ones; a repeated history replaces the known one. */
function keep(received: TimedSample[]): void {
  if (!received.length) return;
  receivedAt = Date.now();
  const [first, last] = [received[0]!.at, received.at(-1)!.at];
  const known = samples.peek();
  const all = [...known.filter((each) => each.at < first), ...received, ...known.filter((each) => each.at > last)];
  const newest = all.at(-1)!.at;
  samples.value = all.filter((each) => each.at > newest - KEPT_SECONDS);
}

// The next key may not see the data of the last one.
effect(() => {
  void key.value;
  samples.value = [];
  machineFailure.value = null;
  [receivedAt, pastKnown] = [null, false];
});
