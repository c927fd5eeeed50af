// Generation and editing of images.

import { signal } from "@preact/signals";
import { Modality } from "../../generated/allm/models/v1/model_pb";
import { DropZone } from "../drop_zone";
import { AreaField, TextField } from "../fields";
import { ModelPicker, picked } from "../model_picker";
import { Empty, FailureNote } from "../notes";
import { change, generate, generation, edit, form, gallery, stop, type Generation, type ImageForm } from "./generation";
import { GalleryView } from "./gallery_view";
import { MaskEditor } from "./mask_editor";
import { isWrong, problem } from "./problems";

/** The image to edit; null to generate one from text only. */
const base = signal<{ source: string; content: Blob } | null>(null);
const mask = signal<Blob | null>(null);

const FIELDS: [keyof ImageForm, string, string][] = [
  ["width", "Width", "default"], ["height", "Height", "default"], ["steps", "Steps", "default"],
  ["guidance", "Guidance", "default"], ["seed", "Seed", "random"], ["count", "Images", "1"],
];

export function ImageView() {
  const model = picked("image", Modality.IMAGE, form.value.model)?.id ?? "";
  const busy = Boolean(generation.value && !generation.value.failure);
  const possible = Boolean(model && form.value.prompt.trim() && !busy && !isWrong(form.value));
  const start = (event: Event) => {
    event.preventDefault();
    if (!possible) return;
    if (base.value) void edit(model, base.value.content, mask.value);
    else void generate(model);
  };
  const onStop = (event: Event) => {
    event.preventDefault(); // the element becomes the one that submits before the browser asks which it is
    stop();
  };
  const put = (name: keyof ImageForm) => (text: string) => change({ [name]: text });
  return (
    <div class="split">
      <aside aria-label="Settings">
        <form class="settings" onSubmit={start}>
          <ModelPicker capability="image" modality={Modality.IMAGE} value={form.value.model} onPick={put("model")} />
          <AreaField label="Prompt" value={form.value.prompt} onText={put("prompt")} placeholder="A red circle on a blue background" />
          <AreaField label="Negative prompt" rows={2} value={form.value.negative} onText={put("negative")} />
          <div class="grid">
            {FIELDS.map(([name, label, usual]) => (
              <TextField key={name} type="number" label={label} placeholder={usual} value={form.value[name]} problem={problem(name, form.value[name])} onText={put(name)} />
            ))}
            {base.value && <TextField type="number" label="Strength" placeholder="default" value={form.value.strength} problem={problem("strength", form.value.strength)} onText={put("strength")} />}
          </div>
          {Boolean(form.value.width.trim()) !== Boolean(form.value.height.trim()) && <p class="problem" role="alert">Enter both width and height, or neither.</p>}
          <div class="row end">
            {busy
              ? <button type="button" class="primary" onClick={onStop}>Stop</button>
              : <button type="submit" class="primary" disabled={!possible}>{base.value ? "Edit image" : "Generate"}</button>}
          </div>
        </form>
      </aside>
      <section class="page" aria-label="Images">
        <h1 class="hidden">Image</h1>
        {!model && <Empty title="No image model is ready"><p>Register one under <a href="#/models">Models</a>, with the format diffusers.</p></Empty>}
        {model && !generation.value && !gallery.value.length && !base.value && (
          <Empty title={`Generate images with ${model}`}><p>Describe the image under Prompt. Previews appear during the generation.</p></Empty>
        )}
        {generation.value && <GenerationView now={generation.value} />}
        {model && <Editing />}
        <GalleryView onEdit={({ source, content }) => { base.value = { source, content }; mask.value = null; }} />
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
        <label class="inline"><span role="status">{now.step ? `Step ${now.step} of ${now.steps}` : "Waiting for the model…"}</span>
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

/** The image to edit, with its mask. */
function Editing() {
  if (!base.value) {
    return (
      <details class="panel">
        <summary>Edit an image</summary>
        <DropZone label="Drop an image here, or choose one" accept="image/png,image/jpeg,image/webp" onFile={(file) => (base.value = { source: URL.createObjectURL(file), content: file })} />
      </details>
    );
  }
  return (
    <section class="card editing" aria-label="Image to edit">
      <p class="hint">{mask.value ? "Only the painted area is redrawn." : "Paint the area to redraw. Without a mask, the whole image is redrawn."}</p>
      <MaskEditor source={base.value.source} onMask={(painted) => (mask.value = painted)} />
      <button type="button" class="quiet" onClick={() => (base.value = null)}>Generate from text only</button>
    </section>
  );
}
