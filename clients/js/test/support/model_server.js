/**
 * A server of live queries as the protocol describes it, in memory and without sockets: one table, `id` and `text`,
 * every commit kept until it is forgotten. Messages wait in `outgoing` until a test delivers them. It may be restored
 * from a backup: commit numbers are given again then, to other commits of another history.
 */

const SCHEMAS = {
  "SELECT id, text FROM notes": () => ({ schema: column("id", "text"), key: [0], show: ([id, text]) => [id, text] }),
  "SELECT text FROM notes": () => ({
    schema: [...column("text"), { name: "id", type: "INT", hidden: true }],
    key: [1],
    show: ([id, text]) => [text, id],
  }),
  "SELECT * FROM notes": (version) => ({
    schema: column("id", "text", ...Array.from({ length: version }, (_, n) => `more_${n}`)),
    key: [0],
    show: ([id, text]) => [id, text, ...Array(version).fill(null)],
  }),
};

export const QUERIES = Object.keys(SCHEMAS);

function column(...names) {
  return names.map((name) => ({ name, type: name === "id" ? "INT" : "TEXT" }));
}

export class ModelServer {
  rows = new Map();
  version = 0; // of the table's columns
  outgoing = [];
  #history = 1;
  #seq = 10;
  #commits = []; // {seq, changes: [[id, text | null]]}
  #keptFrom = 10; // commits after it are kept
  #subscriptions = new Map();

  /** Writes of one commit: [id, text], or [id, null] for a delete. */
  commit(writes) {
    this.#seq += 1;
    const changes = [...new Map(writes)].filter(([id, text]) => text !== null || this.rows.has(id));
    const opOf = (id, text) => (text === null ? "delete" : this.rows.has(id) ? "update" : "insert");
    const told = changes.map(([id, text]) => [opOf(id, text), id, text]);
    for (const [id, text] of changes) text === null ? this.rows.delete(id) : this.rows.set(id, text);
    this.#commits.push({ seq: this.#seq, changes });
    this.#tell(told);
  }

  #tell(changes) {
    const live = [...this.#subscriptions.values()].filter(({ stage }) => stage === "live");
    if (changes.length === 0) return;
    for (const sql of new Set(live.map((one) => one.sql))) {
      this.#send({ type: "change", channel: QUERIES.indexOf(sql), seq: this.#seq, changes: this.#shown(sql, changes) });
    }
  }

  #shown(sql, changes) {
    const { show } = SCHEMAS[sql](this.version);
    return changes.map(([op, id, text]) => (op === "delete" ? { op, key: [id] } : { op, row: show([id, text]) }));
  }

  /** What resuming from before now answers with `refetch`. */
  forget() {
    this.#keptFrom = this.#seq;
  }

  /** A backup of a few commits ago, with other rows. Everybody is disconnected. */
  restore(rows) {
    this.disconnect();
    this.#history += 1;
    this.#seq -= Math.min(this.#seq - 1, 3);
    this.#keptFrom = 1;
    this.#commits = [];
    this.rows = new Map(rows);
  }

  /** Everybody who is served is refused, for now. */
  refuse() {
    for (const { id } of [...this.#subscriptions.values()]) {
      this.#subscriptions.delete(id);
      this.#send({ type: "error", id, code: "overloaded", message: "too much to do" });
    }
  }

  alter() {
    this.version += 1;
    for (const { id, sql } of [...this.#subscriptions.values()]) {
      if (!sql.includes("*")) continue;
      this.#subscriptions.delete(id);
      this.#send({ type: "error", id, code: "schema_changed", message: "the table has other columns now" });
    }
  }

  /** All that are live are too slow. */
  lag() {
    for (const { id, stage } of [...this.#subscriptions.values()]) {
      if (stage !== "live") continue;
      this.#subscriptions.delete(id);
      this.#send({ type: "lagging", id, seq: this.#seq });
    }
  }

  disconnect() {
    this.#subscriptions.clear();
    this.outgoing = [];
  }

  get subscriptions() {
    return this.#subscriptions.size;
  }

  received(message) {
    this[`_${message.type}`](message);
  }

  _subscribe({ id, sql, resume, history, batch_rows = 3 }) {
    if (this.#subscriptions.has(id)) throw new Error(`id ${id} is in use`);
    if ((resume === null) !== (history === null)) throw new Error("resume goes with history");
    const known = history === `h${this.#history}` && resume >= this.#keptFrom && resume <= this.#seq;
    const mode = resume === null ? "snapshot" : known ? "resumed" : "refetch";
    const { schema, key } = SCHEMAS[sql](this.version);
    const one = { id, sql, seq: mode === "resumed" ? resume : this.#seq, batch_rows, stage: "rows", left: [...this.rows] };
    this.#subscriptions.set(id, one);
    this.#send({ type: "subscribed", id, seq: one.seq, history: `h${this.#history}`, mode, schema, key });
    if (mode === "resumed") this.#join(one);
    else this.#batch(one);
  }

  _next_batch({ id }) {
    const one = this.#subscriptions.get(id);
    if (one?.stage === "rows") this.#batch(one);
  }

  _ping() {
    this.#send({ type: "pong", seq: this.#seq });
  }

  _unsubscribe({ id }) {
    this.#subscriptions.delete(id);
    this.#send({ type: "unsubscribed", id });
  }

  #batch(one) {
    const { show } = SCHEMAS[one.sql](this.version);
    const rows = one.left.splice(0, one.batch_rows).map(show);
    const last = one.left.length === 0;
    this.#send({ type: "rows", id: one.id, seq: one.seq, rows, last });
    if (last) this.#join(one);
  }

  /** Net changes since its seq, each row once. */
  #join(one) {
    const missed = this.#commits.filter(({ seq }) => seq > one.seq).flatMap(({ changes }) => changes);
    const touched = [...new Set(missed.map(([id]) => id))];
    const net = touched.map((id) => (this.rows.has(id) ? ["update", id, this.rows.get(id)] : ["delete", id, null]));
    Object.assign(one, { stage: "live", seq: this.#seq });
    const changes = this.#shown(one.sql, net);
    this.#send({ type: "live", id: one.id, channel: QUERIES.indexOf(one.sql), seq: one.seq, changes });
  }

  #send(message) {
    this.outgoing.push(JSON.parse(JSON.stringify(message)));
  }
}
