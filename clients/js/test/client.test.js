/** The client over a network that the test plays: signing in, coming back, giving up, and what programs see of it. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { connect } from "../src/index.js";
import { waitMs } from "../src/link.js";
import { FakeNetwork } from "./support/fake_network.js";

const URL = "http://127.0.0.1:8080";
const SQL = "SELECT id, text FROM notes";
const AT_ONCE = { firstMs: 0 };
const UPDATE = { type: "change", channel: 1, seq: 6, changes: [{ op: "update", row: [1, "b"] }] };

function connected(options = {}) {
  const network = new FakeNetwork();
  const statuses = [];
  const client = connect(URL, {
    user: "ann",
    password: "secret",
    WebSocket: network.WebSocket,
    retry: AT_ONCE,
    onStatus: (status, error) => statuses.push(error ? `${status}: ${error.code}` : status),
    ...options,
  });
  return { client, network, statuses };
}

function withToken(token, options = {}) {
  return connected({ user: undefined, password: undefined, token, ...options });
}

const REFUSED = { type: "error", code: "unauthenticated", message: "no" };

// --- reading ---

test("changes come in order, and break ends the subscription and the connection", async () => {
  const { client, network, statuses } = connected();
  const live = client.live(SQL);
  const socket = await network.signedIn();
  assert.deepEqual([socket.url, socket.protocols], ["ws://127.0.0.1:8080/v1/ws", ["tablecast.json"]]);
  assert.deepEqual(socket.credentials, { type: "authenticate", user: "ann", password: "secret" });
  await socket.serves([[1, "a"]]);
  socket.says(UPDATE);
  const seen = [];
  for await (const { op, row } of live) {
    seen.push([op, row.text]);
    if (op === "update") break;
  }
  assert.deepEqual(seen, [["insert", "a"], ["update", "b"]]);
  assert.deepEqual(live.columns, ["id", "text"]);
  assert.equal((await socket.hears()).type, "unsubscribe");
  assert.ok(socket.isClosed);
  assert.deepEqual(await live.next(), { value: undefined, done: true });
  assert.deepEqual(statuses, ["connecting", "connected", "closed"]);
});

test("close ends an iteration that waits, and leaves nothing behind in what was read", async () => {
  const { client, network } = connected();
  const live = client.live(SQL);
  const waiting = live.next();
  live.close();
  live.close();
  assert.equal((await waiting).done, true);
  const other = client.live(SQL);
  await (await network.signedIn()).serves([[1, "a"], [2, "b"]]);
  assert.equal((await other.next()).value.row.text, "a");
  other.close();
  assert.equal((await other.next()).done, true);
});

test("a live table: rows, one row, changes, and the rows again and again", async () => {
  const { client, network } = connected();
  const table = client.liveTable(SQL);
  const told = [];
  const stop = table.onChange((changes) => told.push(changes.map(({ op, seq }) => [op, seq])));
  const socket = await network.signedIn();
  await socket.serves([[1, "a"], [2, "b"]]);
  assert.equal(await table.ready(), table);
  const before = table.rows;
  const states = table[Symbol.asyncIterator]();
  assert.equal((await states.next()).value.size, 2);
  const changes = [{ op: "delete", key: [1] }, { op: "insert", row: [3, "c"] }];
  socket.says({ type: "change", channel: 1, seq: 6, changes });
  assert.deepEqual([...(await states.next()).value.keys()], ["[2]", "[3]"]);
  assert.deepEqual([table.seq, table.columns], [6, ["id", "text"]]);
  assert.deepEqual([table.get(3), table.get(1)], [{ id: 3, text: "c" }, undefined]);
  assert.equal(before.size, 2, "what was read stays");
  stop();
  socket.says({ ...UPDATE, seq: 7 });
  await states.next();
  assert.deepEqual(told, [[["reset", 5]], [["delete", 6], ["insert", 6]]]);
  const waiting = states.next();
  table.close();
  assert.equal((await waiting).done, true);
  assert.equal(await table.ended, null);
  assert.equal(table.rows.size, 3, "the rows stay");
});

test("a listener that throws is reported, and stops nobody", async (t) => {
  const { client, network } = connected();
  const table = client.liveTable(SQL);
  let heard = 0;
  const reported = [];
  t.mock.method(globalThis, "queueMicrotask", (task) => reported.push(task)); // where nobody catches what it throws
  table.onChange(() => {
    throw new Error("a mistake of the program");
  });
  table.onChange(() => (heard += 1));
  await (await network.signedIn()).serves([]);
  await table.ready();
  assert.equal(heard, 1);
  assert.equal(reported.length, 1);
  assert.throws(reported[0], { message: "a mistake of the program" });
  client.close();
});

test("a query that is refused ends with the error; the others go on", async () => {
  const { client, network } = connected();
  const [bad, good] = [client.liveTable("SELECT nonsense"), client.live(SQL)];
  const socket = await network.signedIn();
  const { id } = await socket.hears();
  const details = { column: "nonsense" };
  socket.says({ type: "error", id, code: "unknown_column", message: "there is no column nonsense", details });
  await assert.rejects(bad.ready(), { code: "unknown_column", details });
  assert.equal((await bad.ended).code, "unknown_column");
  await assert.rejects(bad[Symbol.asyncIterator]().next(), { code: "unknown_column" });
  await socket.serves([[1, "a"]]);
  assert.equal((await good.next()).value.row.text, "a");
  client.close();
});

// --- coming back ---

test("a lost connection is made again, and everything resumed on it", async () => {
  const { client, network, statuses } = connected();
  const table = client.liveTable(SQL);
  const first = await network.signedIn();
  await first.serves([[1, "a"]]);
  await table.ready();
  first.breaks();
  const second = await network.signedIn();
  const { id, resume } = await second.hears();
  assert.equal(resume, 5);
  const schema = [{ name: "id", type: "INT" }, { name: "text", type: "TEXT" }];
  second.says({ type: "subscribed", id, seq: 5, history: "h", mode: "resumed", schema, key: [0] });
  second.says({ type: "live", id, channel: 9, seq: 8, changes: [{ op: "update", row: [1, "z"] }] });
  for await (const rows of table) if (rows.get("[1]").text === "z") break;
  assert.equal(table.seq, 8);
  first.says({ type: "change", channel: 9, seq: 99, changes: [] });
  assert.equal(table.seq, 8, "the first connection is over");
  client.close();
  assert.deepEqual(statuses, ["connecting", "connected", "waiting: unreachable", "connecting", "connected", "closed"]);
});

test("attempts that are used up end everything, with the reason", async () => {
  const { client, network, statuses } = connected({ retry: { ...AT_ONCE, attempts: 3 } });
  const [live, table] = [client.live(SQL), client.liveTable(SQL)];
  for (let n = 0; n < 3; n += 1) (await network.next()).breaks();
  await assert.rejects(live.next(), { code: "unreachable", message: /allowed_origins/ });
  assert.equal((await live.next()).done, true, "an iterator that threw is done");
  assert.equal((await table.ended).code, "unreachable");
  assert.equal(network.count, 3);
  assert.deepEqual(statuses.at(-1), "closed: unreachable");
});

test("a query that is refused for now is asked for again, and in the end given up; the others go on", async () => {
  const { client, network } = connected({ retry: { ...AT_ONCE, attempts: 3 } });
  const [unlucky, good] = [client.liveTable(SQL), client.liveTable(SQL)];
  const socket = await network.signedIn();
  const refuse = async () => socket.says({ type: "error", id: (await socket.hears()).id, code: "overloaded", message: "later" });
  await refuse();
  await socket.serves([[1, "a"]]);
  await good.ready();
  await refuse();
  await refuse();
  assert.equal((await unlucky.ended).code, "overloaded");
  socket.says(UPDATE);
  assert.equal(network.count, 1);
  for await (const rows of good) if (rows.get("[1]").text === "b") break;
  client.close();
});

test("attempts are counted since a query was live", async () => {
  const { client, network } = connected({ retry: { ...AT_ONCE, attempts: 2 } });
  const table = client.liveTable(SQL);
  for (let n = 0; n < 3; n += 1) {
    const socket = await network.signedIn();
    await socket.serves([]);
    socket.breaks();
  }
  (await network.next()).breaks();
  assert.equal((await table.ended).code, "unreachable");
  assert.equal(network.count, 4);
});

test("a server that says nothing while it should sign in is given up", async () => {
  const { client, network } = connected({ retry: { attempts: 1 }, times: { connectMs: 5 } });
  const table = client.liveTable(SQL);
  const socket = await network.next();
  assert.match((await table.ended).message, /said nothing/);
  assert.ok(socket.isClosed);
});

test("a server that falls silent is asked, and then given up", async () => {
  const { client, network } = connected({ times: { pingMs: 5 } });
  const table = client.liveTable(SQL);
  const silent = await network.signedIn();
  await silent.serves([]);
  assert.equal((await silent.hears()).type, "ping");
  await network.next();
  assert.ok(silent.isClosed);
  await table.ready();
  client.close();
});

test("a server that answers pings is kept", async () => {
  const { client, network } = connected({ times: { pingMs: 5 } });
  client.liveTable(SQL);
  const socket = await network.signedIn();
  await socket.serves([]);
  for (let n = 0; n < 5; n += 1) {
    assert.equal((await socket.hears()).type, "ping");
    socket.says({ type: "pong", seq: 5 + n });
  }
  assert.equal(network.count, 1);
  client.close();
});

test("waits double up to their limit, shortened at random by up to half", () => {
  const retry = { firstMs: 100, maxMs: 1000 };
  const waits = (random) => [0, 1, 2, 3, 4, 60].map((attempt) => waitMs(attempt, retry, () => random));
  assert.deepEqual(waits(0), [100, 200, 400, 800, 1000, 1000]);
  assert.deepEqual(waits(1), [50, 100, 200, 400, 500, 500]);
});

test("close during a wait ends it", async () => {
  const { client, network } = connected({ retry: { firstMs: 1e9, maxMs: 1e9 } });
  const table = client.liveTable(SQL);
  (await network.next()).breaks();
  await new Promise(setImmediate);
  client.close();
  assert.equal(await table.ended, null, "and the process can end: no timer is left");
});

// --- who it is ---

test("a wrong password is final", async () => {
  const { client, network } = connected();
  const table = client.liveTable(SQL);
  const socket = await network.next();
  socket.onopen({});
  socket.says(REFUSED);
  assert.equal((await table.ended).code, "unauthenticated");
  await assert.rejects(table.ready(), { code: "unauthenticated" });
  assert.equal(network.count, 1);
});

test("a token that ended is fetched again, and the query resumed", async () => {
  const asked = [];
  const { client, network } = withToken(async (refused) => `token ${asked.push(refused)}`);
  const table = client.liveTable(SQL);
  const first = await network.signedIn();
  assert.deepEqual(first.credentials, { type: "authenticate", token: "token 1" });
  await first.serves([]);
  await table.ready();
  first.says(REFUSED);
  const second = await network.signedIn();
  assert.equal(second.credentials.token, "token 2");
  assert.equal((await second.hears()).resume, 5);
  assert.deepEqual(asked, [false, false]);
  client.close();
});

test("a function that gave an old token is asked once more, and not for ever", async () => {
  const asked = [];
  const { client, network } = withToken((refused) => `token ${asked.push(refused)}`);
  const table = client.liveTable(SQL);
  for (let n = 0; n < 2; n += 1) (await network.next()).says(REFUSED);
  assert.equal((await table.ended).code, "unauthenticated");
  assert.deepEqual(asked, [false, true]);
});

test("a function that fails is asked again after a while", async () => {
  let calls = 0;
  const { client, network, statuses } = withToken(() => {
    if ((calls += 1) === 1) throw new Error("no network");
    return "good";
  });
  client.liveTable(SQL);
  assert.equal((await network.signedIn()).credentials.token, "good");
  assert.deepEqual(statuses, ["connecting", "waiting: unreachable", "connecting", "connected"]);
  client.close();
});

// --- one connection, and none ---

test("all queries share a connection; after the last one another is made", async () => {
  const { client, network } = connected();
  const [a, b] = [client.live(SQL), client.live(SQL, [], { namespace: "app" })];
  const socket = await network.signedIn();
  const asked = [await socket.hears(), await socket.hears()];
  assert.deepEqual(asked.map(({ id, namespace }) => [id, namespace]), [[1, undefined], [2, "app"]]);
  a.close();
  assert.ok(!socket.isClosed);
  b.close();
  assert.ok(socket.isClosed);
  client.live(SQL);
  await network.signedIn();
  assert.equal(network.count, 2);
  client.close();
});

test("nothing works after close, and what waits ends", async () => {
  const { client, network } = connected();
  const [live, table] = [client.live(SQL), client.liveTable(SQL)];
  const waiting = [live.next(), assert.rejects(table.ready(), { code: "database_closed" })];
  const socket = await network.signedIn();
  client.close();
  assert.equal((await waiting[0]).done, true);
  await waiting[1];
  assert.ok(socket.isClosed);
  assert.throws(() => client.live(SQL), { code: "database_closed" });
  await assert.rejects(client.query("SELECT 1"), { code: "database_closed" });
});

test("what the server must not say ends everything with an error that says so", async () => {
  for (const nonsense of ["{", "null", JSON.stringify({ type: "rows", id: 1, seq: 1, rows: [] })]) {
    const { client, network } = connected();
    const table = client.liveTable(SQL);
    const socket = await network.signedIn();
    socket.onmessage({ data: nonsense });
    assert.match((await table.ended).code, /^(corrupt_data|database_error)$/, nonsense);
    client.close();
  }
});

test("connect refuses what cannot work", () => {
  const both = { user: "a", password: "b" };
  for (const url of ["nonsense", "ftp://127.0.0.1", "http://a:b@127.0.0.1"]) {
    assert.throws(() => connect(url, both), { code: "invalid_request" }, url);
  }
  for (const who of [{}, { user: "a" }, { ...both, token: "t" }, { token: 7 }]) {
    assert.throws(() => connect(URL, who), { code: "invalid_request" });
  }
  const without = connect(URL, { ...both, WebSocket: null });
  assert.throws(() => without.live(SQL), { code: "invalid_request", message: /WebSocket/ });
});

test("a server below a path, behind TLS", async () => {
  const network = new FakeNetwork();
  const client = connect("https://example.com/data/", { token: "t", WebSocket: network.WebSocket });
  client.live(SQL);
  assert.equal((await network.next()).url, "wss://example.com/data/v1/ws");
  client.close();
});
