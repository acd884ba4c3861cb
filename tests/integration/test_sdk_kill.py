"""Processes that die: a consumer in the middle of a batch, a server in the middle of a batch and of many writes.

Real processes, killed without notice. At least once means: whatever died, every message is handled; exactly once in the
log means: however often a write was sent, it is there once.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from server_fixture import PASSWORD, ServerProcess, kept_port

from tablecast import EARLIEST, AsyncClient, Client, Message, Retry, connect, connect_async

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.jobs (id INT PRIMARY KEY);
CREATE TABLE app.log (id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), what TEXT);
CREATE TOPIC app.work;
ALTER TOPIC app.work ADD SOURCE app.jobs ON INSERT;
CREATE TOPIC app.told;
ALTER TOPIC app.told ADD SOURCE app.log ON ANY;
"""
JOBS = 40
STUCK_AT = 7  # the message at which something dies
PATIENT = Retry(attempts=1000, backoff_seconds=0.05, max_backoff_seconds=0.2, total_seconds=120)

WORKER = """
import signal, sys, threading
from tablecast import connect

url, password, stuck_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
with connect(url, user="system", password=password) as client:
    consumer = client.consumer("app.work", "g", name="worker")
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())

    def handle(message):
        print(message.offset, flush=True)
        if message.offset == stuck_at:
            sys.stdin.readline()

    consumer.run(handle)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as running:
        running.sql(SETUP)
        yield running


def jobs(client: Client) -> None:
    client.insert("app.jobs", [(n,) for n in range(JOBS)])


@contextmanager
def worker(server: ServerProcess) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A consumer in a process of its own, stuck in a handler, and what it has handled until then."""
    command = [sys.executable, "-c", WORKER, server.url, PASSWORD, str(STUCK_AT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            handled: list[int] = []
            for line in process.stdout:
                handled.append(int(line))
                if handled[-1] == STUCK_AT:
                    break
            yield process, handled
        finally:
            process.kill()


def test_a_consumer_that_is_killed_in_the_middle_of_a_batch(server: ServerProcess) -> None:
    with connect(server.url, user="system", password=PASSWORD) as client:
        jobs(client)
        with worker(server) as (process, before):
            process.kill()
            process.wait()
        assert before == list(range(STUCK_AT + 1))
        after: list[tuple[int, int]] = []
        heir = client.consumer("app.work", "g", name="worker")
        assert heir.run(lambda m: after.append((m.offset, m.delivery)), until_idle=True) == JOBS
        assert after == [(offset, 2) for offset in range(JOBS)], (
            "none of the batch was acknowledged: all of it comes again"
        )


def test_a_consumer_that_is_asked_to_end_finishes_what_it_has_at_hand(server: ServerProcess) -> None:
    with connect(server.url, user="system", password=PASSWORD) as client:
        jobs(client)
        with worker(server) as (process, before):
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(input="\n", timeout=60)
            assert process.returncode == 0
        assert before == list(range(STUCK_AT + 1))
        assert rest == "", "no message after the one at hand"
        after: list[int] = []
        client.consumer("app.work", "g", name="another").run(lambda m: after.append(m.offset), until_idle=True)
        assert after == list(range(STUCK_AT + 1, JOBS)), "acknowledged what was done, gave the rest back"


def test_a_server_that_is_killed_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    """The consumer waits, goes on with the next life of the server, and repeats nothing that it did."""
    with kept_port() as port, ServerProcess(tmp_path / "data", "--port", str(port)) as first:
        first.sql(SETUP)
        with (
            connect(first.url, user="system", password=PASSWORD, retry=PATIENT) as client,
            ThreadPoolExecutor(1) as pool,
        ):
            jobs(client)
            handled: Counter[int] = Counter()
            reached, go_on = threading.Event(), threading.Event()
            consumer = client.consumer("app.work", "g", batch=15)

            def handle(message: Message) -> None:
                handled[message.offset] += 1
                if message.offset == STUCK_AT:
                    reached.set()
                    go_on.wait(60)
                if len(handled) == JOBS:
                    consumer.stop()

            running = pool.submit(consumer.run, handle)
            assert reached.wait(60)
            first.kill()
            with ServerProcess(tmp_path / "data", "--port", str(port)) as second:
                go_on.set()
                assert running.result(120) == JOBS
                assert handled == dict.fromkeys(range(JOBS), 1)
                assert client.query("SELECT lag FROM system.topic_groups WHERE topic = 'app.work'").scalar() == 0
                assert second.port == first.port


def test_writes_are_there_once_whatever_happened_to_their_answers(tmp_path: Path) -> None:
    """The server is killed again and again under writers: each write is repeated until it is answered, with one key."""
    writers, each = 40, 8

    async def write(client: AsyncClient, name: int, progress: asyncio.Semaphore) -> None:
        for number in range(each):
            text = f"{name}/{number}"
            if number % 2:
                await client.execute("INSERT INTO app.log (what) VALUES (?)", [text])
            else:
                await client.insert("app.log", [{"what": text}])
            progress.release()

    async def life(port: int) -> None:
        server = ServerProcess(tmp_path / "data", "--port", str(port))
        await asyncio.to_thread(server.sql, SETUP)
        progress = asyncio.Semaphore(0)
        async with await connect_async(server.url, user="system", password=PASSWORD, retry=PATIENT) as client:
            tasks = [asyncio.create_task(write(client, name, progress)) for name in range(writers)]
            for _ in range(3):
                for _ in range(writers * each // 5):
                    await progress.acquire()
                await asyncio.to_thread(server.kill)
                server = await asyncio.to_thread(ServerProcess, tmp_path / "data", "--port", str(port))
            with server:
                await asyncio.gather(*tasks)
                rows = await client.query("SELECT what FROM app.log")
                told = (await client.consume("app.told", start=EARLIEST, limit=1000)).messages
                expected = {f"{name}/{number}" for name in range(writers) for number in range(each)}
                assert Counter(what for (what,) in rows) == dict.fromkeys(expected, 1)
                assert Counter(message.value["what"] for message in told) == dict.fromkeys(expected, 1)

    with kept_port() as port:
        asyncio.run(asyncio.wait_for(life(port), 240))
