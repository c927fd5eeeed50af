// What this browser keeps over a reload: an IndexedDB per server address. Nothing of it is sent anywhere.

import { signal } from "@preact/signals";
import { openDB, type IDBPDatabase, type IDBPObjectStore } from "idb";

const NAME = "allm";
const VERSION = 1;
const STORES = ["conversations", "pictures", "presets", "drafts"] as const;
const OLDEST_FIRST = "at";

export type StoreName = (typeof STORES)[number];

/** What a store needs to know of its records. */
export interface Kept {
  id: string;
  /** The last change, in milliseconds since 1970. */
  at: number;
}

/** One store; all methods raise a DOMException if the browser refuses, and set `unkept`. */
export interface Store<T extends Kept> {
  /** All records, the oldest change first. */
  all: () => Promise<T[]>;
  get: (id: string) => Promise<T | undefined>;
  put: (value: T) => Promise<void>;
  remove: (id: string) => Promise<void>;
  clear: () => Promise<void>;
  /** Calls back when another tab has changed a record, or all of them (null). */
  onChange: (changed: (id: string | null) => void) => void;
}

/** Why this browser does not keep what it should, as a sentence; null while it does. */
export const unkept = signal<string | null>(null);

type Writable = IDBPObjectStore<unknown, [StoreName], StoreName, "readwrite">;

let opening: Promise<IDBPDatabase> | null = null;

/** The store of that name, with records of the type `T`. */
export function store<T extends Kept>(name: StoreName): Store<T> {
  const tabs = new BroadcastChannel(`${NAME}.${name}`);
  const change = async (id: string | null, write: (records: Writable) => Promise<unknown>) => {
    await use(async (database) => {
      const writing = database.transaction(name, "readwrite");
      write(writing.store).catch(() => undefined); // `done` fails as well
      writing.commit(); // without it, a page that closes now would lose the change
      await writing.done;
    });
    unkept.value = null;
    tabs.postMessage(id);
  };
  return {
    all: () => use((database) => database.getAllFromIndex(name, OLDEST_FIRST)),
    get: (id) => use((database) => database.get(name, id)),
    put: (value) => change(value.id, (records) => records.put(value)),
    remove: (id) => change(id, (records) => records.delete(id)),
    clear: () => change(null, (records) => records.clear()),
    onChange: (changed) => tabs.addEventListener("message", ({ data }) => changed(data)),
  };
}

/** A new random id, also on pages without HTTPS, where browsers have no `crypto.randomUUID`. */
export function newId(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function use<T>(work: (database: IDBPDatabase) => Promise<T>): Promise<T> {
  try {
    return await work(await (opening ??= open()));
  } catch (error) {
    unkept.value = error instanceof DOMException && error.name === "QuotaExceededError"
      ? "This browser's storage is full: the last change is lost on reload. Delete conversations or pictures."
      : `This browser stores nothing for this page, so all is lost on reload: ${error instanceof Error ? error.message : error}`;
    throw error;
  }
}

function open(): Promise<IDBPDatabase> {
  const forget = () => (opening = null);
  const opened = openDB(NAME, VERSION, {
    upgrade: (database) => {
      for (const name of STORES) database.createObjectStore(name, { keyPath: "id" }).createIndex(OLDEST_FIRST, OLDEST_FIRST);
    },
    // A newer version of this page in another tab wants to change the stores.
    blocking: (_old, _new, event) => {
      (event.target as IDBDatabase).close();
      forget();
    },
    terminated: forget,
  });
  opened.catch(forget);
  return opened;
}
