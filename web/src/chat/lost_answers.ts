// Answers of other tabs. A tab can die without a word, so the others ask whether it still receives its answers.

import { computed, effect } from "@preact/signals";
import { conversations, putTurn, reread } from "./conversations";
import { stopped } from "./tree";

const ASK_MS = 3000; // also the time to reply: a living tab replies within milliseconds

interface Message {
  ask?: string;
  here?: string;
}

/** Ends the answers that no tab receives any more. `isHere`: true for the id of an answer that this tab receives. */
export function endLostAnswers(isHere: (id: string) => boolean): void {
  const tabs = new BroadcastChannel("allm.answers");
  const post = (message: Message) => tabs.postMessage(message);
  const elsewhere = computed(() => [...conversations.value.values()].flatMap(({ id, turns }) =>
    turns.flatMap((turn) => (turn.role === "assistant" && turn.state === "running" && !isHere(turn.id) ? [{ conversation: id, answer: turn.id }] : []))));
  const silent = new Set<string>();
  const check = () => {
    for (const { conversation, answer } of elsewhere.peek()) if (silent.has(answer)) void end(conversation, answer);
    silent.clear();
    for (const { answer } of elsewhere.peek()) {
      silent.add(answer);
      post({ ask: answer });
    }
  };
  tabs.addEventListener("message", ({ data: { ask, here } }: MessageEvent<Message>) => {
    if (here) silent.delete(here);
    if (ask && isHere(ask)) post({ here: ask });
  });
  let timer = 0;
  effect(() => {
    if (elsewhere.value.length && !timer) {
      check();
      timer = window.setInterval(check, ASK_MS);
    } else if (!elsewhere.value.length) {
      clearInterval(timer);
      timer = 0;
      silent.clear();
    }
  });
}

/** Ends an answer with the text that its tab has stored. */
async function end(conversation: string, answer: string): Promise<void> {
  await reread(conversation);
  const turn = conversations.peek().get(conversation)?.turns.find(({ id }) => id === answer);
  if (turn?.role === "assistant" && turn.state === "running") putTurn(conversation, stopped(turn));
}
