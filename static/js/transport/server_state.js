/**
 * Watches the server: "connecting" before the first answer, "loading" while the model loads, "ready",
 * "locked" when it is ready for a key that this page does not have, "unwell" when it answers but takes no requests,
 * and "lost" when it does not answer.
 * Asks often while something is awaited, rarely once ready.
 */

const SOON = 1000; // milliseconds
const LATER = 10_000;

export class ServerState {
  name = "connecting";
  detail = ""; // the server's own word on why it is not ready
  model = null; // the first entry of /v1/models
  models = []; // the names of all
  #fetch;
  #onChange;
  #setTimer;
  #clearTimer;
  #timer = null;
  #asking = null;
  #wasReady = false;
  #isLocked = false;

  /** @param {(state: ServerState) => void} onChange */
  constructor(onChange, {
    fetch = globalThis.fetch.bind(globalThis),
    setTimer = globalThis.setTimeout.bind(globalThis),
    clearTimer = globalThis.clearTimeout.bind(globalThis),
  } = {}) {
    this.#onChange = onChange;
    this.#fetch = fetch;
    this.#setTimer = setTimer;
    this.#clearTimer = clearTimer;
  }

  /** Asks now, and goes on asking. Two calls at once share one question. */
  check() {
    this.#asking ??= this.#ask().finally(() => {
      this.#asking = null;
      this.#clearTimer(this.#timer);
      this.#timer = this.#setTimer(() => this.check(), this.name === "ready" || this.name === "locked" ? LATER : SOON);
    });
    return this.#asking;
  }

  /** What was learned with an old key no longer holds. */
  forget() {
    this.model = null;
    this.#isLocked = false;
    this.#become("connecting", "");
  }

  async #ask() {
    let response;
    try {
      response = await this.#fetch("/readiness", { cache: "no-store" });
      // A server that was away may have come back with another model.
      if (response.ok && this.name !== "ready") this.model = await this.#readModel();
    } catch {
      // A page that never saw the server ready takes a refusal for a server that is still starting.
      this.#become(this.#wasReady ? "lost" : "loading", "");
      return;
    }
    if (response.ok) {
      this.#wasReady = true;
      this.#become(this.#isLocked ? "locked" : "ready", "");
    } else {
      const { status, detail = "" } = await bodyOf(response);
      this.#become(status === "loading" ? "loading" : "unwell", detail);
    }
  }

  async #readModel() {
    const response = await this.#fetch("/v1/models", { cache: "no-store" });
    this.#isLocked = response.status === 401;
    if (!response.ok) return null;
    const { data = [] } = await response.json();
    this.models = data.map(({ id }) => id);
    return data[0] ?? null;
  }

  #become(name, detail) {
    if (name === this.name && detail === this.detail) return;
    this.name = name;
    this.detail = detail;
    this.#onChange(this);
  }
}

async function bodyOf(response) {
  try {
    return await response.json();
  } catch {
    return {}; // a proxy's page
  }
}
