// Registers a model.

import { useState } from "preact/hooks";
import { ModelService } from "../../generated/allm/models/v1/model_service_pb";
import type { Failure } from "../failure";
import { ChoiceField, TextField } from "../fields";
import { ask } from "../grpc_web";
import { FailureNote } from "../notes";
import { FORMATS, idOf, sourceOf, withoutAdvice } from "./management";

const EMPTY = { source: "", id: "", format: "gguf", aliases: "" };

export function RegisterForm() {
  const [form, setForm] = useState(EMPTY);
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState<Failure | null>(null);
  const [done, setDone] = useState("");
  const id = form.id.trim() || idOf(form.source);
  const put = (part: Partial<typeof EMPTY>) => setForm({ ...form, ...part });
  const problem = (field: keyof typeof EMPTY) => (failure?.param === field ? failure.sentence : null);
  const register = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setFailure(null);
    setDone("");
    const aliases = form.aliases.split(",").map((each) => each.trim()).filter(Boolean);
    try {
      await ask(ModelService.method.registerModel, { id, source: sourceOf(form.source), format: form.format, aliases });
      setForm({ ...EMPTY, format: form.format });
      setDone(`${id} is registered.`);
    } catch (error) {
      setFailure(withoutAdvice(error));
    }
    setBusy(false);
  };
  return (
    <form onSubmit={register} class="register">
      <TextField label="Source" required value={form.source} onText={(source) => put({ source })} placeholder="org/name, org/name#file.gguf or /path"
        hint="A repository on the Hugging Face Hub, or a path on the server below one of its ALLM_MODEL_ROOTS" problem={problem("source")} />
      <div class="grid">
        <ChoiceField label="Format" value={form.format} choices={FORMATS} problem={problem("format")} onText={(format) => put({ format })} />
        <TextField label="Name" value={form.id} onText={(text) => put({ id: text })} placeholder={id || "model name in requests"} problem={problem("id")} />
        <TextField label="Aliases (comma-separated)" value={form.aliases} onText={(aliases) => put({ aliases })} placeholder="gpt-4o-mini, …" problem={problem("aliases")} />
      </div>
      {failure && !(failure.param in EMPTY) && <FailureNote failure={failure} />}
      <div class="row end">
        <span role="status" class="hint">{busy ? "Checking the source…" : done}</span>
        <button type="submit" class="primary" disabled={busy || !form.source.trim() || !id}>Register</button>
      </div>
    </form>
  );
}
