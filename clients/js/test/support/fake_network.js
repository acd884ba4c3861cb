/** WebSockets whose other end is the test. */

/** Values put by one side, awaited by the other, in order. */
class Mailbox {
  #values = [];
  #waiting = [];

  put(value) {
    const taker = this.#waiting.shift();
    if (taker) taker(value);
    else this.#values.push(value);
  }

  take() {
    if (this.#values.length > 0) return Promise.resolve(this.#values.shift());
    return new Promise((resolve) => this.#waiting.push(resolve));
  }
}

export class FakeNetwork {
  #sockets = new Mailbox();
  count = 0;

  /** For the option `WebSocket`. */
  get WebSocket() {
    const network = this;
    return class extends FakeSocket {
      constructor(url, protocols) {
        super(url, protocols);
        network.count += 1;
        network.#sockets.put(this);
      }
    };
  }

  /** The next connection that a client makes. */
  next() {
    return this.#sockets.take();
  }

  /** The same, opened and signed in; what it said of itself is in `credentials`. */
  async signedIn() {
    const socket = await this.next();
    socket.onopen({});
    socket.credentials = await socket.hears();
    socket.says({ type: "auth_ok", user: "ann", role: "user" });
    return socket;
  }
}

class FakeSocket {
  onopen = null;
  onmessage = null;
  onclose = null;
  onerror = null;
  isClosed = false;
  #heard = new Mailbox();

  constructor(url, protocols) {
    this.url = url;
    this.protocols = protocols;
  }

  send(text) {
    this.#heard.put(JSON.parse(text));
  }

  close() {
    this.isClosed = true;
  }

  // --- the other end ---

  hears() {
    return this.#heard.take();
  }

  says(message) {
    this.onmessage?.({ data: JSON.stringify(message) });
  }

  breaks(code = 1006, reason = "") {
    this.onclose?.({ code, reason });
  }

  /** Answers a subscribe with all rows, [id, text] each, and is live at `seq`. */
  async serves(rows, seq = 5) {
    const { id } = await this.hears();
    const schema = [{ name: "id", type: "INT" }, { name: "text", type: "TEXT" }];
    this.says({ type: "subscribed", id, seq, history: "h", mode: "snapshot", schema, key: [0] });
    this.says({ type: "rows", id, seq, rows, last: true });
    this.says({ type: "live", id, channel: 1, seq, changes: [] });
  }
}
