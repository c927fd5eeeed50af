// The pictures of this tab.

import { save } from "../saving";
import { change, forget, gallery, type Picture } from "./drawing";

export function GalleryView({ onEdit }: { onEdit: (picture: Picture) => void }) {
  if (!gallery.value.length) return null;
  return (
    <section aria-labelledby="gallery-title">
      <h2 id="gallery-title">Gallery</h2>
      <p class="hint">Kept by this tab alone, until you close it.</p>
      <ul class="gallery">
        {gallery.value.map((picture) => (
          <li key={picture.id} class="card">
            <img src={picture.source} alt={picture.prompt || "A drawn picture"} />
            <p>{picture.prompt}</p>
            <p class="hint">{picture.width} × {picture.height} · {picture.steps ? `${picture.steps} steps · ` : ""}seed {String(picture.seed)}</p>
            <div class="row">
              <button type="button" onClick={() => save(picture.content, `${picture.model}-${picture.seed}.png`, "image/png")}>Save</button>
              <button type="button" onClick={() => onEdit(picture)}>Edit</button>
              <button type="button" class="quiet" onClick={() => change({ seed: String(picture.seed), prompt: picture.prompt })}>Use its seed</button>
              <button type="button" class="quiet" onClick={() => forget(picture)}>Forget</button>
            </div>
          </li>
        ))}
      </ul>
    </section>
  );
}
