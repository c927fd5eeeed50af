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
      {up && !manages.value && <p class="note">This key may use models but not manage them, so this list is looked up once a minute, and what the machine does is not shown. A key with the scope <code>admin</code> shows both.</p>}
      {manages.value && (
        <details class="panel" open={all.length === 0}>
          <summary>Register a model</summary>
          <RegisterForm />
        </details>
      )}
      {all.length > 0
        ? <ul class="cards">{all.map((model) => <ModelCard key={model.id} model={model} manages={manages.value} />)}</ul>
        : up && <Empty title="No model is registered"><p>Name one above: a small one is fetched within a minute.</p></Empty>}
      {manages.value && <MachineView />}
    </div>
  );
}
