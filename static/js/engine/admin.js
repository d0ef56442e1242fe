/** What an operator may ask of the engine; each call carries the administrator's key, which is kept for this tab alone. */

import { ConnectionLost, ServerError } from "../transport/errors.js";
import { words } from "../words/words.js";

const TRIAL = 10_000; // milliseconds in which a key must have been tried: other calls wait for it

export class Admin {
  #fetch;
  #taking = Promise.resolve(""); // of the key that was entered last
  key;

  /** @param {{key: string}} key holds the administrator's key @param {typeof fetch} fetch without any key */
  constructor(key, fetch = globalThis.fetch.bind(globalThis)) {
    this.key = key;
    this.#fetch = fetch;
  }

  /**
   * Takes a key, unless the server refuses it: then there is none. One that could not be tried may be right. What is
   * asked for meanwhile waits for it.
   *
   * @returns {Promise<string>} what is wrong with the key, or an empty text
   */
  takeKey(text) {
    const taking = this.#try(text).then(({ problem, isRefused }) => {
      if (taking === this.#taking) this.key.value = isRefused ? "" : text; // none was entered meanwhile
      return problem;
    });
    this.#taking = taking;
    return taking;
  }

  /**
   * @param {"pause"|"resume"|"sleep"|"wake"|"models"|"reset_prefix_cache"|"abort"} name
   * @throws {ServerError} the server refused
   */
  async call(name, body = {}) {
    return (await this.#send("POST", `/admin/${name}`, body)).json();
  }

  /**
   * Fetches a model into the server's cache.
   *
   * @param {(progress: {stage: string, completed: number, total: number}) => void} onProgress
   * @throws {ServerError} it cannot be fetched @throws {ConnectionLost} the server was lost, and goes on with it
   */
  async pull(model, onProgress) {
    const response = await this.#send("POST", "/api/pull", { model });
    let isDone = false;
    const read = (line) => {
      const { status: stage, completed = 0, total = 0, error } = JSON.parse(line);
      if (error !== undefined) throw new ServerError({ message: error });
      isDone = stage === "success";
      if (!isDone) onProgress({ stage, completed, total });
    };
    let rest = "";
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let piece; !(piece = await reader.read().catch(() => ({ done: true }))).done; ) {
      const lines = (rest + piece.value).split("\n");
      rest = lines.pop();
      lines.filter((line) => line !== "").forEach(read);
    }
    if (rest !== "") read(rest);
    if (!isDone) throw new ConnectionLost();
  }

  /** Deletes a fetched model. @throws {ServerError} it is served, or not there */
  async remove(model) {
    await this.#send("DELETE", "/api/delete", { model });
  }

  /** The last steps of a model's engine for Perfetto. @returns {Promise<Blob>} */
  async trace(model) {
    return (await this.#ask(model === undefined ? "/admin/trace" : `/admin/trace?model=${encodeURIComponent(model)}`)).blob();
  }

  /** @param {string} path of a GET route of operators */
  async read(path) {
    return (await this.#ask(path)).json();
  }

  #send(method, path, body) {
    return this.#ask(path, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  }

  async #try(text) {
    if (text === "") return { problem: "", isRefused: false };
    try {
      await this.#request("/admin/usage", { signal: AbortSignal.timeout(TRIAL) }, text);
      return { problem: "", isRefused: false };
    } catch (error) {
      if (error.status === 401 || error.status === 403) return { problem: words.engine.keyRefused, isRefused: true };
      if (error.status === 404) return { problem: words.engine.noAdminKey, isRefused: true };
      const reason = error instanceof ServerError ? error.message : words.transport.unreachable;
      return { problem: words.engine.keyUntried(reason), isRefused: false };
    }
  }

  async #ask(path, options = {}) {
    await this.#taking;
    return this.#request(path, options, this.key.value);
  }

  async #request(path, options, key) {
    const headers = { ...options.headers };
    if (/^[!-~]+$/.test(key)) headers.Authorization = `Bearer ${key}`;
    const response = await this.#fetch(path, { ...options, headers, cache: "no-store" });
    if (!response.ok) throw await ServerError.fromResponse(response);
    return response;
  }
}
