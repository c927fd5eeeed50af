// Speech to text.

import { signal } from "@preact/signals";
import { Modality } from "../../generated/allm/models/v1/model_pb";
import { DropZone } from "../drop_zone";
import { TextField } from "../fields";
import { ModelPicker, picked } from "../model_picker";
import { Empty } from "../notes";
import { current, dictate, stop, transcribe } from "./transcription";
import { TranscriptView } from "./transcript_view";

const wanted = signal("");
const language = signal("");

export function AudioView() {
  const model = picked("transcription", Modality.AUDIO, wanted.value)?.id ?? "";
  const shown = current.value;
  const busy = shown?.state === "running" || shown?.state === "listening";
  return (
    <div class="split">
      <aside aria-label="Settings">
        <ModelPicker capability="transcription" modality={Modality.AUDIO} value={wanted.value} onPick={(id) => (wanted.value = id)} />
        <TextField label="Language" value={language.value} onText={(text) => (language.value = text)} placeholder="auto-detect" hint="For example en or German" />
      </aside>
      <section class="page" aria-label="Transcription">
        <h1 class="hidden">Audio</h1>
        {model && (
          <div class="row sources">
            <DropZone label="Drop a recording here, or choose one" accept="audio/*,video/mp4,video/webm,.flac,.opus,.m4a" onFile={(file) => void transcribe(file, model, language.value.trim())} />
            {busy
              ? <button type="button" class="primary" onClick={stop}>{shown.state === "listening" ? "Stop recording" : "Stop"}</button>
              : <button type="button" onClick={() => void dictate(model, language.value.trim())}>Use microphone</button>}
          </div>
        )}
        {shown
          ? <TranscriptView shown={shown} />
          : (
            <Empty title={model ? "Transcribe speech" : "No speech model is ready"}>
              {model
                ? <p>Supported formats: wav, mp3, m4a, ogg, opus, flac and webm. The text appears during the transcription. The audio is sent only to this server.</p>
                : <p>Register one under <a href="#/models">Models</a>, with the format Whisper.</p>}
            </Empty>
          )}
      </section>
    </div>
  );
}
