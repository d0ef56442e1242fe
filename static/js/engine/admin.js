/** What an operator may ask of the engine; each call carries the administrator's key, which is kept for this tab alone. */

import { ServerError } from "../transport/errors.js";

export class Admin {
  #fetch;
  key;

  /** @param {{key: string}} key holds the administrator's key @param {typeof fetch} fetch without any key */
  constructor(key, fetch = globalThis.fetch.bind(globalThis)) {
    this.key = key;
    this.#fetch = fetch;
  }

  /**
   * @param {"pause"|"resume"|"reset_prefix_cache"|"abort"} name
   * @throws {ServerError} the server refused
   */
  async call(name, body = {}) {
    const response = await this.#ask(`/admin/${name}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    return response.json();
  }

  /** The last steps of a model's engine for Perfetto. @returns {Promise<Blob>} */
  async trace(model) {
    return (await this.#ask(model === undefined ? "/admin/trace" : `/admin/trace?model=${encodeURIComponent(model)}`)).blob();
  }

  /** @param {string} path of a GET route of operators */
  async read(path) {
    return (await this.#ask(path)).json();
  }

  async #ask(path, options = {}) {
    const headers = { ...options.headers };
    if (/^[!-~]+$/.test(this.key.value)) headers.Authorization = `Bearer ${this.key.value}`;
    const response = await this.#fetch(path, { ...options, headers, cache: "no-store" });
    if (!response.ok) throw await ServerError.fromResponse(response);
    return response;
  }
}
