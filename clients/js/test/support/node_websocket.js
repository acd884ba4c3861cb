/**
 * A WebSocket for node before 22, which has none: as much of RFC 6455 as a client of text messages needs. It shows what
 * the option `WebSocket` of connect takes, too.
 */

import { randomBytes } from "node:crypto";
import { request } from "node:http";

const TEXT = 1;
const CLOSE = 8;
const PING = 9;
const PONG = 10;

export class NodeWebSocket {
  onopen = null;
  onmessage = null;
  onclose = null;
  onerror = null;
  #request;
  #socket = null;
  #received = Buffer.alloc(0);
  #pieces = []; // of a message in several frames
  #isClosed = false;

  constructor(url, protocols) {
    const headers = {
      Connection: "Upgrade",
      Upgrade: "websocket",
      "Sec-WebSocket-Version": "13",
      "Sec-WebSocket-Key": randomBytes(16).toString("base64"),
      "Sec-WebSocket-Protocol": protocols.join(", "),
    };
    this.#request = request(url.replace(/^ws/, "http"), { headers });
    this.#request.on("upgrade", (_, socket, head) => this.#opened(socket, head));
    this.#request.on("response", () => this.#closed(1006, ""));
    this.#request.on("error", () => this.#closed(1006, ""));
    this.#request.end();
  }

  send(text) {
    this.#write(TEXT, Buffer.from(text));
  }

  close() {
    if (this.#socket === null) this.#request.destroy();
    else this.#socket.end(frame(CLOSE, Buffer.from([3, 232])));
  }

  #opened(socket, head) {
    this.#socket = socket;
    socket.on("data", (data) => this.#data(data));
    socket.on("error", () => this.#closed(1006, ""));
    socket.on("close", () => this.#closed(1006, ""));
    this.onopen?.({});
    if (head.length > 0) this.#data(head);
  }

  #closed(code, reason) {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.onclose?.({ code, reason });
  }

  #write(opcode, payload) {
    if (this.#socket?.writable) this.#socket.write(frame(opcode, payload));
  }

  #data(data) {
    this.#received = this.#received.length > 0 ? Buffer.concat([this.#received, data]) : data;
    for (let head; (head = headOf(this.#received)) !== null; ) {
      const payload = this.#received.subarray(head.start, head.end);
      this.#received = this.#received.subarray(head.end);
      this.#frame(head, payload);
    }
  }

  #frame({ opcode, isLast }, payload) {
    if (opcode === PING) return this.#write(PONG, payload);
    if (opcode === PONG) return;
    if (opcode === CLOSE) {
      this.#socket.end(frame(CLOSE, payload.subarray(0, 2)));
      return this.#closed(payload.length < 2 ? 1005 : payload.readUInt16BE(0), payload.subarray(2).toString());
    }
    this.#pieces.push(payload);
    if (!isLast) return;
    const data = Buffer.concat(this.#pieces.splice(0)).toString();
    this.onmessage?.({ data });
  }
}

/** Where the first frame's payload is; null if it is not all there. A server does not mask. */
function headOf(data) {
  if (data.length < 2) return null;
  const short = data[1] & 127;
  const start = short < 126 ? 2 : short === 126 ? 4 : 10;
  if (data.length < start) return null;
  const size = short < 126 ? short : short === 126 ? data.readUInt16BE(2) : Number(data.readBigUInt64BE(2));
  return data.length < start + size ? null : { opcode: data[0] & 15, isLast: data[0] > 127, start, end: start + size };
}

/** A client masks. */
function frame(opcode, payload) {
  const mask = randomBytes(4);
  const size = payload.length < 126 ? [128 | payload.length] : [254, payload.length >> 8, payload.length & 255];
  return Buffer.concat([Buffer.from([128 | opcode, ...size]), mask, payload.map((byte, at) => byte ^ mask[at % 4])]);
}
