"""Kills a streaming query at everything it runs on, many times, and examines what it wrote.

    python tests/spark/kill_loop.py --kills 20 [--seed 1] [--keep DIRECTORY]

A publisher inserts, updates and deletes rows of app.given, whose changes are on app.asked. A Spark query turns each of
them into one change of app.made, whose changes are on app.told. Meanwhile the server, the driver and the Python workers
of the executors are killed in turns, in an order and at distances that the seed decides; once, the last entry of the
checkpoint's commit log is removed while the driver is dead, so that a batch that was committed is run again.

In the end app.made must be the fold of app.asked, and app.told must tell of every row the very same changes in the same
order, each once.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from processes import PASSWORD, Driver, Server, until

import tablecast
from tablecast import Client, Message, Retry, Start, StartKind
from tablecast.engine.verify import verify_engine
from tablecast.testing.history import History, Recorder, TopicRule, check

GIVEN, ASKED, MADE, TOLD = "app.given", "app.asked", "app.made", "app.told"
SCHEMA = f"""
CREATE NAMESPACE app;
CREATE TABLE {GIVEN} (id BIGINT PRIMARY KEY, n BIGINT NOT NULL, word TEXT);
CREATE TABLE {MADE} (id BIGINT PRIMARY KEY, twice BIGINT NOT NULL, word TEXT);
CREATE TOPIC {ASKED} PARTITIONS 2;
CREATE TOPIC {TOLD} PARTITIONS 2;
ALTER TOPIC {ASKED} ADD SOURCE {GIVEN} ON ANY WITH (payload = 'full');
ALTER TOPIC {TOLD} ADD SOURCE {MADE} ON ANY WITH (payload = 'full');
"""
PATIENT = Retry(attempts=100_000, backoff_seconds=0.02, max_backoff_seconds=0.25, total_seconds=300.0)
KEYS = 200
ROWS_OF_WRITE = 12
PACE_SECONDS = 0.08  # between two writes: the stream is to be killed at work, not to be raced
VICTIMS = ("server", "driver", "worker")
FEWEST_MESSAGES, MOST_MESSAGES = 20, 150  # that arrive between two kills
LONGEST_DELAY_SECONDS = 0.4  # from then to the kill, so that it falls anywhere in a batch
END_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Lived:
    kills: dict[str, int]
    messages: int
    batches_failed: int
    replayed: bool  # the checkpoint's last commit was forgotten once
    seconds: float


class Publisher(threading.Thread):
    """Changes rows of app.given until it is told to stop. Every write has a number of its own, column n."""

    def __init__(self, client: Client, seed: int) -> None:
        super().__init__(name="publisher")
        self._client, self._rng, self._over = client, random.Random(f"publisher {seed}"), threading.Event()
        self._numbers = itertools.count(1)
        self._present: set[int] = set()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.wait(PACE_SECONDS):
                self._write()
        except BaseException as failure:
            self.failure = failure

    def stop(self) -> None:
        self._over.set()
        self.join()
        if self.failure is not None:
            raise self.failure

    def _write(self) -> None:
        keys = self._rng.sample(range(KEYS), self._rng.randint(1, ROWS_OF_WRITE))
        if self._rng.random() < 0.2:
            gone = [key for key in keys if key in self._present]
            if gone:
                self._client.insert(GIVEN, [{"id": key} for key in gone], mode="delete")
                self._present.difference_update(gone)
            return
        rows = [{"id": key, "n": next(self._numbers), "word": self._rng.choice(["a", "bé", None])} for key in keys]
        self._client.insert(GIVEN, rows, mode="upsert")
        self._present.update(keys)


class Life:
    """One database, one checkpoint, and everything that works on them."""

    def __init__(self, home: Path, seed: int) -> None:
        self._rng = random.Random(f"kills {seed}")
        self._checkpoint = home / "checkpoint"
        self.server = Server(home)
        self.driver = Driver("stream_driver.py", self.server.url, str(self._checkpoint), log=home / "driver.log")
        self.kills = dict.fromkeys(VICTIMS, 0)
        self.replayed = False

    def kill(self, victim: str) -> None:
        getattr(self, f"_kill_{victim}")()
        self.kills[victim] += 1

    def _kill_server(self) -> None:
        self.server.restart()

    def _kill_driver(self) -> None:
        self.driver.kill()
        if not self.replayed:
            self.replayed = self._forget_last_commit()
        self.driver.start()

    def _kill_worker(self) -> None:
        pid = until("a Python worker runs", lambda: self._rng.choice(self.driver.workers() or [0]))
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended meanwhile, as workers do

    def _forget_last_commit(self) -> bool:
        entries = [path for path in (self._checkpoint / "commits").glob("*") if path.name.isdigit()]
        if not entries:
            return False
        last = max(entries, key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        return True

    def random_delay(self) -> None:
        time.sleep(self._rng.uniform(0, LONGEST_DELAY_SECONDS))  # not waiting for anything: the moment is to be random

    def order(self, kills: int) -> list[str]:
        """Each victim as often as its turn comes, the driver least, because its start takes longest; then shuffled."""
        turns = list(itertools.islice(itertools.cycle(("driver", "worker", "server", "worker", "server")), kills))
        self._rng.shuffle(turns)
        return turns

    def further(self) -> int:
        return self._rng.randint(FEWEST_MESSAGES, MOST_MESSAGES)


def live(home: Path, seed: int, kills: int, tell: Any = lambda text: None) -> Lived:
    """Raises AssertionError if a promise was broken."""
    home.mkdir(parents=True, exist_ok=True)
    began, life = time.monotonic(), Life(home, seed)
    with life.server, _client(life.server) as client:
        client.execute_all(SCHEMA)
        publisher = Publisher(client, seed)
        with life.driver:
            publisher.start()
            try:
                _kill_all(life, client, kills, tell)
            finally:
                publisher.stop()
            _caught_up(client)
        messages = _examine(client)
        life.server.end()
    _examine_closed(life.server.data)
    failed = life.driver.log.read_text().count("\nfailed ")
    return Lived(life.kills, messages, failed, life.replayed, time.monotonic() - began)


def live_through(server: Server, driver: Driver, seed: int, strike: Callable[[], None]) -> int:
    """A stream that is struck once in the midst of its work, while a publisher runs. `server` runs already, and is ended.
    Returns how many changes there were; raises AssertionError if a promise was broken."""
    with _client(server) as client:
        client.execute_all(SCHEMA)
        publisher = Publisher(client, seed)
        with driver:
            publisher.start()
            try:
                _told(client, MOST_MESSAGES)
                strike()
                _told(client, MOST_MESSAGES)
            finally:
                publisher.stop()
            _caught_up(client)
        messages = _examine(client)
        server.end()
    _examine_closed(server.data)
    return messages


def _client(server: Server) -> Client:
    return tablecast.connect(server.url, user="system", password=PASSWORD, retry=PATIENT)


def _kill_all(life: Life, client: Client, kills: int, tell: Any) -> None:
    for number, victim in enumerate(life.order(kills), 1):
        _told(client, life.further())
        life.random_delay()
        life.kill(victim)
        tell(f"{number}/{kills} {victim}")
    if not life.replayed:
        life.kill("driver")


def _told(client: Client, further: int) -> None:
    aim = _ends(client)[TOLD] + further
    until(f"{aim} messages are told", lambda: _ends(client)[TOLD] >= aim, END_SECONDS)


def _ends(client: Client) -> dict[str, int]:
    rows = client.query("SELECT topic, sum(end_offset) FROM system.topic_partitions GROUP BY topic").rows
    return {topic: int(end) for topic, end in rows}


def _caught_up(client: Client) -> None:
    asked = _ends(client)[ASKED]
    until(f"all {asked} changes are told", lambda: _ends(client)[TOLD] >= asked, END_SECONDS)


# --- what is there ------------------------------------------------------------------------------------------------


def _examine(client: Client) -> int:
    asked, told = _messages(client, ASKED), _messages(client, TOLD)
    assert len(told) == len(asked)
    assert _stories(told, "twice") == {
        key: [_made(step) for step in story] for key, story in _stories(asked, "n").items()
    }
    rows = client.query(f"SELECT id, n, word FROM {GIVEN} ORDER BY id").rows
    made = client.query(f"SELECT id, twice, word FROM {MADE} ORDER BY id").rows
    assert made == [(key, n * 2, word and word.upper()) for key, n, word in rows]
    _check_history(client, asked, told)
    return len(asked)


def _stories(messages: list[Message], number: str) -> dict[int, list[tuple[str, int, str | None]]]:
    """What happened to each row, in order."""
    found: dict[int, list[tuple[str, int, str | None]]] = defaultdict(list)
    for message in messages:
        row = msgspec.json.decode(message.payload)
        found[int(row["id"])].append((message.op.label, int(row[number]), row["word"]))
    return dict(found)


def _made(step: tuple[str, int, str | None]) -> tuple[str, int, str | None]:
    op, n, word = step
    return op, n * 2, word and word.upper()


def _messages(client: Client, topic: str) -> list[Message]:
    """Partition after partition; all changes of a row are in one."""
    return [message for partition in range(2) for message in _whole(client, topic, partition)]


def _whole(client: Client, topic: str, partition: int) -> Iterator[Message]:
    start, has_more = tablecast.EARLIEST, True
    while has_more:
        found = client.consume(topic, start=start, partition=partition, limit=10_000)
        yield from found.messages
        start, has_more = Start(StartKind.OFFSET, found.next_offset or 0), found.has_more


def _check_history(client: Client, asked: list[Message], told: list[Message]) -> None:
    """The history checker's judgement: each message of app.asked is a write of app.made. Which commit took it in, the
    message at its place in the row's story tells."""
    recorder, answers = Recorder(), _by_row(told)
    commits: dict[int, list[str]] = defaultdict(list)
    for message in asked:
        row = msgspec.json.decode(message.payload)
        write_id = f"{message.partition_id}:{message.offset}"
        made = {"id": int(row["id"]), "twice": int(row["n"]) * 2, "word": row["word"] and row["word"].upper()}
        recorder.invoke(write_id, MADE, message.op.label, [made["id"]], made)
        commits[next(answers[made["id"]]).seq].append(write_id)
    for seq, write_ids in sorted(commits.items()):
        recorder.ok(*write_ids, seq=seq)
    recorder.saw_topic(TOLD, told)
    recorder.saw_table(MADE, client.query(f"SELECT *, _seq FROM {MADE}").dicts(), ["id"])
    rules = {TOLD: TopicRule(lambda write: write.table == MADE, folds=(MADE,))}
    report = check(History(recorder.history().events), routes=rules)
    report.raise_if_bad()
    figures = report.topics[TOLD]
    assert (figures.coverage_percent, figures.duplication, figures.gaps) == (100.0, 1, 0)


def _by_row(messages: list[Message]) -> dict[int, Iterator[Message]]:
    found: dict[int, list[Message]] = defaultdict(list)
    for message in messages:
        found[int(msgspec.json.decode(message.payload)["id"])].append(message)
    return {key: iter(story) for key, story in found.items()}


def _examine_closed(data: Path) -> None:
    with tablecast.open(data) as db:
        assert verify_engine(db.engine).problems == []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--keep", type=Path, help="where the database and the logs go (default: a temporary directory)")
    given = parser.parse_args()
    home = given.keep or Path(tempfile.mkdtemp(prefix="tablecast-spark-kills-"))

    def tell(text: str) -> None:
        print(text, flush=True)  # noqa: T201

    tell(f"seed {given.seed}, everything in {home}")
    lived = live(home, given.seed, given.kills, tell)
    tell(
        f"{sum(lived.kills.values())} kills ({', '.join(f'{n} of the {what}' for what, n in lived.kills.items())}) in "
        f"{lived.seconds:.0f} s: {lived.messages:,} changes, each made once and told once; {lived.batches_failed} "
        f"times the query failed and began again; the last commit forgotten once: {lived.replayed}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
