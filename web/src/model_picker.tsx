// A list of models to choose from; models that do not answer are disabled and show the reason.

import { useId } from "preact/hooks";
import { ModelState, type Modality, type Model } from "../generated/allm/models/v1/model_pb";
import { having, link, serves } from "./catalog";
import { bestOf } from "./chat/best_model";
import { stateName } from "./models/states";

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
