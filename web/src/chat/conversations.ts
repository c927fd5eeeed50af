// The conversations of this browser: the list, the one that is open, and their way into the database.

import { computed, effect, signal } from "@preact/signals";
import { newId, store } from "../database";
import { settings } from "./settings";
import { withTurn, type Conversation, type Turn } from "./tree";

const VIEW = "#/chat";
const kept = store<Conversation>("conversations");

/** All conversations, by id. */
export const conversations = signal<ReadonlyMap<string, Conversation>>(new Map());
/** False until they are read. */
export const loaded = signal(false);
/** The id of the open conversation; null for one without messages. */
export const openId = signal<string | null>(null);
export const current = computed(() => conversations.value.get(openId.value ?? "") ?? null);

/** The address of a conversation; without an id, of a new one. */
export function addressOf(id?: string): string {
  return `${VIEW}/${id ?? "new"}`;
}

/** Adds a conversation that begins with this turn, and opens it. */
export function begin(title: string, turn: Turn): string {
  const id = newId();
  const empty: Conversation = { id, title, at: Date.now(), turns: [], leaf: null, settings: settings.peek() };
  put(withTurn(empty, turn));
  openId.value = id;
  history.pushState(null, "", addressOf(id));
  return id;
}

/** Adds a conversation, or changes it. */
export function put(conversation: Conversation): void {
  conversations.value = new Map(conversations.peek()).set(conversation.id, conversation);
  save(conversation.id);
}

/** Changes a conversation, unless it has been deleted. */
export function change(id: string, changed: (before: Conversation) => Conversation): void {
  const before = conversations.peek().get(id);
  if (before) put(changed(before));
}

/** Replaces a turn of a conversation. */
export function putTurn(id: string, turn: Turn): void {
  change(id, (before) => ({ ...before, turns: before.turns.map((each) => (each.id === turn.id ? turn : each)) }));
}

/** Saves a conversation at once, on a page that closes. */
export function saveNow(id: string): void {
  const conversation = conversations.peek().get(id);
  if (conversation) void kept.put(conversation).catch(() => undefined);
}

/** Deletes a conversation. */
export function remove(id: string): void {
  forget(id);
  save(id);
}

function forget(id: string): void {
  const rest = new Map(conversations.peek());
  rest.delete(id);
  conversations.value = rest;
  if (openId.peek() !== id) return;
  openId.value = null;
  if (location.hash.startsWith(VIEW)) history.replaceState(null, "", addressOf());
}

// One write at a time, always of the last state: answers change faster than a disk can write.
const unsaved = new Set<string>();
let saving = false;

async function save(id: string): Promise<void> {
  unsaved.add(id);
  if (saving) return;
  saving = true;
  for (const next of unsaved) {
    unsaved.delete(next);
    const conversation = conversations.peek().get(next);
    // The database says why it refused.
    await (conversation ? kept.put(conversation) : kept.remove(next)).catch(() => undefined);
  }
  saving = false;
}

async function load(): Promise<void> {
  const all = await kept.all().catch(() => []);
  // What was begun in the meantime stays.
  conversations.value = new Map([...all.map((each) => [each.id, each] as const), ...conversations.peek()]);
  loaded.value = true;
}

/** Takes over a conversation as another tab has stored it. */
export async function reread(id: string): Promise<void> {
  const changed = await kept.get(id).catch(() => undefined);
  if (changed) conversations.value = new Map(conversations.peek()).set(id, changed);
  else forget(id);
}

/** Takes over what another tab has changed; `busy` has the conversations that this tab is changing itself. */
export function followTabs(busy: (id: string) => boolean): void {
  kept.onChange((id) => {
    if (id === null) void load();
    else if (!busy(id)) void reread(id);
  });
}

function followAddress(): void {
  const [, view, id] = location.hash.split("/");
  if (view === "chat" && id) openId.value = id === "new" ? null : id;
  else if (view === "chat" && openId.peek()) history.replaceState(null, "", addressOf(openId.peek()!));
}

addEventListener("hashchange", followAddress);
followAddress();
void load();

// Each conversation has its settings: they come with it, and change with it. A new one begins with those on the page.
effect(() => {
  if (!loaded.value || !openId.value) return;
  const opened = conversations.peek().get(openId.value);
  if (opened) settings.value = opened.settings;
});
effect(() => {
  const now = settings.value;
  const opened = conversations.peek().get(openId.peek() ?? "");
  if (loaded.peek() && opened && opened.settings !== now) put({ ...opened, settings: now });
});
