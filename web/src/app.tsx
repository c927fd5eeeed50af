// The frame around all views: navigation, connection state, key and theme.

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { ComponentChild } from "preact";
import { AudioView } from "./audio/audio_view";
import { link } from "./catalog";
import { ChatView } from "./chat/chat_view";
import { ImageView } from "./image/image_view";
import { key, keyWanted, useKey } from "./key";
import { KeyDialog } from "./key_dialog";
import { MachineView } from "./models/machine_view";
import { ModelsView } from "./models/models_view";
import { Empty } from "./notes";
import { nextTheme, theme } from "./theme";

const VIEWS: Record<string, { name: string; view: () => ComponentChild }> = {
  chat: { name: "Chat", view: () => <ChatView /> },
  audio: { name: "Audio", view: () => <AudioView /> },
  image: { name: "Image", view: () => <ImageView /> },
  models: { name: "Models", view: () => <ModelsView /> },
  machine: { name: "Machine", view: () => <MachineView /> },
};

const place = signal(here());
addEventListener("hashchange", () => (place.value = here()));

function here(): string {
  const asked = location.hash.split("/")[1] ?? ""; // the view reads what follows
  return asked in VIEWS ? asked : "chat";
}

/** The whole page. */
export function App() {
  const { name, view } = VIEWS[place.value]!;
  const locked = keyWanted.value !== null || link.value.state === "waiting-for-key";
  const first = useRef(true);
  const main = useRef<HTMLElement>(null);
  useEffect(() => {
    document.title = `${name} · allm`;
    if (!first.current) main.current?.focus();
    first.current = false;
  }, [name]);
  return (
    <>
      <header>
        <a class="skip" href={`#/${place.value}`} onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to content</a>
        <div class="top">
          <span class="brand">allm</span>
          <nav aria-label="Views" hidden={locked}>
            {Object.entries(VIEWS).map(([id, each]) => (
              <a key={id} href={`#/${id}`} aria-current={id === place.value ? "page" : undefined}>{each.name}</a>
            ))}
          </nav>
          <div class="tools">
            <LinkState />
            {key.value && !locked && <button type="button" class="quiet" onClick={() => useKey("")}>Remove API key</button>}
            <button type="button" class="quiet" onClick={nextTheme} ><span class="hidden">Theme: </span>{THEME_SIGNS[theme.value]}</button>
          </div>
        </div>
        <Away />
      </header>
      <main ref={main} tabIndex={-1} aria-label={name}>
        {/* Hidden, not removed: unfinished input must survive. */}
        <div hidden={locked}>{view()}</div>
        {locked && keyWanted.value === null && <KeyMissing />}
        <KeyDialog />
      </main>
    </>
  );
}

/** The page after the user has closed the dialog without a key, and while a new key is checked. */
function KeyMissing() {
  return (
    <>
      <h1 class="hidden">API key</h1>
      <Empty title="No valid API key">
        <p>This server requires an API key, and the page shows nothing without one.</p>
        <button type="button" class="primary" onClick={() => (keyWanted.value = "Enter a key to continue.")}>Enter API key</button>
      </Empty>
    </>
  );
}

const THEME_SIGNS = { system: "Auto", light: "Light", dark: "Dark" };
const LINK_WORDS = { connecting: "Connecting", up: "Connected", "waiting-for-key": "Key required", away: "Reconnecting" };

function LinkState() {
  return (
    <span class={`link ${link.value.state}`} role="status">
      <span class="dot" aria-hidden="true" /><span class="word">{LINK_WORDS[link.value.state]}</span>
    </span>
  );
}

function Away() {
  if (link.value.state !== "away") return null;
  return (
    <p class="banner" role="alert">
      {link.value.why} The page reconnects automatically. Until then it shows the last known data.
    </p>
  );
}
