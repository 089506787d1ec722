/** Conversations in this browser: in IndexedDB, or, where that is refused, in memory. */

const NAME = "tokentrail";
const STORE = "conversations";

/** @type {Promise<IDBDatabase | null> | null} */
let opening = null;
/** @type {Map<string, any>} */
const inMemory = new Map();

function database() {
  opening ??= new Promise((resolve) => {
    let request;
    try {
      request = indexedDB.open(NAME, 1);
    } catch {
      resolve(null);
      return;
    }
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = request.onblocked = () => resolve(null);
  });
  return opening;
}

/**
 * @template T
 * @param {IDBTransactionMode} mode @param {(store: IDBObjectStore) => IDBRequest<T>} ask
 * @returns {Promise<T | undefined>} undefined: there is no database
 */
async function within(mode, ask) {
  const opened = await database();
  if (opened === null) return undefined;
  return new Promise((resolve, reject) => {
    const request = ask(opened.transaction(STORE, mode).objectStore(STORE));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** @returns {Promise<any[]>} */
export async function allKept() {
  return (await within("readonly", (store) => store.getAll())) ?? [...inMemory.values()];
}

/** @param {any} conversation */
export async function keepConversation(conversation) {
  inMemory.set(conversation.id, conversation);
  try {
    await within("readwrite", (store) => store.put(conversation));
  } catch {
    // No room: it lasts as long as the page.
  }
}

/** @param {string} id */
export async function forgetConversation(id) {
  inMemory.delete(id);
  await within("readwrite", (store) => store.delete(id));
}
