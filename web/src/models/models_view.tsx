// The registered models, and the ways to add one.

import { useRef } from "preact/hooks";
import { hub, link, manages, models } from "../catalog";
import { Empty } from "../notes";
import { HubSearch, searched } from "./hub_search";
import { ModelCard } from "./model_card";
import { RegisterForm } from "./register_form";

export function ModelsView() {
  const all = models.value;
  const up = link.value.state === "up";
  // Stays true: the panel must not close when the first model appears in it.
  const empty = useRef(false);
  empty.current ||= up && all.length === 0;
  return (
    <div class="page">
      <h1>Models</h1>
      {up && !manages.value && <p class="note">This key can use models but not manage them. The list is refreshed once a minute. A key with the scope <code>admin</code> shows live data.</p>}
      {manages.value && (
        <details class="panel hub" open={(empty.current || searched()) && hub.value}>
          <summary>Find a model on the Hugging Face Hub</summary>
          {hub.value ? <HubSearch /> : <p class="note">The server is offline: HF_HUB_OFFLINE is set, so it cannot search or fetch models. Register a model from a path instead.</p>}
        </details>
      )}
      {manages.value && (
        <details class="panel manual" open={empty.current && !hub.value}>
          <summary>Register a model by its source</summary>
          <RegisterForm />
        </details>
      )}
      {all.length > 0
        ? <ul class="cards">{all.map((model) => <ModelCard key={model.id} model={model} manages={manages.value} />)}</ul>
        : <NoModels />}
    </div>
  );
}

function NoModels() {
  const { state } = link.value;
  if (state === "connecting") return <p class="hint" role="status">Loading models…</p>;
  if (state !== "up") return <p class="hint">No list of models was received yet.</p>;
  return (
    <Empty title="No models are registered">
      <p>{manages.value ? "Add one above. A small model downloads within a minute." : "Ask the operator of this server to add one."}</p>
    </Empty>
  );
}
