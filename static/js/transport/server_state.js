/**
 * Watches the server: "connecting" before the first answer, "loading" while the model loads, "ready",
 * "locked" when it is ready for a key that this page does not have, "unwell" when it answers but takes no requests,
 * and "lost" when it does not answer.
 * Asks often while something is awaited, rarely once ready.
 */

const SOON = 1000; // milliseconds
const LATER = 5000;

export class ServerState {
  name = "connecting";
  detail = ""; // the server's own word on why it is not ready
  #entries = []; // of /v1/models
  #wanted; // names of models, the first one before the others
  #fetch;
  #onChange;
  #setTimer;
  #clearTimer;
  #timer = null;
  #asking = null;
  #wasReady = false;
  #isLocked = false;
  #hasKey;

  /**
   * @param {(state: ServerState) => void} onChange
   * @param {{wanted?: string[], told?: {data: object[]}|null, hasKey?: () => boolean}} options `wanted` are names of models,
   *   see `choose`, `told` is what came with the page of a server that was ready
   */
  constructor(onChange, {
    wanted = [],
    told = null,
    hasKey = () => false,
    fetch = globalThis.fetch.bind(globalThis),
    setTimer = globalThis.setTimeout.bind(globalThis),
    clearTimer = globalThis.clearTimeout.bind(globalThis),
  } = {}) {
    this.#onChange = onChange;
    this.#wanted = wanted;
    this.#hasKey = hasKey;
    this.#fetch = fetch;
    this.#setTimer = setTimer;
    this.#clearTimer = clearTimer;
    if (told === null) return;
    this.#entries = told.data;
    this.#wasReady = true;
    this.name = "ready";
  }

  /** Asks from now on: at once, or later where the page has brought the answer. */
  start() {
    if (this.name === "connecting") this.check();
    else this.#askLater();
  }

  /** The entry of the chosen model, or of the first one where the server does not have it; null before it has told. */
  get model() {
    return this.first(this.#wanted);
  }

  /** The entry of the first of these models that the server has, or of its own first one; null before it has told. */
  first(names) {
    const found = names.map((name) => this.#entries.find(({ id }) => id === name)).find((entry) => entry !== undefined);
    return found ?? this.#entries[0] ?? null;
  }

  /** What the server tells of each model. */
  get entries() {
    return this.#entries;
  }

  /** Whether the server knows no key like the one that this page has. */
  get isRefused() {
    return this.name === "locked" && this.#hasKey();
  }

  /** The names of all models. */
  get models() {
    return this.#entries.filter(({ task }) => task === undefined).map(({ id }) => id); // others do not generate
  }

  /** Chooses the first of these models that the server has. @param {string[]} names */
  choose(names) {
    if (names.join("\n") === this.#wanted.join("\n")) return;
    this.#wanted = names;
    this.#onChange(this);
  }

  /** Asks now, and goes on asking. Two calls at once share one question. */
  check() {
    this.#asking ??= this.#ask().finally(() => {
      this.#asking = null;
      this.#askLater();
    });
    return this.#asking;
  }

  #askLater() {
    this.#clearTimer(this.#timer);
    const isAwaited = this.model?.state === "loading" || (this.name !== "ready" && this.name !== "locked");
    this.#timer = this.#setTimer(() => this.check(), isAwaited ? SOON : LATER);
  }

  /** What was learned with an old key no longer holds. */
  forget() {
    this.#entries = [];
    this.#isLocked = false;
    this.#become("connecting", "");
  }

  async #ask() {
    let response;
    // A page that opens asks for both at once, to be ready a round trip earlier.
    const early = this.name === "connecting" ? this.#fetchModels() : null;
    early?.catch(() => {});
    try {
      response = await this.#fetch("/readiness", { cache: "no-store" });
      // A server that was away may have come back with another model; models come into memory, pause and go.
      if (response.ok) {
        let models = await (early ?? this.#fetchModels());
        // It has become ready meanwhile, or the browser has asked ahead, without the key.
        const isStale = models.status === 503 || (models.status === 401 && this.#hasKey());
        if (early !== null && isStale) models = await this.#fetchModels();
        await this.#readEntries(models);
      }
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

  #fetchModels() {
    return this.#fetch("/v1/models", { cache: "no-store" });
  }

  async #readEntries(response) {
    this.#isLocked = response.status === 401;
    const entries = response.ok ? ((await response.json()).data ?? []) : [];
    const isChanged = JSON.stringify(entries) !== JSON.stringify(this.#entries);
    this.#entries = entries;
    if (isChanged && this.name === "ready") this.#onChange(this);
  }

  #become(name, detail) {
    if (name === this.name && detail === this.detail) return;
    this.name = name;
    this.detail = detail;
    this.#onChange(this);
  }
}

/** Whether a model sees pictures; of one that has never been loaded, the server does not know yet. */
export function seesPictures(model) {
  return model?.modalities?.includes("image") ?? true;
}

/** The memory that a model takes, as it is read; empty where that is not known. */
export function memoryOf({ weight_bytes: weights, cache_bytes: cache = 0 }) {
  return Number.isFinite(weights) ? bytes(weights + cache) : "";
}

/** A size as it is read; empty where it is not known. */
export function bytes(count) {
  if (count === null || count === undefined) return "";
  return count >= 1e9 ? `${(count / 1e9).toFixed(1)} GB` : `${Math.round(count / 1e6)} MB`;
}

async function bodyOf(response) {
  try {
    return await response.json();
  } catch {
    return {}; // a proxy's page
  }
}
