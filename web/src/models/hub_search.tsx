// Finds models on the hub and adds them: size, licence, whether they fit, and the progress of the download.

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { ModelState, type Model } from "../../generated/allm/models/v1/model_pb";
import { HubFit, ModelService, type HubChoice, type HubRepository } from "../../generated/allm/models/v1/model_service_pb";
import { models } from "../catalog";
import type { Failure } from "../failure";
import { ChoiceField, TextField } from "../fields";
import { ask } from "../grpc_web";
import { amount, bytes } from "../measures";
import { FailureNote } from "../notes";
import { remembered } from "../remembered";
import { add, doing, FORMATS, withoutAdvice } from "./management";
import { downloaded, stateName } from "./states";

const QUICK: Record<HubFit, string> = {
  [HubFit.UNSPECIFIED]: "Fit unknown",
  [HubFit.FITS]: "Fits",
  [HubFit.NEEDS_ROOM]: "Fits when memory is freed",
  [HubFit.TOO_LARGE]: "Too large",
  [HubFit.UNSUPPORTED]: "Not supported",
};
const TONES: Record<HubFit, string> = {
  [HubFit.UNSPECIFIED]: "",
  [HubFit.FITS]: "ready",
  [HubFit.NEEDS_ROOM]: "pending",
  [HubFit.TOO_LARGE]: "failed",
  [HubFit.UNSUPPORTED]: "failed",
};

// The last search, which a reload repeats if it was made.
const form = remembered("hub-search", { query: "", format: "gguf", made: false }, sessionStorage);
const found = signal<{ format: string; repositories: HubRepository[] } | null>(null);
let searches = 0;

/** True if a search was made in this tab. */
export function searched(): boolean {
  return form.value.made;
}

export function HubSearch() {
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState<Failure | null>(null);
  const search = async () => {
    const { query, format: asked } = (form.value = { ...form.value, made: true });
    const mine = ++searches;
    setBusy(true);
    setFailure(null);
    try {
      const { repositories } = await ask(ModelService.method.searchHub, { query: query.trim(), format: asked });
      if (mine === searches) found.value = { format: asked, repositories };
    } catch (error) {
      if (mine === searches) {
        found.value = null;
        setFailure(withoutAdvice(error));
      }
    }
    if (mine === searches) setBusy(false);
  };
  useEffect(() => {
    if (form.peek().made && !found.peek()) void search();
  }, []);
  const count = found.value?.repositories.length ?? 0;
  return (
    <div class="register">
      <form onSubmit={(event) => { event.preventDefault(); void search(); }} class="register" role="search">
        <div class="grid">
          <TextField label="Name" value={form.value.query} onText={(query) => (form.value = { ...form.value, query })} placeholder="such as Qwen3 or whisper"
            hint="Empty: the most downloaded models" problem={failure?.param === "query" ? failure.sentence : null} />
          <ChoiceField label="Kind" value={form.value.format} choices={FORMATS} onText={(format) => (form.value = { ...form.value, format })} />
        </div>
        <div class="row end">
          <span role="status" class="hint">{busy ? "Searching…" : found.value ? `${count} ${count === 1 ? "repository" : "repositories"} found` : ""}</span>
          <button type="submit" class="primary" disabled={busy}>Search</button>
        </div>
      </form>
      {failure && failure.param !== "query" && <FailureNote failure={failure} />}
      {found.value && count === 0 && <p class="hint">No repository matches. Try a shorter name, or another kind.</p>}
      {found.value && count > 0 && (
        <ul class="found">
          {found.value.repositories.map((repository) => <Result key={repository.name} repository={repository} format={found.value!.format} />)}
        </ul>
      )}
    </div>
  );
}

function Result({ repository, format: kind }: { repository: HubRepository; format: string }) {
  const { choices } = repository;
  const [picked, setPicked] = useState("");
  const choice = choices.find((each) => each.source === picked) ?? choices.find((each) => each.recommended) ?? choices[0];
  const added = choice && models.value.find((model) => model.source === choice.source);
  return (
    <li class="result" data-repository={repository.name}>
      <div class="row between">
        <h2>{repository.name}</h2>
        {choice && <span class={`badge ${TONES[choice.fit]}`}>{QUICK[choice.fit]}</span>}
      </div>
      <p class="hint">{about(repository, choice)}</p>
      {repository.gated && <p class="hint">The publisher asks users to accept its terms. The server needs HF_TOKEN of an account that has done so.</p>}
      {choice?.reason && <p class="hint">{sentence(choice.reason)}</p>}
      {!choice && <p class="note">{sentence(repository.reason)}</p>}
      {choice && (
        <div class="row">
          {choices.length > 1 && (
            <label class="inline"><span>Version<span class="hidden"> of {repository.name}</span></span>
              <select value={choice.source} onChange={(event) => setPicked(event.currentTarget.value)}>
                {choices.map((each) => <option key={each.source} value={each.source}>{`${each.label}, ${bytes(each.sizeBytes)}${each.fit > HubFit.NEEDS_ROOM ? `: ${QUICK[each.fit].toLowerCase()}` : ""}`}</option>)}
              </select>
            </label>
          )}
          {added ? <Progress model={added} /> : <Add choice={choice} format={kind} />}
        </div>
      )}
    </li>
  );
}

function Add({ choice, format: kind }: { choice: HubChoice; format: string }) {
  const under = doing.value.get(choice.source);
  const busy = Boolean(under && !under.failure);
  return (
    <>
      {choice.fit !== HubFit.UNSUPPORTED && (
        <button type="button" class={choice.fit === HubFit.TOO_LARGE ? "" : "primary"} disabled={busy} onClick={() => void add(choice.source, kind, choice.id)}>
          Add<span class="hidden"> {choice.id}</span>
        </button>
      )}
      {busy && <span role="status" class="hint">Checking the files…</span>}
      {under?.failure && <FailureNote failure={under.failure} />}
    </>
  );
}

/** The state of a model that is registered already. */
function Progress({ model }: { model: Model }) {
  const share = downloaded(model);
  const percent = share === null ? "" : ` ${Math.floor(share * 100)}%`;
  return (
    <span class="row">
      <span class={`badge ${stateName(model.state)}`}>{stateName(model.state)}</span>
      <span class="hint">Added as {model.id}{model.state === ModelState.DOWNLOADING ? `,${percent} downloaded` : ""}</span>
      {share !== null && model.state === ModelState.DOWNLOADING && <progress aria-label={`Download of ${model.id}`} max={1} value={share} />}
    </span>
  );
}

function about({ downloads, license, task }: HubRepository, choice: HubChoice | undefined): string {
  const parts = [
    choice ? bytes(choice.sizeBytes) : "",
    choice?.memoryBytes ? `about ${bytes(choice.memoryBytes)} in memory` : "",
    license ? `licence: ${license}` : "licence not named",
    task,
    downloads ? `${amount(Number(downloads))} ${downloads === 1n ? "download" : "downloads"} a month` : "",
  ];
  return parts.filter(Boolean).join(" · ");
}

/** A reason, which begins in small letters, as a sentence. */
function sentence(reason: string): string {
  const whole = reason.charAt(0).toUpperCase() + reason.slice(1);
  return /[.!?]$/.test(whole) ? whole : `${whole}.`;
}
