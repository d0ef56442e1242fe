/** Where the reader is: the fragment of the address, which a browser never sends to a server. Back and Forward change it. */

const ADDRESS = /^#\/([a-z-]+)(?:\/([\w-]{1,64}))?$/;

/** @returns {{view: "chat"|"tokens"|"engine", id?: string, kind?: "chat"|"completion", part?: "models"}} a chat without an id is a new one */
export function routeOf(hash) {
  if (hash.startsWith("#setup=")) return { view: "tokens" };
  const [, name, id] = ADDRESS.exec(hash) ?? [];
  if (name === "c" && id !== undefined) return { view: "chat", id };
  if (name === "compare") return { view: "tokens" };
  if (name === "engine") return { view: "engine" };
  if (name === "models") return { view: "engine", part: "models" };
  return { view: "chat", kind: name === "completion" ? "completion" : "chat" };
}

export const addressOf = (id) => `#/c/${id}`;
export const NEW = { chat: "#/new", completion: "#/completion" };

export class Router {
  #onRoute;

  /** @param {(route: object) => void} onRoute */
  constructor(onRoute) {
    this.#onRoute = onRoute;
    globalThis.addEventListener("hashchange", () => this.follow());
  }

  /** Goes where the address says. */
  follow() {
    this.#onRoute(routeOf(location.hash));
  }

  /** Another place, which Back leaves again. */
  go(hash) {
    if (location.hash === hash) this.follow();
    else location.hash = hash;
  }

  /** The same place under another address: a new conversation is kept from now on. */
  rename(hash) {
    history.replaceState(null, "", hash);
  }
}
