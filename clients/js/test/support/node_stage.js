/** Evaluates what stands on each line of its input, a JSON text, and answers with what it came to, in a line of JSON. */

import { createInterface } from "node:readline";

import { NodeWebSocket } from "./node_websocket.js";
import "./stage.js";

globalThis.WebSocket ??= NodeWebSocket;
const evaluate = eval; // called by another name, it sees the globals only

for await (const line of createInterface({ input: process.stdin })) {
  evaluate(JSON.parse(line)).then((answer) => process.stdout.write(`${JSON.stringify(answer)}\n`));
}
process.exit(0);
