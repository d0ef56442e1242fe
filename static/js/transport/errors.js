/** What can go wrong between the playground and the server, in words a reader understands. */

import { words } from "../words/words.js";

/** The server answered with an error; `message` is the server's own sentence. */
export class ServerError extends Error {
  /** @param {{message?: string, type?: string, param?: string|null, code?: string|number|null}} body */
  constructor(body, status = 0) {
    super(body?.message || words.transport.error(status));
    this.name = "ServerError";
    this.status = status;
    this.type = body?.type ?? null;
    this.param = body?.param ?? null;
    this.code = body?.code ?? null;
  }

  /** Reads an error response; a body that is not the expected JSON still gives a usable sentence. */
  static async fromResponse(response) {
    let body = null;
    try {
      body = (await response.json()).error;
      if (typeof body === "string") body = { message: body }; // of Ollama's routes
    } catch (error) {
      if (error?.name === "AbortError") throw error;
      // The status alone has to tell: the body is a proxy's page, or was cut.
    }
    return new ServerError(body, response.status);
  }
}

/** The server could not be reached, or the connection ended before the answer did. */
export class ConnectionLost extends Error {
  constructor(message = words.transport.lost) {
    super(message);
    this.name = "ConnectionLost";
  }
}

/** Whether an exception is only the echo of the reader's own wish to stop. */
export function isAbort(error, signal) {
  return error?.name === "AbortError" || signal?.aborted === true;
}
