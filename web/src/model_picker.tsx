// A list of models to choose from; models that do not answer are disabled and show the reason.

import { useId } from "preact/hooks";
import { ModelState, type Modality, type Model } from "../generated/allm/models/v1/model_pb";
import { having, link, serves } from "./catalog";
import { bestOf } from "./chat/best_model";
import { stateName } from "./models/states";
import { Empty } from "./notes";

interface Props {
  capability: string;
  modality: Modality;
  value: string;
  onPick: (id: string) => void;
}

/** The selected model; without one that is registered, a model that answers requests: for a chat the best of them. */
export function picked(capability: string, modality: Modality, wanted: string): Model | undefined {
  const all = having(capability, modality);
  const chosen = all.find((model) => model.id === wanted);
  if (capability === "chat") return chosen && serves(chosen) ? chosen : (bestOf(all.filter(serves)) ?? chosen);
  return chosen ?? all.find((model) => model.state === ModelState.LOADED) ?? all.find(serves);
}

/** The text of a view for which no model is ready. */
export function NoModel({ capability, modality, kind, format }: { capability: string; modality: Modality; kind: string; format: string }) {
  if (link.value.state === "connecting") return <Empty title="Loading the list of models…"><p>Connecting to the server.</p></Empty>;
  const all = having(capability, modality);
  return (
    <Empty title={all.length ? `No ${kind} model is ready yet` : `No ${kind} model is registered`}>
      {all.map((model) => <p key={model.id}>{model.id}: {model.reason || stateName(model.state)}</p>)}
      {all.length
        ? <p><a href="#/models">Models</a> shows the progress. A model appears here as soon as it is ready.</p>
        : <p>Register one under <a href="#/models">Models</a>, with the format {format}.</p>}
    </Empty>
  );
}

export function ModelPicker({ capability, modality, value, onPick }: Props) {
  const id = useId();
  const all = having(capability, modality);
  const current = picked(capability, modality, value);
  const [ready, others] = [all.filter(serves), all.filter((model) => !serves(model))];
  return (
    <div class="field picker">
      <label for={id}>Model</label>
      <select id={id} value={current?.id ?? ""} onChange={(event) => onPick(event.currentTarget.value)} disabled={all.length === 0}>
        {!current && <option value="">{link.value.state === "connecting" ? "Loading models…" : all.length ? "No model is ready yet" : "No matching model is registered"}</option>}
        {ready.length > 0 && <optgroup label="Ready">{ready.map((model) => <option key={model.id} value={model.id}>{model.id}</option>)}</optgroup>}
        {others.length > 0 && (
          <optgroup label="Not ready">
            {others.map((model) => <option key={model.id} value={model.id} disabled>{`${model.id}: ${model.reason || stateName(model.state)}`}</option>)}
          </optgroup>
        )}
      </select>
    </div>
  );
}
