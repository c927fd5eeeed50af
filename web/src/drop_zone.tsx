// A field for a file that the user drops or chooses.

import { useId, useState } from "preact/hooks";

export function DropZone({ label, accept, onFile }: { label: string; accept: string; onFile: (file: File) => void }) {
  const id = useId();
  const [over, setOver] = useState(false);
  const take = (files: FileList | null | undefined) => {
    const file = files?.[0];
    if (file) onFile(file);
  };
  return (
    <div class={over ? "drop over" : "drop"}
      onDragOver={(event) => { event.preventDefault(); setOver(true); }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => { event.preventDefault(); setOver(false); take(event.dataTransfer?.files); }}>
      <label for={id}>{label}</label>
      <input id={id} type="file" accept={accept} onChange={(event) => { take(event.currentTarget.files); event.currentTarget.value = ""; }} />
    </div>
  );
}
