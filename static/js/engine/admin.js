/** What an operator may ask of the engine; each call carries the administrator's key, which is kept for this tab alone. */

import { ConnectionLost, ServerError } from "../transport/errors.js";

export class Admin {
  #fetch;
  key;

  /** @param {{key: string}} key holds the administrator's key @param {typeof fetch} fetch without any key */
  constructor(key, fetch = globalThis.fetch.bind(globalThis)) {
    this.key = key;
    this.#fetch = fetch;
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

  async #ask(path, options = {}) {
    const headers = { ...options.headers };
    if (/^[!-~]+$/.test(this.key.value)) headers.Authorization = `Bearer ${this.key.value}`;
    const response = await this.#fetch(path, { ...options, headers, cache: "no-store" });
    if (!response.ok) throw await ServerError.fromResponse(response);
    return response;
  }
}
