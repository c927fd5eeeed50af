// Chat with a model.

import { useRef, useState } from "preact/hooks";
import { Modality } from "../../generated/allm/models/v1/model_pb";
import { link } from "../catalog";
import { ModelPicker, picked } from "../model_picker";
import { Empty, Unkept } from "../notes";
import { Composer } from "./composer";
import { ConversationList } from "./conversation_list";
import { addressOf, current, loaded, openId } from "./conversations";
import { change, settings } from "./settings";
import { SettingsPanel } from "./settings_panel";
import { Turns } from "./turns_view";

const NARROW = 900; // pixels: below, everything is in one column

export function ChatView() {
  const model = picked("chat", Modality.TEXT, settings.value.model);
  const conversation = current.value;
  return (
    <div class="split">
      <aside aria-label="Model and conversations">
        <ModelPicker capability="chat" modality={Modality.TEXT} value={settings.value.model} onPick={(id) => change({ model: id })} />
        <details class="panel">
          <summary>Settings</summary>
          <SettingsPanel />
        </details>
        <Unkept />
        <Conversations />
      </aside>
      <section class="talk" aria-label="Conversation">
        <h1 class="hidden">{conversation?.title ?? "Chat"}</h1>
        {conversation ? <Turns key={conversation.id} conversation={conversation} model={model?.id ?? ""} /> : <Beginning model={model?.id ?? ""} />}
        <Composer conversation={conversation} model={model} />
      </section>
    </div>
  );
}

/** The list: on a phone folded away, again as soon as a conversation is chosen. */
function Conversations() {
  const [open, setOpen] = useState(innerWidth > NARROW);
  const summary = useRef<HTMLElement>(null);
  const onClick = ({ currentTarget, target }: MouseEvent) => {
    if (innerWidth > NARROW || !(target as Element).closest("a")) return;
    setOpen(false);
    if ((currentTarget as Element).contains(document.activeElement)) summary.current?.focus(); // the link goes
  };
  return (
    <details class="panel" open={open} onToggle={(event) => setOpen(event.currentTarget.open)} onClick={onClick}>
      <summary ref={summary}>Conversations</summary>
      <ConversationList />
    </details>
  );
}

function Beginning({ model }: { model: string }) {
  if (openId.value && !loaded.value) return <Empty title="Loading the conversation…"><p /></Empty>;
  if (openId.value) {
    return (
      <Empty title="This conversation is not in this browser">
        <p>It was deleted, or belongs to another browser. <a href={addressOf()}>Begin a new conversation</a>.</p>
      </Empty>
    );
  }
  if (model) return <Empty title={`Chat with ${model}`}><p>Type a message below. Answers are streamed, and you can stop them at any time.</p></Empty>;
  if (link.value.state === "connecting") return <Empty title="Loading models…"><p /></Empty>;
  return (
    <Empty title="No chat model is ready">
      <p>Register one under <a href="#/models">Models</a>, or wait until one is ready. It then appears here automatically.</p>
    </Empty>
  );
}
