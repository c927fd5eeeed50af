// The images that this browser keeps.

import { Modality } from "../../generated/allm/models/v1/model_pb";
import { having, serves } from "../catalog";
import { readPicture } from "../chat/attachments";
import { addressOf } from "../chat/conversations";
import { draft } from "../chat/draft";
import { bytes } from "../measures";
import { Unkept } from "../notes";
import { save } from "../saving";
import { DeleteButton } from "../sure";
import { gallery, keptBytes, MOST_BYTES, MOST_IMAGES, remove, removeAll, type ShownPicture } from "./gallery";
import { change } from "./generation";

export function GalleryView({ onEdit }: { onEdit: (picture: ShownPicture) => void }) {
  const seen = having("vision", Modality.TEXT).some(serves);
  if (!gallery.value.length) return null;
  return (
    <section aria-labelledby="gallery-title">
      <h2 id="gallery-title">Gallery</h2>
      <Unkept />
      <Limit />
      <ul class="gallery">
        {gallery.value.map((picture) => (
          <li key={picture.id} class="card">
            <img src={picture.source} alt={picture.prompt || "Generated image"} width={picture.width} height={picture.height} />
            <p>{picture.prompt}</p>
            <p class="hint">{picture.width} × {picture.height} · {picture.steps ? `${picture.steps} steps · ` : ""}seed {String(picture.seed)}</p>
            <div class="row">
              <button type="button" onClick={() => save(picture.content, `${picture.model}-${picture.seed}.png`, "image/png")}>Save</button>
              <button type="button" onClick={() => onEdit(picture)}>Edit</button>
              {seen && <button type="button" onClick={() => void ask(picture)}>Ask about it</button>}
              <button type="button" class="quiet" onClick={() => change({ seed: String(picture.seed), prompt: picture.prompt, negative: picture.negative })}>Use prompt and seed</button>
              <button type="button" class="quiet" onClick={() => void remove(picture.id)}>Delete</button>
            </div>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** Attaches an image to the next message of the chat. */
async function ask({ content, model, seed }: ShownPicture): Promise<void> {
  const file = await readPicture(content, `${model}-${seed}.png`);
  draft.value = { ...draft.peek(), files: [...draft.peek().files, file] };
  location.hash = addressOf();
}

/** How much is kept, how much may be, and the button that deletes all. */
function Limit() {
  const count = gallery.value.length;
  return (
    <div class="row kept">
      <span class="hint">
        This browser keeps {count === 1 ? "1 image" : `${count} images`} ({bytes(keptBytes.value)}). At {MOST_IMAGES} images or {bytes(MOST_BYTES)} it deletes the oldest.
      </span>
      <DeleteButton question="Delete all images in this browser?" onDelete={() => void removeAll()}>Delete all images</DeleteButton>
    </div>
  );
}
