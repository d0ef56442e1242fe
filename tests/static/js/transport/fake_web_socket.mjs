/** A WebSocket whose other end is the test. */
export class FakeWebSocket {
  static CLOSED = 3;
  readyState = 0;
  sent = [];
  onopen = null;
  onmessage = null;
  onclose = null;

  constructor(url) {
    this.url = url;
  }

  send(data) {
    if (this.readyState !== 1) throw new Error("not open");
    this.sent.push(JSON.parse(data));
  }

  close() {
    this.readyState = FakeWebSocket.CLOSED;
  }

  open() {
    this.readyState = 1;
    this.onopen?.({});
  }

  receive(message) {
    this.onmessage?.({ data: JSON.stringify(message) });
  }

  die({ code, reason }) {
    this.readyState = FakeWebSocket.CLOSED;
    this.onclose?.({ code, reason });
  }
}

/** A class to give to the client, and the sockets that it has made of it. */
export function fakeSockets() {
  const made = [];
  class Class extends FakeWebSocket {
    constructor(url) {
      super(url);
      made.push(this);
    }
  }
  return { Class, made };
}
