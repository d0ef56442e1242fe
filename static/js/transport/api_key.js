/** The reader's key for a server that wants one: kept for this tab alone, and sent with every request. */

const PROTOCOL = "eagre";
const KEY_PROTOCOL = "eagre-api-key."; // a WebSocket in a browser can send a key only as a subprotocol

export class ApiKey {
  #storage;
  #storedAs;
  #value = "";

  /**
   * @param {() => Storage} storage a session's storage; calling it may throw where it is blocked
   * @param {string} storedAs its name there
   */
  constructor(storage, storedAs = "eagre.api-key") {
    this.#storage = storage;
    this.#storedAs = storedAs;
    try {
      this.#value = storage().getItem(storedAs) ?? "";
    } catch {
      // Without a storage, the key lasts as long as the page.
    }
  }

  get value() {
    return this.#value;
  }

  set value(text) {
    this.#value = text.trim();
    try {
      if (this.#value === "") this.#storage().removeItem(this.#storedAs);
      else this.#storage().setItem(this.#storedAs, this.#value);
    } catch {
      // As above.
    }
  }

  /** The subprotocols of a WebSocket, which can carry only keys made of the characters of a token (RFC 9110, 5.6.2). */
  get protocols() {
    return /^[!#-'*+.0-9A-Z^_`a-z|~-]+$/.test(this.#value) ? [PROTOCOL, KEY_PROTOCOL + this.#value] : [];
  }

  /**
   * `fetch` with the key.
   *
   * @param {typeof fetch} fetch
   * @returns {typeof fetch}
   */
  over(fetch) {
    return (url, options = {}) => {
      if (!/^[!-~]+$/.test(this.#value)) return fetch(url, options);
      return fetch(url, { ...options, headers: { ...options.headers, Authorization: `Bearer ${this.#value}` } });
    };
  }
}
