// The registered models, and the machine that runs them.

import { link, manages, models } from "../catalog";
import { Empty } from "../notes";
import { MachineView } from "./machine_view";
import { ModelCard } from "./model_card";
import { RegisterForm } from "./register_form";

export function ModelsView() {
  const all = models.value;
  const up = link.value.state === "up";
  return (
    <div class="page">
      <h1>Models</h1>
      {up && !manages.value && <p class="note">This key can use models but not manage them. The list is refreshed once a minute, and machine data is hidden. A key with the scope <code>admin</code> shows live data.</p>}
      {manages.value && (
        <details class="panel" open={all.length === 0}>
          <summary>Register a model</summary>
          <RegisterForm />
        </details>
      )}
      {all.length > 0
        ? <ul class="cards">{all.map((model) => <ModelCard key={model.id} model={model} manages={manages.value} />)}</ul>
        : up && <Empty title="No models are registered"><p>Register one above. A small model downloads within a minute.</p></Empty>}
      {manages.value && <MachineView />}
    </div>
  );
}
