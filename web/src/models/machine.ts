// The memory of the machine that the text service runs on: one watch, begun again whenever it breaks.

import { signal } from "@preact/signals";
import { ResidencyService, type Residency } from "../../generated/allm/models/v1/residency_service_pb";
import { asFailure, type Failure } from "../failure";
import { stream } from "../grpc_web";
import { readyAgain } from "../waiting";

const WAIT = 4000;

/** As it was last told; null while it is not known. */
export const residency = signal<Residency | null>(null);
/** Why it is not told; null while it is. */
export const machineFailure = signal<Failure | null>(null);
let following = false;

/** Follows it from now on, once. */
export async function followMachine(): Promise<void> {
  if (following) return;
  following = true;
  for (;;) {
    try {
      for await (const event of stream(ResidencyService.method.watchResidency, [{}])) {
        machineFailure.value = null;
        residency.value = event.residency ?? null;
      }
    } catch (error) {
      machineFailure.value = asFailure(error);
    }
    await readyAgain(WAIT);
  }
}
