"""Replication through a real broker: what the docs promise, one by one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest
from answer_proxy import AnswerProxy
from edge_nodes import EVENTS, database, node, notes, told, until
from mqtt_broker import Broker, program, running

from tablecast import Database
from tablecast.codec.events import decode_event
from tablecast.errors import Conflict, InvalidRequest, NodeMismatch, Overloaded
from tablecast.testing.clock import FakeClock

pytestmark = [pytest.mark.timeout(180)]
GOLDEN = bytes.fromhex(
    "a6636b65796a676f6c64656e2d6b6579676e6f64655f69646b676f6c64656e2d6e6f6465637365711930396c74696d657374616d705f6d73"
    "1b0000017e12ef9c0069746f6d6273746f6e65f46576616c75656c676f6c64656e2d76616c7565"
)
WRITE = "INSERT INTO app.notes VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    folder = tmp_path / "broker"
    folder.mkdir()
    with running(folder) as started:
        yield started


@pytest.fixture
def absent(tmp_path: Path) -> Iterator[Broker]:
    """A broker that a test starts when it likes."""
    folder = tmp_path / "absent"
    folder.mkdir()
    broker = Broker(folder)
    yield broker
    broker.kill()


def publish(broker: Broker, payload: bytes) -> None:
    command = [
        program("mosquitto_pub"),
        "-V",
        "5",
        "-p",
        str(broker.port),
        "-q",
        "1",
        "-t",
        EVENTS,
        "-s" if payload else "-n",
    ]
    subprocess.run(command, input=payload, check=True)


@contextmanager
def heard(broker: Broker, count: int) -> Iterator[list[bytes]]:
    """What mosquitto_sub gets while the block runs, once it has got so much."""
    command = [
        program("mosquitto_sub"),
        "-V",
        "5",
        "-p",
        str(broker.port),
        "-q",
        "1",
        "-t",
        EVENTS,
        "-t",
        "up",
        "-F",
        "%x",
    ]
    found: list[bytes] = []
    with subprocess.Popen([*command, "-C", str(count + 1)], stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None
        subprocess.run(
            [program("mosquitto_pub"), "-p", str(broker.port), "-t", "up", "-r", "-m", "up"], check=True
        )  # retained: it comes as soon as the listener is heard by the broker
        assert bytes.fromhex(listener.stdout.readline().decode()) == b"up"
        yield found
        found += [bytes.fromhex(line.decode()) for line in listener.stdout]


# --- the wire -----------------------------------------------------------------------------------------------------


def cbor_text(text: str) -> bytes:
    assert len(text) < 24
    return bytes([0x60 + len(text)]) + text.encode()


def test_the_broker_gets_exactly_the_specified_bytes(broker: Broker) -> None:
    clock = FakeClock(1_767_225_600_000 + 1000)  # one second after epochs began: the epoch is 1
    with node(broker.url, "golden-node", clock=clock) as db, heard(broker, 2) as found:
        db.execute("INSERT INTO app.pairs VALUES ('golden-key', 'golden-value')")
        db.execute("DELETE FROM app.pairs WHERE key = 'golden-key'")
        until(db, lambda status: status.published == 2)
    head = (
        cbor_text("key") + cbor_text("golden-key") + cbor_text("node_id") + cbor_text("golden-node") + cbor_text("seq")
    )
    for number, (event, tombstone) in enumerate(zip(found, (False, True), strict=True), 1):
        seq = b"\x1b" + (1 << 32 | number).to_bytes(8, "big")
        timestamp = b"\x1b" + (clock() + number - 1).to_bytes(8, "big")  # the delete is later than what it deletes
        expected = head + seq + cbor_text("timestamp_ms") + timestamp + cbor_text("tombstone")
        expected += b"\xf5" if tombstone else b"\xf4" + cbor_text("value") + cbor_text("golden-value")
        assert event == bytes([0xA5 if tombstone else 0xA6]) + expected


def test_an_event_of_a_plain_node_becomes_a_row(broker: Broker) -> None:
    with node(broker.url, "a") as db:
        until(db, lambda status: status.online)
        publish(broker, GOLDEN)
        until(db, lambda status: status.applied == 1)
        assert db.query("SELECT * FROM app.pairs").rows == [("golden-key", "golden-value")]
        publish(broker, GOLDEN)
        until(db, lambda status: status.seen == 1)


def test_an_event_is_a_write_like_any_other(broker: Broker) -> None:
    with node(broker.url, "a", compare_seconds=600) as a, node(broker.url, "b", compare_seconds=600) as b:
        until(b, lambda status: status.rounds == 1)
        b.execute(WRITE, [0, "own"])
        with b.live("SELECT id, body FROM app.notes") as live:
            assert next(live).initial
            a.execute(WRITE, [1, "first"])
            change = next(live)
            assert (change.row, change.initial) == ((1, "first"), False)
        assert [b"first" in payload for payload in told(b)] == [False, True]
        a.execute("DELETE FROM app.notes WHERE id = 1")
        until(b, lambda status: status.applied == 2)
        assert notes(b) == [(0, "own")]
        until(b, lambda status: status.published == 1 and not status.pending)
        assert b.replication.status().sequence % 2**32 == 1, "what came is not sent on"


# --- winners ------------------------------------------------------------------------------------------------------


def test_writes_of_the_same_millisecond_have_the_same_winner_everywhere(broker: Broker) -> None:
    clock = FakeClock()
    with node(broker.url, "a", clock=clock) as a, node(broker.url, "b", clock=clock) as b:
        broker.stop()
        for db in (a, b):
            until(db, lambda status: not status.online)
        a.execute(WRITE, [1, "of a"])
        b.execute(WRITE, [1, "of b"])
        b.execute(WRITE, [2, "once"])
        b.execute(WRITE, [2, "twice in a millisecond"])
        broker.start()
        for db in (a, b):
            until(db, lambda status: status.online and not status.pending)
        until(a, lambda _: _equal(a, b))
        assert notes(a) == notes(b) == [(1, "of b"), (2, "twice in a millisecond")]


# --- losses -------------------------------------------------------------------------------------------------------


def test_an_acknowledgement_that_is_lost_makes_the_event_come_again_and_apply_once(broker: Broker) -> None:
    with AnswerProxy(broker.port) as proxy, node(broker.url, "b") as b, node(proxy.url, "a", compare_seconds=600) as a:
        until(a, lambda status: status.online and status.rounds > 0)
        proxy.swallow.set()
        a.execute(WRITE, [1, "once"])
        until(b, lambda status: status.applied == 1)
        assert proxy.swallowed.wait(60)
        assert a.replication.status().published == 0
        proxy.heal()  # only now: it would come again at any moment
        until(a, lambda status: status.published == 1 and status.pending == 0)
        until(b, lambda status: status.seen == 1)
        assert len(told(b)) == 1
        assert notes(b) == [(1, "once")]


@pytest.mark.slow
def test_an_outage_with_many_writes_and_a_publisher_that_is_killed(absent: Broker, tmp_path: Path) -> None:
    rows, broker = 20_000, absent
    child = [
        sys.executable,
        str(Path(__file__).with_name("outage_child.py")),
        str(tmp_path / "db"),
        broker.url,
        str(rows),
    ]

    @contextmanager
    def writing(last_words: str) -> Iterator[None]:
        with subprocess.Popen(child, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                if line.strip() == last_words:
                    break
            else:
                raise AssertionError("the writer ended by itself")
            yield
            writer.kill()

    with ExitStack() as stack:
        broker.start()
        db = stack.enter_context(node(broker.url, "receiver", compare_seconds=600))
        until(db, lambda status: status.online)
        broker.stop()
        with writing("written 8000"):
            pass  # killed while the broker is away
        with writing("done"):
            broker.start()
            until(db, lambda status: status.applied >= 5_000)
        with writing("done"):  # killed in the middle of sending
            until(db, lambda status: status.applied == rows)
        arrived = [int(payload.split(b'"id":"')[1].split(b'"')[0]) for payload in told(db)]
        assert arrived == list(range(rows)), "in order, each once"
        assert len(notes(db)) == rows


def test_what_the_broker_forgot_is_brought_by_comparing(broker: Broker) -> None:
    """Killed, mosquitto loses the sessions it had: what was acknowledged to the sender reaches nobody else."""
    with node(broker.url, "a") as a, database() as b:
        for number in range(300):
            a.execute(WRITE, [number, "x" * 100])
        until(a, lambda status: status.published == 300)
        broker.kill()
        broker.start()
        b.replicate(broker.url, node_id="b", compare_seconds=1)
        until(b, lambda status: status.applied == 300)
        assert notes(a) == notes(b)
        until(a, lambda status: status.rounds > 3)
        quiet = a.replication.status()
        until(a, lambda status: status.rounds > quiet.rounds + 2)
        assert (quiet.pulled, quiet.pushed) == (a.replication.status().pulled, a.replication.status().pushed)


@pytest.mark.slow
def test_three_nodes_with_stops_and_outages_end_equal(broker: Broker, tmp_path: Path) -> None:
    random = Random(6)
    names = ("ant", "bee", "cat")
    with ExitStack() as stack:
        nodes = {name: stack.enter_context(node(broker.url, name, tmp_path / name)) for name in names}
        for number in range(300):
            db, row = nodes[random.choice(names)], random.randrange(20)
            if random.random() < 0.3:
                db.execute("DELETE FROM app.notes WHERE id = ?", [row])
            else:
                db.execute(WRITE, [row, f"{number}"])
            if number % 60 == 20:
                broker.kill()
            elif number % 60 == 40:
                broker.start()
            elif number % 45 == 44:
                start_again(nodes[random.choice(names)], broker)
        for db in nodes.values():
            until(db, lambda status: status.online and not status.pending)
        first, *others = nodes.values()
        for other in others:
            until(other, lambda _, other=other: _equal(first, other))


def start_again(db: Database, broker: Broker) -> None:
    assert db.replication.carrier is not None
    db.replication.carrier.stop()
    db.replicate(broker.url, compare_seconds=1)


def _equal(a: Database, b: Database) -> bool:
    roots = a.replication.roots()
    if roots != b.replication.roots():
        return False
    assert notes(a) == notes(b)
    return True


# --- what is refused ----------------------------------------------------------------------------------------------


def test_an_oversize_row_is_kept_and_set_aside_and_the_rest_flows(broker: Broker) -> None:
    with node(broker.url, "a") as a, node(broker.url, "b") as b:
        a.execute(WRITE, [1, "x" * 300_000])
        a.execute(WRITE, [2, "small"])
        until(b, lambda status: status.applied == 1)
        assert notes(b) == [(2, "small")]
        [aside] = a.replication.quarantine()
        assert aside.outgoing
        assert aside.key == "app.notes:1"
        assert "256" in aside.reason or "262144" in aside.reason
        status = until(a, lambda status: status.pending == 0 and status.published == 1)
        assert (status.set_aside, status.publish_errors) == (1, 1)
        assert status.last_error is not None
        assert status.last_error.startswith("invalid_event: ")
        assert "app.notes:1" in status.last_error and aside.reason in status.last_error
        [shown] = a.query("SELECT set_aside, publish_errors, last_error FROM system.replication").rows
        assert shown == (1, 1, status.last_error)


@pytest.mark.parametrize("option", ["message_size_limit 10000", "max_packet_size 10000"])
def test_a_broker_with_a_limit_of_its_own_does_not_block_the_rest(tmp_path: Path, option: str) -> None:
    with running(tmp_path, option) as broker, node(broker.url, "a") as a, node(broker.url, "b") as b:
        a.execute(WRITE, [1, "x" * 20_000])
        a.execute(WRITE, [2, "small"])
        until(b, lambda status: status.applied >= 1)
        assert (2, "small") in notes(b)
        until(a, lambda status: status.pending == 0)
        assert [aside.key for aside in a.replication.quarantine() if aside.outgoing] == ["app.notes:1"]
        assert a.replication.status().publish_errors > 0
        assert a.replication.status().set_aside == 1


@pytest.mark.parametrize("option", ["message_size_limit 10000", "max_packet_size 10000"])
def test_a_row_too_large_for_the_broker_does_not_keep_others_from_who_comes_late(tmp_path: Path, option: str) -> None:
    small = [(number, f"small {number}" * 30) for number in range(2, 200)]
    with running(tmp_path, option) as broker, node(broker.url, "a") as a:
        a.execute(WRITE, [1, "x" * 20_000])
        for row in small:
            a.execute(WRITE, row)
        until(a, lambda status: status.pending == 0)
        with node(broker.url, "b") as b:
            until(b, lambda status: status.applied >= len(small))
            assert notes(b) == small
            until(a, lambda status: "too large for the broker" in (status.last_error or ""))


@pytest.mark.parametrize(
    "poison",
    [b"", b"\xff", GOLDEN[:-1], GOLDEN + b"\x00", GOLDEN.replace(b"golden-key", b"a.b:gol-ke"), bytes(310_000)],
    ids=["nothing", "garbage", "cut", "trailing", "unknown table", "huge"],
)
def test_a_poisoned_event_is_set_aside_and_the_rest_flows(broker: Broker, poison: bytes) -> None:
    with node(broker.url, "a") as a, node(broker.url, "b") as b:
        until(b, lambda status: status.online)
        publish(broker, poison)
        a.execute(WRITE, [1, "fine"])
        until(b, lambda status: status.applied == 1 and status.quarantined == 1)
        [aside] = b.replication.quarantine()
        assert not aside.outgoing
        assert aside.reason
        assert notes(b) == [(1, "fine")]


def test_a_broker_that_gives_no_right_to_publish_is_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    rights = tmp_path / "rights"
    rights.write_text(
        "topic read #\ntopic write tablecast/replication/nodes/#\ntopic write tablecast/replication/sync/#\n"
    )
    rights.chmod(0o600)
    with running(tmp_path, f"acl_file {rights}") as broker, node(broker.url, "a", compare_seconds=600) as a:
        a.execute(WRITE, [1, "waits"])
        status = until(a, lambda status: status.publish_errors > 0)
        assert status.last_error is not None
        assert "not authorised" in status.last_error
        assert status.pending == 1
        assert status.set_aside == 0, "it waits"
        rights.write_text("topic readwrite #\n")
        broker.stop()
        broker.start()
        until(a, lambda status: status.published == 1)


# --- limits -------------------------------------------------------------------------------------------------------


def test_an_outbox_that_blocks(absent: Broker) -> None:
    with node(absent.url, "a", overflow="block", outbox_events=3) as a:
        for number in range(3):
            a.execute(WRITE, [number, "x"])
        with pytest.raises(Overloaded):
            a.execute(WRITE, [4, "no room"])
        absent.start()
        until(a, lambda status: status.pending == 0)
        a.execute(WRITE, [4, "room"])


def test_an_outbox_that_drops_its_oldest(absent: Broker) -> None:
    with node(absent.url, "a", overflow="drop_oldest", outbox_events=3) as a:
        for number in range(10):
            a.execute(WRITE, [number, "x"])
        until(a, lambda status: status.pending == 3)
        assert a.replication.status().given_up == 7
        absent.start()
        with node(absent.url, "b") as b:
            until(b, lambda status: status.applied == 10)  # comparing brings what was dropped


def test_an_outbox_that_coalesces_sends_the_last_state_of_each_row(absent: Broker) -> None:
    with node(absent.url, "a", outbox_events=10) as a:
        for number in range(200):
            a.execute(WRITE, [number % 4, f"{number}"])
        absent.start()
        with heard(absent, 4) as found, node(absent.url, "b") as b:
            until(a, lambda status: status.pending == 0)
            until(b, lambda status: status.applied >= 4)
            assert notes(a) == notes(b)
        assert [decode_event(data).key for data in found] == [f"app.notes:{number}" for number in range(4)]


def test_below_the_limit_every_change_is_sent(broker: Broker) -> None:
    with node(broker.url, "b", compare_seconds=600) as b, node(broker.url, "a", compare_seconds=600) as a:
        until(a, lambda status: status.rounds == 1)
        for number in range(50):
            a.execute(WRITE, [1, f"{number}"])
        until(b, lambda status: status.applied == 50)
        assert len(told(b)) == 50


# --- identity and life --------------------------------------------------------------------------------------------


def test_a_node_keeps_its_name_and_its_outbox(absent: Broker, tmp_path: Path) -> None:
    broker = absent
    with node(broker.url, "a", tmp_path / "a") as db:
        db.execute(WRITE, [1, "x"])
        with pytest.raises(Conflict, match="replicates already"):
            db.replicate(broker.url)
    with database(tmp_path / "a") as db:
        assert db.replication.status().pending == 1
        assert db.replication.status().node_id == "a"
        with pytest.raises(NodeMismatch):
            db.replicate(broker.url, node_id="other")
        broker.start()
        db.replicate(broker.url)
        until(db, lambda status: status.pending == 0 and status.published == 1)


@pytest.mark.parametrize("clock", [None, FakeClock(0)], ids=["with a clock", "without a clock"])
def test_a_node_whose_disk_is_lost_gets_everything_back_and_goes_on(broker: Broker, clock: FakeClock | None) -> None:
    options = {} if clock is None else {"clock": clock}
    with node(broker.url, "b") as b:
        with node(broker.url, "a", **options) as a:
            a.execute(WRITE, [1, "published"])
            until(b, lambda status: status.applied == 1)
            before = a.replication.identity()
        with node(broker.url, "a", **(options or {"clock": lambda: time.time_ns() // 10**6 + 1_000})) as a:
            assert a.replication.identity() != before
            a.execute(WRITE, [2, "right away"])
            until(a, lambda _: _equal(a, b))
            assert notes(a) == [(1, "published"), (2, "right away")]
        assert b.replication.status().seen == 0, "no new event has an old number"


def test_the_status_of_the_outbox(absent: Broker) -> None:
    with node(absent.url, "a") as a:
        assert a.replication.outbox_status() == (0, False, None)
        a.execute(WRITE, [1, "waits"])
        assert a.replication.outbox_status() == (1, False, None)
        began_ms = time.time_ns() // 10**6
        absent.start()
        until(a, lambda status: status.pending == 0)
        pending, online, last_flush_ms = a.replication.outbox_status()
        assert (pending, online) == (0, True)
        assert last_flush_ms is not None
        assert began_ms <= last_flush_ms <= time.time_ns() // 10**6
        [shown] = a.query("SELECT pending, online, epoch_ms(last_flush) FROM system.replication").rows
        assert shown == (0, True, last_flush_ms)
    with database() as alone:
        assert alone.replication.outbox_status() == (0, False, None)


def test_settings_that_make_no_sense_are_refused_and_leave_nothing_behind() -> None:
    with database() as db:
        for wrong in (
            {"url": "http://broker"},
            {"prefix": "a/#"},
            {"overflow": "forget"},
            {"outbox_events": 0},
            {"compare_seconds": 0},
            {"node_id": "no/slash"},
            {"url": "mqtts://127.0.0.1", "ca_file": "/does/not/exist"},
        ):
            with pytest.raises(InvalidRequest):
                db.replicate(**({"url": "mqtt://127.0.0.1"} | wrong))
        assert db.replication.carrier is None


def test_a_stream_of_statuses_ends_when_the_node_stops(broker: Broker) -> None:
    with node(broker.url, "a") as a:
        until(a, lambda status: status.online)
        stream = a.replication.watch()
        assert next(stream).online
    assert all(status.online for status in stream)
