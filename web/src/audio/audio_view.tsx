// Speech to text.

import { Modality } from "../../generated/allm/models/v1/model_pb";
import { DropZone } from "../drop_zone";
import { TextField } from "../fields";
import { ModelPicker, NoModel, picked } from "../model_picker";
import { Empty } from "../notes";
import { remembered } from "../remembered";
import { current, dictate, stop, transcribe } from "./transcription";
import { TranscriptView } from "./transcript_view";

const form = remembered("audio", { model: "", language: "" });

export function AudioView() {
  const language = form.value.language.trim();
  const model = picked("transcription", Modality.AUDIO, form.value.model)?.id ?? "";
  const shown = current.value;
  const refused = shown?.failure?.param === "language" && shown.asked === language ? shown.failure.message : null;
  const busy = shown?.state === "running" || shown?.state === "listening";
  return (
    <div class="split">
      <aside aria-label="Settings">
        <ModelPicker capability="transcription" modality={Modality.AUDIO} value={form.value.model} onPick={(id) => (form.value = { ...form.value, model: id })} />
        <TextField label="Language" value={form.value.language} onText={(text) => (form.value = { ...form.value, language: text })} placeholder="auto-detect" hint="For example en or German" problem={refused} />
      </aside>
      <section class="page" aria-label="Transcription">
        <h1 class="hidden">Audio</h1>
        {model && (
          <div class="row sources">
            <DropZone label="Drop a recording here, or choose one" accept="audio/*,video/mp4,video/webm,.flac,.opus,.m4a" onFile={(file) => void transcribe(file, file.name, model, language)} />
            {busy
              ? <button type="button" class="primary" onClick={stop}>{shown.state === "listening" ? "Stop recording" : "Stop"}</button>
              : <button type="button" onClick={() => void dictate(model, language)}>Use microphone</button>}
          </div>
        )}
        {shown && <TranscriptView shown={shown} onRetry={model && shown.sound ? () => void transcribe(shown.sound!, shown.name, model, language) : null} />}
        {!shown && model && (
          <Empty title="Transcribe speech">
            <p>Supported formats: wav, mp3, m4a, ogg, opus, flac and webm. A file is transcribed as a whole; the microphone, while you speak. The audio is sent only to this server.</p>
          </Empty>
        )}
        {!model && <NoModel capability="transcription" modality={Modality.AUDIO} kind="speech" format="Whisper" />}
      </section>
    </div>
  );
}
