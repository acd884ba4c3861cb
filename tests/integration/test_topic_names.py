"""What topics are called: names and aliases are one space, and a topic that is renamed stays what it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli_fixture import invoke
from hypothesis import given, settings
from hypothesis import strategies as st
from server_fixture import PASSWORD, ServerThread

import tablecast
from tablecast import EARLIEST, Client, Database, connect
from tablecast.codec import catalog as records
from tablecast.codec.catalog import encode_record
from tablecast.errors import AlreadyExists, InUse, InvalidTopic, PermissionDenied, UnknownNamespace, UnknownTopic
from tablecast.model.topic import Topic
from tablecast.storage.base import Family
from tablecast.storage.rocks import RocksStore


class Blocking:
    """The asynchronous surface, called like the others."""

    def __init__(self, runner: asyncio.Runner, database: Any) -> None:
        self._runner, self._database = runner, database

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **named: Any) -> Any:
            return await getattr(self._database, name)(*args, **named)

        return lambda *args, **named: self._runner.run(call(*args, **named))


Place = Database | Client | Blocking


@pytest.fixture(params=["embedded", "async", "remote"])
def db(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "embedded":
        with tablecast.open(":memory:") as database:
            yield database
    elif request.param == "async":
        with asyncio.Runner() as runner:
            database = runner.run(tablecast.open_async(":memory:"))
            yield Blocking(runner, database)
            runner.run(database.close())
    else:
        with ServerThread() as server, connect(server.url, user="system", password=PASSWORD) as client:
            yield client


def topics(db: Any) -> list[tuple[Any, ...]]:
    return list(db.query("SELECT topic_id, namespace || '.' || name, alias FROM system.topics ORDER BY topic_id").rows)


def ids(db: Any, topic: str, **options: Any) -> list[int]:
    return [message.value["id"] for message in db.consume(topic, **{"start": EARLIEST} | options).messages]


# --- one space --------------------------------------------------------------------------------------------------

HERE = """
CREATE NAMESPACE app; CREATE TOPIC orders; CREATE TOPIC app.other ALIAS 'News'; CREATE TOPIC app.plain;
CREATE TOPIC app.quoted ALIAS '"News"'
"""
TAKEN = [
    ("CREATE TOPIC app.new ALIAS 'orders'", "default.orders"),
    ("CREATE TOPIC app.new ALIAS 'Orders'", "default.orders"),
    ("CREATE TOPIC app.new ALIAS '\"orders\"'", "default.orders"),
    ("CREATE TOPIC app.new ALIAS 'news'", "app.other"),
    ("CREATE TOPIC app.new ALIAS 'NEWS'", "app.other"),
    ("CREATE TOPIC app.new ALIAS '\"News\"'", "app.quoted"),
    ("CREATE TOPIC news", "app.other"),
    ("CREATE TOPIC News", "app.other"),
    ("CREATE TOPIC default.news", "app.other"),
    ("CREATE TOPIC IF NOT EXISTS news", "app.other"),
    ('CREATE TOPIC "News"', "app.quoted"),
    ("CREATE TOPIC ORDERS", "default.orders"),
    ("CREATE TOPIC default.orders ALIAS 'x'", "default.orders"),
    ("CREATE TOPIC mine ALIAS 'Mine'", "default.mine"),
    ("ALTER TOPIC app.plain RENAME TO default.orders", "default.orders"),
    ("ALTER TOPIC app.plain RENAME TO Default.News", "app.other"),
    ("ALTER TOPIC app.plain RENAME TO Other", "app.other"),
    ('ALTER TOPIC app.plain RENAME TO default."News"', "app.quoted"),
    ("ALTER TOPIC app.plain SET ALIAS 'Orders'", "default.orders"),
    ("ALTER TOPIC app.plain SET ALIAS 'nEWS'", "app.other"),
    ("ALTER TOPIC orders SET ALIAS 'ORDERS'", "default.orders"),
    ("ALTER TOPIC app.other RENAME TO default.news", "app.other"),
]


def test_a_name_that_is_taken_is_refused(db: Place) -> None:
    db.execute(HERE)
    before = topics(db)
    for statement, owner in TAKEN:
        with pytest.raises(AlreadyExists, match="one space") as refused:
            db.execute(statement)
        assert refused.value.details["topic"] == owner, statement
        assert owner in refused.value.message
        assert topics(db) == before, statement
    db.execute("CREATE TOPIC IF NOT EXISTS Orders; CREATE TOPIC IF NOT EXISTS App.OTHER")
    assert topics(db) == before


def test_a_name_that_is_free_is_taken(db: Place) -> None:
    db.execute(HERE)
    for statement in (
        "CREATE TOPIC app.orders", 'CREATE TOPIC "Orders"', "CREATE TOPIC app.news", "CREATE TOPIC app.x ALIAS '\"Orderly\"'",
        "CREATE TOPIC app.y ALIAS 'orderly'", "ALTER TOPIC app.other SET ALIAS 'NEWS'", "ALTER TOPIC app.plain RENAME TO plain",
        "ALTER TOPIC app.other SET ALIAS NULL", "CREATE TOPIC news", "ALTER TOPIC news RENAME TO old",
        "ALTER TOPIC app.quoted SET ALIAS 'News'", "DROP TOPIC news", "CREATE TOPIC news",
    ):  # fmt: skip
        db.execute(statement)
    assert [name for _, name, _ in topics(db)] == [
        "default.orders", "app.other", "app.plain", "app.orders", "default.Orders", "app.news", "app.x", "app.y",
        "default.old", "default.news",
    ]  # fmt: skip


def test_a_bare_name_is_of_the_namespace_first_and_then_an_alias(db: Place) -> None:
    """In `app`, where a topic is called as the alias of another."""
    db.execute("CREATE NAMESPACE app; CREATE TABLE app.t (id INT PRIMARY KEY); CREATE TABLE app.u (id INT PRIMARY KEY)")
    db.execute("CREATE NAMESPACE far; CREATE TOPIC far.away ALIAS 'orders'; ALTER TOPIC orders ADD SOURCE app.t ON ANY")
    db.execute("CREATE TOPIC app.orders; ALTER TOPIC app.orders ADD SOURCE app.u ON ANY")
    db.execute("INSERT INTO app.t VALUES (1); INSERT INTO app.u VALUES (2)")
    assert (ids(db, "orders"), ids(db, "app.orders")) == ([1], [2])
    if isinstance(db, Database):
        session = db.session("ann", "service", "app")
        assert ids(session, "orders") == [2]
        assert ids(session, "default.orders") == [1]
        db.execute("DROP TOPIC app.orders")
        assert ids(session, "orders") == [1]


names = st.sampled_from(["a", "A", '"A"', "b", "B", "app.a", "app.A", 'app."A"'])
aliases = st.sampled_from(["a", "A", '"A"', "b", '"b"'])


def bare_full(text: str) -> str:
    namespace, dot, name = text.rpartition(".")
    bare = name.strip('"') if name.startswith('"') else name.lower()
    return f"{namespace if dot else 'default'}.{bare}"


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["create", "rename", "alias", "none", "drop"]), names, names, st.none() | aliases),
        max_size=15,
    )
)
def test_a_name_never_passes_to_another_topic_unless_it_was_given_up(
    steps: list[tuple[str, str, str, str | None]],
) -> None:
    """The model: what each topic is called. A statement about one topic changes what that one is called, or is refused."""
    called: dict[int, tuple[str, str | None]] = {}
    with tablecast.open(":memory:") as db:
        db.execute("CREATE NAMESPACE app")
        for kind, topic, other, alias in steps:
            owner = {name: i for i, both in called.items() for name in both if name}
            target = owner.get(bare_full(topic))
            new = (bare_full(topic if kind == "create" else other), bare_full(alias) if alias else None)
            if kind == "create":
                statement = f"CREATE TOPIC {topic}" + (f" ALIAS '{alias}'" if alias else "")
                target, after = 0, new
            else:
                had = called.get(target or -1, ("", None))
                after = (new[0], had[1]) if kind == "rename" else (had[0], new[1] if kind == "alias" else None)
                how = {"rename": f"RENAME TO {other if '.' in other else f'default.{other}'}", "none": "SET ALIAS NULL"}
                statement = f"ALTER TOPIC {topic} " + how.get(
                    kind, f"SET ALIAS '{alias}'" if alias else "SET ALIAS NULL"
                )
            if kind == "drop":
                statement, after = f"DROP TOPIC {topic}", ("", None)
            is_taken = after[0] == after[1] or any(owner.get(name, target) != target for name in after if name)
            try:
                db.execute(statement)
            except AlreadyExists:
                assert is_taken and kind != "drop"
            except UnknownTopic:
                assert target is None
            else:
                assert not is_taken
                if kind == "drop":
                    del called[target or -1]
                else:
                    called[db.engine.catalog.topic(after[0]).topic_id] = after
            said = {name: i for i, both in called.items() for name in both if name}
            assert {name: db.engine.catalog.topic(name).topic_id for name in said} == said
            assert db.engine.catalog.topic_ids.keys() == said.keys()


# --- renaming ---------------------------------------------------------------------------------------------------

WORK = """
CREATE NAMESPACE app; CREATE NAMESPACE other;
CREATE TABLE app.jobs (id INT PRIMARY KEY);
CREATE TOPIC app.dead ALIAS 'letters';
CREATE TOPIC app.work ALIAS 'jobs' WITH (max_deliveries = 1, dead_letter = 'letters');
ALTER TOPIC app.work ADD SOURCE app.jobs ON ANY;
INSERT INTO app.jobs VALUES (0), (1), (2);
"""
DEAD_LETTER = "SELECT dead_letter FROM system.topics WHERE name = 'work'"


def test_a_topic_that_is_renamed_stays_what_it_is(db: Place) -> None:
    db.execute(WORK)
    before = topics(db)
    assert ids(db, "app.work", group="g", limit=2) == [0, 1]
    db.ack("app.work", "g", 0)
    db.execute("ALTER TOPIC App.Work RENAME TO Other.Tasks; ALTER TOPIC other.tasks SET ALIAS 'Todo'")
    assert topics(db)[1] == (before[1][0], "other.tasks", "todo")
    db.insert("app.jobs", [(3,)])
    for gone in ("app.work", "jobs", "default.jobs"):
        with pytest.raises(UnknownTopic):
            ids(db, gone)
    for name in ("other.tasks", "todo", "default.todo"):
        assert ids(db, name) == [0, 1, 2, 3]
    db.nack("todo", "g", [1])
    assert ids(db, "other.tasks", group="g") == [2, 3], "the group goes on where it was"
    assert [m.value["_dead_letter"]["offset"] for m in db.consume("letters", start=EARLIEST).messages] == [1]


def test_renamed_to_a_bare_name_it_stays_in_its_namespace(db: Place) -> None:
    db.execute(WORK)
    db.execute('ALTER TOPIC app.work RENAME TO Tasks; ALTER TOPIC letters RENAME TO "Dead"')
    assert [name for _, name, _ in topics(db)] == ["app.Dead", "app.tasks"]


@pytest.mark.parametrize("change", ["RENAME TO app.given_up", "SET ALIAS 'given_up'", "SET ALIAS NULL"])
def test_dead_letters_follow_the_name_of_their_topic(db: Place, change: str) -> None:
    db.execute(WORK)
    assert db.query(DEAD_LETTER).scalar() == "app.dead", "an alias is looked up when it is said"
    assert ids(db, "app.work", group="g") == [0, 1, 2]
    db.nack("app.work", "g", [0])
    db.consume("app.work", group="g")
    db.execute(f"ALTER TOPIC app.dead {change}; ALTER TOPIC app.work RENAME TO tasks")
    [(_, dead, _), _] = topics(db)
    assert db.query(DEAD_LETTER.replace("work", "tasks")).scalar() == dead
    db.nack("app.tasks", "g", [1])
    db.consume("app.tasks", group="g")
    assert len(db.consume(dead, start=EARLIEST).messages) == 2, "one from before, and one from after"
    db.execute(f"REDRIVE TOPIC {dead} ALL")
    assert ids(db, "app.tasks", group="g") == [0, 1], "to the topic that they came from, whatever it is called now"
    with pytest.raises(InUse, match=r"app\.tasks"):
        db.execute(f"DROP TOPIC {dead}")


def test_a_letter_of_a_topic_that_is_gone_goes_to_no_other_of_its_name(db: Place) -> None:
    db.execute(WORK)
    db.consume("app.work", group="g")
    db.nack("app.work", "g", [0])
    db.consume("app.work", group="g")
    db.execute("ALTER TOPIC app.work RENAME TO tasks; CREATE TOPIC app.work; REDRIVE TOPIC letters ALL")
    assert ids(db, "app.work") == []
    assert ids(db, "app.tasks", group="g") == [0]


def test_what_a_rename_refuses(db: Place) -> None:
    db.execute(WORK)
    db.execute("CREATE TABLE app.done (id INT PRIMARY KEY)")
    db.execute("CREATE PIPELINE app.flow INTO app.done AS SELECT id FROM TOPIC jobs")
    with pytest.raises(InUse, match=r"app\.flow"):
        db.execute("ALTER TOPIC app.work RENAME TO tasks")
    db.execute("ALTER TOPIC app.work SET ALIAS NULL")  # the pipeline reads it by its name
    assert db.query("SELECT definition FROM system.pipelines").scalar().count("app.work") == 1
    with pytest.raises(UnknownNamespace):
        db.execute("ALTER TOPIC app.dead RENAME TO nowhere.dead")
    with pytest.raises(InvalidTopic, match="reserved"):
        db.execute("ALTER TOPIC app.dead RENAME TO system.dead")
    with pytest.raises(UnknownTopic):
        db.execute("ALTER TOPIC app.nothing RENAME TO app.something")
    with pytest.raises(InvalidTopic, match="own dead_letter"):
        db.execute("CREATE TOPIC app.loop ALIAS 'loop' WITH (max_deliveries = 1, dead_letter = 'loop')")


@pytest.mark.parametrize("change", ["RENAME TO tasks", "SET ALIAS 'tasks'", "SET ALIAS NULL"])
def test_names_are_for_dba_and_above_and_audited(change: str) -> None:
    with tablecast.open(":memory:") as db:
        db.execute(WORK)
        before = topics(db)
        for role in ("user", "service"):
            with pytest.raises(PermissionDenied):
                db.session("eve", role).execute(f"ALTER TOPIC app.work {change}")
        assert topics(db) == before
        db.session("ann", "dba").execute(f"ALTER TOPIC jobs {change}")
        entries = (
            "SELECT user_id, action, target, outcome, detail FROM system.audit_log WHERE user_id IN ('ann', 'eve')"
        )
        action, detail = {
            "RENAME TO tasks": ("RENAME TOPIC", "to app.tasks"),
            "SET ALIAS 'tasks'": ("SET ALIAS", "alias tasks"),
            "SET ALIAS NULL": ("SET ALIAS", "no alias"),
        }[change]
        rows = db.query(entries + " ORDER BY seq").rows
        assert [row[:4] for row in rows] == [("eve", action, "app.work", "denied")] * 2 + [
            ("ann", action, "app.work", "ok")
        ]
        assert rows[-1][4] == detail


def test_a_new_name_survives_a_restart(tmp_path: Path) -> None:
    with tablecast.open(tmp_path / "db") as db:
        db.execute(WORK + 'ALTER TOPIC app.work RENAME TO "Tasks"; ALTER TOPIC jobs SET ALIAS \'"Todo"\'')
        before = topics(db)
    with tablecast.open(tmp_path / "db") as db:
        assert topics(db) == before
        assert ids(db, 'app."Tasks"') == ids(db, '"Todo"') == [0, 1, 2]
        assert db.verify().sound


# --- databases of older versions --------------------------------------------------------------------------------


def stored(path: Path, **altered: dict[str, Any]) -> None:
    """Gives topics fields that only an older version would have let them have, by their bare names."""
    store = RocksStore.open(str(path), create=False)
    batch = store.batch()
    for key, value in list(store.scan(Family.META, records.TOPICS, records.TOPICS + b"\xff")):
        topic = records.decode_record(Topic, value)
        if topic.name in altered:
            topic = msgspec.structs.replace(topic, **altered[topic.name])
            batch.put(Family.META, key, encode_record(topic))
    store.write(batch)
    store.close()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """`a` to `d` are fed by tables of their names, one row each, 0 to 3; `orders` too, with 4."""
    path = tmp_path / "db"
    with tablecast.open(path) as db:
        db.execute("CREATE NAMESPACE app")
        for number, name in enumerate(("app.a", "app.b", "app.c", "app.d", "orders")):
            db.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY); CREATE TOPIC {name}")
            db.execute(f"ALTER TOPIC {name} ADD SOURCE {name} ON ANY; INSERT INTO {name} VALUES ({number})")
    stored(path, a={"alias": "orders"}, b={"alias": "Ra"}, c={"alias": "ra"}, d={"alias": "RA"})
    return path


CLASHES = {"app.a": "default.orders is topic default.orders", "app.b": "default.ra is topic app.c", "app.d": "app.c"}


def test_clashing_names_of_an_older_version(old: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tablecast"), tablecast.open(old) as db:
        told = [record.message for record in caplog.records]
        report = db.verify()
        assert (report.warnings, report.sound) == (told, True)
        assert len(told) == len(CLASHES)
        for said, (topic, owner) in zip(told, CLASHES.items(), strict=True):
            assert f"of topic {topic} " in said
            assert owner in said
            assert "SET ALIAS" in said
        # A topic's own name comes first, then the alias in lower case, which is what SQL found; each has its own name, too.
        assert [ids(db, name) for name in ("orders", "default.orders", "Orders")] == [[4]] * 3
        assert [ids(db, name) for name in ("ra", "Ra", "RA")] == [[2]] * 3
        assert [ids(db, f"app.{name}") for name in "abcd"] == [[0], [1], [2], [3]]


def test_clashing_names_are_told_apart(old: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tablecast.open(old) as db:
        with pytest.raises(AlreadyExists):
            db.execute("ALTER TOPIC app.b SET ALIAS 'ra'")
        db.execute(
            "ALTER TOPIC app.b RENAME TO bb; ALTER TOPIC app.d SET ALIAS '\"RA\"'; ALTER TOPIC app.bb SET ALIAS NULL"
        )
        db.execute("ALTER TOPIC orders RENAME TO older")
        assert ids(db, "orders") == [0], "the alias comes into effect"
        db.execute("DROP TOPIC older")
        assert [ids(db, name) for name in ("app.bb", "Ra", '"RA"', "orders")] == [[1], [2], [3], [0]]
        assert db.verify().warnings == []
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tablecast"), tablecast.open(old) as db:
        assert [ids(db, name) for name in ("app.bb", "Ra", '"RA"', "orders")] == [[1], [2], [3], [0]]
    assert not caplog.records


def test_a_drop_meets_the_topic_of_that_name(old: Path) -> None:
    with tablecast.open(old) as db:
        db.execute("DROP TOPIC orders")
        assert [name for _, name, _ in topics(db)] == ["app.a", "app.b", "app.c", "app.d"]
        assert ids(db, "orders") == [0]


def test_an_alias_of_an_older_version_keeps_its_topic(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tablecast.open(tmp_path / "db") as db:
        db.execute(WORK)
    stored(tmp_path / "db", work={"alias": "Ra", "dead_letter": "default.letters"}, dead={"alias": "letters"})
    with tablecast.open(tmp_path / "db") as db:
        assert [ids(db, name) for name in ("ra", "Ra", "RA", '"ra"', "default.Ra")] == [[0, 1, 2]] * 5
        with pytest.raises(UnknownTopic):
            ids(db, '"Ra"')
        db.execute("ALTER TOPIC letters SET ALIAS NULL")
        assert db.query(DEAD_LETTER).scalar() == "app.dead"
    assert not caplog.records


def test_verify_prints_the_warnings(old: Path) -> None:
    done = invoke("verify", old)
    assert done.exit_code == 0
    assert done.stdout.count("warning: the alias ") == len(CLASHES)
