// One model: its state and actions.

import { useState } from "preact/hooks";
import { Format, Modality, ModelState, type CanonicalFiles, type Model, type ReplicaStatus } from "../../generated/allm/models/v1/model_pb";
import { ModelService, type ExplainModelResponse } from "../../generated/allm/models/v1/model_service_pb";
import { asFailure, type Failure } from "../failure";
import { ask } from "../grpc_web";
import { bytes } from "../measures";
import { FailureNote } from "../notes";
import { DeleteButton } from "../sure";
import { doing, load, remove, unload } from "./management";
import { stateName } from "./states";

export function ModelCard({ model, manages }: { model: Model; manages: boolean }) {
  const under = doing.value.get(model.id);
  const state = stateName(model.state);
  const loading = model.state === ModelState.READY && model.replicas.some((each) => each.memory?.loading);
  return (
    <li class="card model" data-model={model.id} data-state={state}>
      <div class="row between">
        <h2>{model.id}</h2>
        <span class={`badge ${loading ? "pending" : state}`}>{loading ? "loading" : state}</span>
      </div>
      <p class="hint">{about(model)}</p>
      {model.reason && !model.replicas.some(fetching) && <p class="note">{model.reason}</p>}
      {model.replicas.map((replica) => <Replica key={replica.replica} replica={replica} known={model.reason} />)}
      {under && !under.failure && <p class="hint" role="status">{under.what}…</p>}
      {under?.failure && <FailureNote failure={under.failure} />}
      <Actions model={model} manages={manages} busy={Boolean(under && !under.failure)} />
    </li>
  );
}

function about(model: Model): string {
  const parts = [
    Modality[model.modality]?.toLowerCase(),
    Format[model.format]?.toLowerCase(),
    model.sizeBytes ? bytes(model.sizeBytes) : "",
    model.contextTokens ? `${model.contextTokens.toLocaleString()} context tokens` : "",
    model.runtime,
    model.aliases.length ? `aliases: ${model.aliases.join(", ")}` : "",
    model.keepLoaded ? "kept loaded" : "",
  ];
  return parts.filter(Boolean).join(" · ");
}

function fetching({ doneBytes, totalBytes }: ReplicaStatus): boolean {
  return totalBytes > 0n && doneBytes < totalBytes;
}

/** A replica's part of the model; `known`: the reason that the card shows already. */
function Replica({ replica, known }: { replica: ReplicaStatus; known: string }) {
  const { memory, artifact, canonical } = replica;
  const reason = replica.reason === known ? "" : replica.reason;
  if (!memory && !fetching(replica) && !reason && !artifact) return null;
  return (
    <div class="replica">
      <span class="who">{replica.replica}{replica.device ? ` on ${replica.device}` : ""}</span>
      {memory && <span> {memory.loading ? "loading" : "uses"} {bytes(memory.reservedBytes)}{memory.requests ? `, ${memory.requests} ${memory.requests === 1 ? "request" : "requests"}` : ""}</span>}
      {fetching(replica) && (
        <label class="inline">Downloaded {bytes(replica.doneBytes)} of {bytes(replica.totalBytes)}
          <progress max={1} value={Number(replica.doneBytes) / Number(replica.totalBytes)} />
        </label>
      )}
      {reason && <span class="hint"> {reason}</span>}
      {artifact && <span class="hint"> serves {artifact}</span>}
      {canonical && <span class="hint">, keeps the model's own files: {kept(canonical)}</span>}
    </div>
  );
}

function kept({ state, reason, doneBytes, totalBytes }: CanonicalFiles): string {
  if (state === ModelState.READY) return `complete, ${bytes(totalBytes)}`;
  return `${stateName(state)}, ${bytes(doneBytes)} of ${bytes(totalBytes)}${reason ? `: ${reason}` : ""}`;
}

function Actions({ model, manages, busy }: { model: Model; manages: boolean; busy: boolean }) {
  const [why, setWhy] = useState<ExplainModelResponse | Failure | null>(null);
  const explain = async () => {
    if (why) return setWhy(null);
    try {
      setWhy(await ask(ModelService.method.explainModel, { id: model.id }));
    } catch (error) {
      setWhy(asFailure(error));
    }
  };
  const name = ` ${model.id}`;
  const loaded = model.state === ModelState.LOADED;
  // The states in which a load takes effect; a model that is kept loaded is loaded without being asked to.
  const loadable = !model.keepLoaded && (loaded || model.state === ModelState.READY);
  return (
    <>
      <div class="row actions">
        {manages && loadable && <button type="button" disabled={busy} onClick={() => void load(model.id)}>{loaded ? "Keep loaded" : "Load"}<span class="hidden">{name}</span></button>}
        {manages && (loaded || model.keepLoaded) && <button type="button" disabled={busy} onClick={() => void unload(model.id)}>Unload<span class="hidden">{name}</span></button>}
        <button type="button" aria-expanded={why !== null} onClick={() => void explain()}>Why<span class="hidden">{name}</span></button>
        {manages && (
          <DeleteButton question="Delete this model and its downloaded files?" disabled={busy} onDelete={() => void remove(model.id)}>
            Delete<span class="hidden">{name}</span>
          </DeleteButton>
        )}
      </div>
      {why instanceof Error && <FailureNote failure={why} />}
      {why && !(why instanceof Error) && <Why answer={why} />}
    </>
  );
}

function Why({ answer }: { answer: ExplainModelResponse }) {
  if (!answer.resolutions.length) return <p class="note">No running service can run this model.</p>;
  return (
    <ul class="why">
      {answer.resolutions.map((each) => (
        <li key={each.replica}>{each.replica} on {each.device}
          <ul>{each.runtimes.map((verdict) => <li key={verdict.runtime}><code>{verdict.runtime}</code>{verdict.chosen ? " is selected: " : ": "}{verdict.reason}</li>)}</ul>
        </li>
      ))}
    </ul>
  );
}
