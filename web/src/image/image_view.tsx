// Generation and editing of images.

import { Modality } from "../../generated/allm/models/v1/model_pb";
import { link } from "../catalog";
import { DropZone } from "../drop_zone";
import { AreaField, NumberFields, SubmitOrStop } from "../fields";
import { ModelPicker, NoModel, picked } from "../model_picker";
import { waitingFor } from "../models/waiting_for";
import { Empty, FailureNote } from "../notes";
import { base, mask, setBase, setMask } from "./editing";
import { gallery } from "./gallery";
import { change, edit, form, generate, generation, stop, type Generation, type ImageForm } from "./generation";
import { GalleryView } from "./gallery_view";
import { MaskEditor } from "./mask_editor";
import { problem } from "./problems";

const FIELDS: [keyof ImageForm, string, string][] = [
  ["width", "Width", "default"], ["height", "Height", "default"], ["steps", "Steps", "default"],
  ["guidance", "Guidance", "default"], ["seed", "Seed", "random"], ["count", "Images", "1"],
];

export function ImageView() {
  const model = picked("image", Modality.IMAGE, form.value.model)?.id ?? "";
  const busy = Boolean(generation.value && !generation.value.failure);
  const numbers: typeof FIELDS = base.value ? [...FIELDS, ["strength", "Strength", "default"]] : FIELDS;
  const wrong = numbers.some(([name]) => problem(name, form.value));
  const possible = Boolean(model && form.value.prompt.trim() && !busy && !wrong);
  const start = (event: Event) => {
    event.preventDefault();
    if (!possible) return;
    if (base.value) void edit(model, base.value.content, mask.value);
    else void generate(model);
  };
  const put = (name: keyof ImageForm) => (text: string) => change({ [name]: text });
  return (
    <div class="split">
      <aside aria-label="Settings">
        <form class="settings" onSubmit={start}>
          <ModelPicker capability="image" modality={Modality.IMAGE} value={form.value.model} onPick={put("model")} />
          <AreaField label="Prompt" value={form.value.prompt} onText={put("prompt")} placeholder="A red circle on a blue background" />
          <AreaField label="Negative prompt" rows={2} value={form.value.negative} onText={put("negative")} />
          <NumberFields fields={numbers.map(([name, label, usual]) => (
            { label, placeholder: usual, value: form.value[name], problem: problem(name, form.value), onText: put(name) }
          ))} />
          <div class="row end">
            <SubmitOrStop busy={busy} possible={possible} onStop={stop}>{base.value ? "Edit image" : "Generate"}</SubmitOrStop>
          </div>
        </form>
      </aside>
      <section class="page" aria-label="Images">
        <h1 class="hidden">Image</h1>
        {!model && <NoModel capability="image" modality={Modality.IMAGE} kind="image" format="diffusers" />}
        {model && !generation.value && !gallery.value.length && !base.value && (
          <Empty title={`Generate images with ${model}`}><p>Describe the image under Prompt. Previews appear during the generation.</p></Empty>
        )}
        {generation.value && <GenerationView now={generation.value} />}
        {model && <Editing />}
        <GalleryView onEdit={({ content }) => setBase(content)} />
      </section>
    </div>
  );
}

function GenerationView({ now }: { now: Generation }) {
  const previews = [...now.previews.entries()].sort(([one], [other]) => one - other);
  return (
    <article class="card drawing" aria-busy={!now.failure} aria-label="Generation">
      <p>{now.prompt}</p>
      {!now.failure && (
        <label class="inline"><span role="status">{progress(now)}</span>
          <progress max={now.steps || 1} value={now.step} />
        </label>
      )}
      <div class="row">
        {previews.map(([index, preview]) => <img key={index} src={preview.source} alt={`Preview ${preview.number + 1} of image ${index + 1}`} data-preview={preview.number} />)}
      </div>
      {now.failure && <FailureNote failure={now.failure} />}
    </article>
  );
}

function progress({ model, started, step, steps }: Generation): string {
  const reason = waitingFor(Modality.IMAGE, model, started);
  return step && link.value.state !== "away" ? `Step ${step} of ${steps}` : reason || "Waiting for the first step…";
}

/** The image to edit, with its mask. */
function Editing() {
  if (!base.value) {
    return (
      <details class="panel">
        <summary>Edit an image</summary>
        <DropZone label="Drop an image here, or choose one" accept="image/png,image/jpeg,image/webp" onFile={setBase} />
      </details>
    );
  }
  return (
    <section class="card editing" aria-label="Image to edit">
      <p class="hint">{mask.value ? "Only the painted area is redrawn." : "Paint the area to redraw. Without a mask, the whole image is redrawn."}</p>
      <MaskEditor source={base.value.source} mask={mask.value} onMask={setMask} />
      <button type="button" class="quiet" onClick={() => setBase(null)}>Generate from text only</button>
    </section>
  );
}
