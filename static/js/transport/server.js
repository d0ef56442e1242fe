/** One server that answers may come from: this page's own, or another whose pages may ask it. */

import { ApiKey } from "./api_key.js";
import { ResponsesTransport } from "./responses_transport.js";
import { StreamSocket } from "./stream_socket.js";
import { SocketTransport, SseTransport } from "./transport.js";

export class Server {
  origin;
  key;
  fetch; // with the key, of paths of this server
  transports;
  #socket;

  /** @param {string} origin @param {() => Storage} storage of the tab @param {string} storedAs the name of its key there */
  constructor(origin, storage, storedAs = `eagre.api-key ${origin}`) {
    this.origin = origin;
    this.key = new ApiKey(storage, storedAs);
    this.fetch = this.key.over((path, options) => globalThis.fetch(new URL(origin + path), options));
    const protocols = () => this.key.protocols;
    const socketUrl = (path) => new URL(origin + path).href.replace(/^http/, "ws");
    this.#socket = new StreamSocket({ url: socketUrl("/v1/stream"), protocols });
    this.transports = {
      sse: new SseTransport({ fetch: this.fetch }),
      websocket: new SocketTransport(this.#socket),
      responses: new ResponsesTransport({ url: socketUrl("/v1/responses"), protocols }),
    };
    for (const [name, transport] of Object.entries(this.transports)) transport.name = name;
  }

  /** What was opened with an old key is closed. */
  changeKey(value) {
    this.key.value = value;
    this.#socket.close();
  }
}
