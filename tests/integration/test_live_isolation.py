"""Nobody receives a byte of another user's rows, whatever is asked and written, over sockets and streams of events.

What users write carries a mark of the writer, in values and in keys. All that arrives at a user's connections is kept and
searched for the marks of the others; and the rows that it has in the end are those of its own SELECT.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from overheard import FORMS, Ear, SocketEar, StreamEar
from server_fixture import ServerThread

from tablecast.client.live_state import QueryState
from tablecast.errors import PermissionDenied

USERS = {"ann": "correct horse", "bob": "battery staple", "cid": "tractor monkey", "sue": "ferry lantern"}
SERVICE = "sue"  # of role service: it may read every shared table, and of the others no more than anybody
MOST_EARS = 8
TABLES = """
CREATE NAMESPACE app;
CREATE USER TABLE app.notes (id INT PRIMARY KEY, grp INT, mark TEXT);
CREATE USER TABLE app.named (id TEXT PRIMARY KEY, grp INT, mark TEXT);
CREATE STREAM TABLE app.passing (id INT PRIMARY KEY, grp INT, mark TEXT) WITH (TTL_SECONDS = 3600);
CREATE TABLE app.news (id INT PRIMARY KEY, grp INT, mark TEXT) WITH (ACCESS_LEVEL = 'PUBLIC');
CREATE TABLE app.safe (id INT PRIMARY KEY, grp INT, mark TEXT)
"""
OWNED = ("app.notes", "app.named", "app.passing")
FILTERS: list[tuple[str, list[Any]]] = [
    ("", []),
    (" WHERE grp = ?", [1]),
    (" WHERE grp = ?", [2]),
    (" WHERE grp <> ?", [1]),
    (" WHERE mark LIKE '%-of-%'", []),
    (" WHERE mark IS NULL OR grp > 0", []),
    (" LIMIT 2", []),
]


def mark(user: str) -> str:
    """In no question and in no other text."""
    return f"9d1f-of-{user}"


class Place:
    def __init__(self, server: ServerThread) -> None:
        self.server = server
        self.tokens = {
            user: server.post("/auth/login", {"user": user, "password": password}).json()["access_token"]
            for user, password in USERS.items()
        }

    def sql(self, user: str, sql: str, params: list[Any] | None = None) -> list[Any]:
        if user == "system":
            return self.server.sql(sql, params)
        return self.server.sql(sql, params, headers={"Authorization": f"Bearer {self.tokens[user]}"})

    def settled(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.hub.settled(), self.server.loop).result()

    def forget(self) -> None:
        """Nothing of what rows were is kept: whoever resumes fetches again."""
        asyncio.run_coroutine_threadsafe(self.server.db.run_job("changes"), self.server.loop).result()

    def clear(self) -> None:
        for user in USERS:
            self.sql(user, "; ".join(f"DELETE FROM {table}" for table in OWNED))
        self.sql("system", "DELETE FROM app.news; DELETE FROM app.safe")

    def is_left(self) -> bool:
        return self.server.hub.is_empty


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with ServerThread(changes_kept_seconds=0) as server:  # for as long as the job does not come
        server.sql(TABLES)
        for user, password in USERS.items():
            role = "service" if user == SERVICE else "user"
            server.sql(f"CREATE USER '{user}' WITH PASSWORD '{password}' ROLE '{role}'")
        yield Place(server)


# --- what happens -----------------------------------------------------------------------------------------------

users = st.sampled_from(list(USERS))
pick = st.integers(0, 1000)
tables = st.sampled_from([*OWNED, *OWNED, "app.news", "app.safe"])
kinds = st.sampled_from(["upsert", "upsert", "upsert", "regroup", "rekey", "delete", "clear", "both"])
steps = st.one_of(
    st.tuples(st.just("socket"), users, st.sampled_from(FORMS)),
    st.tuples(st.just("stream"), users, st.sampled_from(OWNED), st.sampled_from(FILTERS)),
    st.tuples(st.just("subscribe"), pick, tables, st.sampled_from(FILTERS), st.booleans()),
    st.tuples(st.just("subscribe"), pick, tables, st.sampled_from(FILTERS), st.booleans()),
    st.tuples(st.just("unsubscribe"), pick),
    st.tuples(st.just("cut"), pick),
    st.tuples(st.just("cut_stream"), pick, st.booleans()),
    st.tuples(st.just("forget")),
    *[st.tuples(st.just("write"), users, tables, kinds, st.integers(1, 4), st.integers(0, 2))] * 4,
)


class Scene:
    """Readers and writers of one example."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.ears: list[Ear] = []

    def socket(self, user: str, form: Any) -> None:
        if len(self.ears) < MOST_EARS:
            self.ears.append(SocketEar(self.place.server, user, self.place.tokens[user], form))

    def stream(self, user: str, table: str, condition: tuple[str, list[Any]]) -> None:
        if len(self.ears) < MOST_EARS:
            sql = f"SELECT * FROM {table}{condition[0]}"
            self.ears.append(StreamEar(self.place.server, user, self.place.tokens[user], sql, condition[1]))

    @property
    def sockets(self) -> list[SocketEar]:
        return [ear for ear in self.ears if isinstance(ear, SocketEar)]

    def subscribe(self, number: int, table: str, condition: tuple[str, list[Any]], waits: bool) -> None:
        if self.sockets:
            ear = self.sockets[number % len(self.sockets)]
            ear.subscribe(f"SELECT id, mark, grp FROM {table}{condition[0]}", condition[1])
            if waits:
                ear.until_live()

    def unsubscribe(self, number: int) -> None:
        asked = [(ear, query) for ear in self.sockets for query in ear.queries]
        if asked:
            ear, query = asked[number % len(asked)]
            ear.unsubscribe(query)

    def cut(self, number: int) -> None:
        if self.sockets:
            self.sockets[number % len(self.sockets)].cut()

    def cut_stream(self, number: int, has_heard: bool) -> None:
        streams = [ear for ear in self.ears if isinstance(ear, StreamEar)]
        if streams:
            ear = streams[number % len(streams)]
            if has_heard:
                ear.hear_the_beginning()
            ear.cut()
            ear.hear_the_beginning()
            event(f"a stream begins again: {ear.mode.decode()}")

    def forget(self) -> None:
        self.place.forget()

    def write(self, user: str, table: str, kind: str, key: int, grp: int) -> None:
        writer = user if table in OWNED else "system"
        text = None if table == "app.news" else mark(writer)
        row_id: Any = f"{key}{text}" if table == "app.named" else key
        other: Any = f"{key + 1}{text}" if table == "app.named" else key + 1
        upsert = f"INSERT INTO {table} VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET grp = excluded.grp"
        match kind:
            case "upsert":
                self.place.sql(writer, upsert, [row_id, grp, text])
            case "both":
                self.place.sql(writer, f"BEGIN; {upsert}; {upsert}; COMMIT", [row_id, grp, text, other, grp, text])
            case "regroup":
                self.place.sql(writer, f"UPDATE {table} SET grp = ?", [grp])
            case "rekey":
                self.place.sql(writer, f"DELETE FROM {table} WHERE id = ?", [other])
                self.place.sql(writer, f"UPDATE {table} SET id = ? WHERE id = ?", [other, row_id])
            case "delete":
                self.place.sql(writer, f"DELETE FROM {table} WHERE id = ?", [row_id])
            case "clear":
                self.place.sql(writer, f"DELETE FROM {table} WHERE grp = ?", [grp])

    # --- what must be true ---

    def end(self) -> None:
        for user in USERS:
            for table in OWNED:  # two rows, of which every question shows one
                for key, grp in ((98, 1), (99, 2)):
                    row_id: Any = f"{key}{mark(user)}" if table == "app.named" else key
                    self.place.sql(user, f"INSERT INTO {table} VALUES (?, ?, ?)", [row_id, grp, f"{mark(user)}-end"])
        for ear in self.ears:
            if isinstance(ear, SocketEar):
                ear.hear_out(self.place.settled)
                self.has_its_rows(ear)
            elif isinstance(ear, StreamEar):
                ear.hear_until(f"{mark(ear.user)}-end".encode())
        for ear in self.ears:
            for other in {*USERS, "system"} - {ear.user}:
                if (ear.user, other) != (SERVICE, "system"):  # what system writes is in a table that it may read
                    assert mark(other).encode() not in ear.heard, f"{ear.user} heard of {other}"
            event(f"heard its own: {mark(ear.user).encode() in ear.heard}")

    def has_its_rows(self, ear: SocketEar) -> None:
        for query, rows in ear.queries.items():
            if "app.safe" in query.sql and ear.user != SERVICE:
                assert query.state is QueryState.ENDED and isinstance(query.error, PermissionDenied)
            elif "LIMIT" not in query.sql:
                answer = self.place.sql(ear.user, query.sql, query.params)[0]["rows"]
                assert sorted(map(list, rows.kept().rows.values()), key=repr) == sorted(answer, key=repr)
                if query.sql.split(" FROM ")[1].startswith(OWNED) and answer:
                    assert mark(ear.user).encode() in ear.heard


@given(st.lists(steps, min_size=10, max_size=40))
@settings(max_examples=60)
def test_nobody_receives_a_byte_of_another(place: Place, happened: list[tuple[Any, ...]]) -> None:
    scene = Scene(place)
    try:
        for user, form in zip(USERS, (*FORMS, *FORMS), strict=True):
            scene.socket(user, form)
        for name, *arguments in happened:
            getattr(scene, name)(*arguments)
        scene.end()
    finally:
        for ear in scene.ears:
            ear.close()
        place.clear()
    deadline = time.monotonic() + 120
    while not place.is_left():
        assert time.monotonic() < deadline, "an index still holds something"
        time.sleep(0.002)
