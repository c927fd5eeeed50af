// What the machine does: one watch of the catalog's samples. It is the pulse of the connection as well: the server sends
// one sample after the other, so that a client who hears none knows that nobody is there.

import { durationFromMs, durationMs, timestampMs } from "@bufbuild/protobuf/wkt";
import { computed, effect, signal } from "@preact/signals";
import type { MachineEvent } from "../../generated/allm/models/v1/figures_pb";
import { MachineService, type MachineSample } from "../../generated/allm/models/v1/machine_service_pb";
import { foundSilent, link, manages } from "../catalog";
import { asFailure, Failure, SILENT } from "../failure";
import { stream } from "../grpc_web";
import { key } from "../key";
import { readyAgain, seen, until } from "../waiting";

/** Everything at one moment of the server's clock, in Unix seconds. */
export interface Look {
  at: number;
  sample: MachineSample;
}

/** Something that has happened, in Unix seconds of the server's clock. */
export interface Happening {
  at: number;
  event: MachineEvent;
}

export const KEPT_SECONDS = 900;
const FIRST_PATIENCE = 8000;
const LEAST_PATIENCE = 6000; // a machine at its limits stutters
const MISSED = 3; // so many samples that do not come are a dead connection
const FIRST_WAIT = 1000;
const LONGEST_WAIT = 30_000;
const OVERLAP_MS = 5000;

/** The last minutes, oldest first. */
export const looks = signal<readonly Look[]>([]);
/** What has happened within them, oldest first. */
export const happenings = computed<readonly Happening[]>(() => looks.value.flatMap(({ sample }) =>
  sample.events.map((event) => ({ at: event.time ? timestampMs(event.time) / 1000 : 0, event }))));
/** Seconds from one sample to the next. */
export const interval = signal(2);
/** Why nothing is told; null while something is, or soon may be. */
export const machineFailure = signal<Failure | null>(null);
// Only who looks at the machine needs its past, which is many times larger than a pulse.
const pastWanted = signal(false);
// When the last sample came, by this browser's clock; null before all.
let heardAt: number | null = null;
let pastKnown = false;

/** Has the last minutes fetched, if they are not known yet. */
export function wantPast(): void {
  pastWanted.value = true;
}

/** Follows the machine for as long as the page is open, and seen, with a key that may. */
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
    return new Failure("away", "The server has ended this watch. It is begun again by itself");
  } catch (error) {
    return asFailure(error, ended.signal.aborted);
  } finally {
    dispose();
  }
}

/** How much of the past to ask for: all of it once, then what was missed. */
function missing() {
  if (!pastWanted.peek()) return undefined;
  if (!pastKnown || heardAt === null) return durationFromMs(KEPT_SECONDS * 1000);
  return durationFromMs(Math.min(KEPT_SECONDS * 1000, Date.now() - heardAt + OVERLAP_MS));
}

/** Puts what was told between what is known already: a past that is told anew takes its place. */
function keep(told: Look[]): void {
  if (!told.length) return;
  heardAt = Date.now();
  const [first, last] = [told[0]!.at, told.at(-1)!.at];
  const known = looks.peek();
  const all = [...known.filter((each) => each.at < first), ...told, ...known.filter((each) => each.at > last)];
  const newest = all.at(-1)!.at;
  looks.value = all.filter((each) => each.at > newest - KEPT_SECONDS);
}

// What one key may see is not for the next.
effect(() => {
  void key.value;
  looks.value = [];
  machineFailure.value = null;
  [heardAt, pastKnown] = [null, false];
});
