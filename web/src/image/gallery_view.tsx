// The images of this tab.

import { save } from "../saving";
import { change, forget, gallery, type Picture } from "./generation";

export function GalleryView({ onEdit }: { onEdit: (picture: Picture) => void }) {
  if (!gallery.value.length) return null;
  return (
    <section aria-labelledby="gallery-title">
      <h2 id="gallery-title">Gallery</h2>
      <p class="hint">Images are kept in this tab only, until you close it.</p>
      <ul class="gallery">
        {gallery.value.map((picture) => (
          <li key={picture.id} class="card">
            <img src={picture.source} alt={picture.prompt || "Generated image"} />
            <p>{picture.prompt}</p>
            <p class="hint">{picture.width} × {picture.height} · {picture.steps ? `${picture.steps} steps · ` : ""}seed {String(picture.seed)}</p>
            <div class="row">
              <button type="button" onClick={() => save(picture.content, `${picture.model}-${picture.seed}.png`, "image/png")}>Save</button>
              <button type="button" onClick={() => onEdit(picture)}>Edit</button>
              <button type="button" class="quiet" onClick={() => change({ seed: String(picture.seed), prompt: picture.prompt })}>Use prompt and seed</button>
              <button type="button" class="quiet" onClick={() => forget(picture)}>Delete</button>
            </div>
          </li>
        ))}
      </ul>
    </section>
  );
}
