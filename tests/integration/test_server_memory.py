"""A server gives back what it no longer needs: see `tablecast.server.allocator`, whose habits are those of glibc."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from server_fixture import PASSWORD, ServerProcess

from tablecast.engine.passwords import MEMORY_KIB
from tablecast.server.allocator import ARENAS, GIVE_BACK_SECONDS, giving_back

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="arenas are glibc's")

HASH_MB = MEMORY_KIB * 2**10 / 1e6
ARENA_BYTES = 64 * 2**20  # that an arena reserves at once, at a multiple of itself
CALLERS = 24
MAPPED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ 00:00 0 *$")
RESIDENT = """
import os
from pathlib import Path

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
"""
SIGN_INS = (
    RESIDENT
    + """
import threading
from tablecast.engine.passwords import hash_password
from tablecast.server.allocator import bound_free_memory

def sign_in():
    all_there.wait()  # each has an arena of its own, if it may: one that has ended would leave its arena to the next
    for _ in range(3):
        hash_password("correct horse battery")
        kept.append(bytes(3_000))  # what comes later lies above what is freed

kept, all_there = [], threading.Barrier(8)
bound_free_memory()
before = resident_mb()
threads = [threading.Thread(target=sign_in) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(resident_mb() - before)
"""
)

HOLES = (
    RESIDENT
    + """
from tablecast.server.allocator import give_back

blocks = [bytes(15_000) for _ in range(8_000)]
del blocks[::2]  # 60 MB, in holes between those that stay
before = resident_mb()
give_back()
print(before - resident_mb())
"""
)


def unchosen() -> dict[str, str]:
    """The environment without what whoever runs the tests may have told glibc."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}


def said_mb(script: str, **variables: str) -> float:
    """What a process measures of itself."""
    command = [sys.executable, "-c", script]
    return float(subprocess.run(command, env=unchosen() | variables, check=True, capture_output=True, text=True).stdout)


def arenas(pid: int) -> int:
    """Beside the main one, which lies elsewhere: what is used of each, and the rest of its room, which is not."""
    found, mapped = 0, [MAPPED.match(line) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    for used, room in pairwise(mapped):
        if used and room and used[2] == room[1] and (used[3], room[3]) == ("rw-p", "---p"):
            start, end = int(used[1], 16), int(room[2], 16)
            found += start % ARENA_BYTES == 0 and end - start == ARENA_BYTES
    return found


def test_what_sign_ins_took_goes_back() -> None:
    assert said_mb(SIGN_INS) < HASH_MB / 2


@pytest.mark.parametrize("chosen", [{"MALLOC_ARENA_MAX": "8"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=8"}], ids=str)
def test_whoever_chose_otherwise_is_not_overruled(chosen: dict[str, str]) -> None:
    assert said_mb(SIGN_INS, **chosen) > HASH_MB


def test_holes_between_what_stays_are_given_back() -> None:
    """Two pages of the four or five that a hole lies in are free all through, at the least."""
    assert said_mb(HOLES) > 30


def test_it_is_done_now_and_then() -> None:
    paused: list[float] = []

    async def run() -> None:
        over = asyncio.Event()

        async def pause(seconds: float) -> None:
            paused.append(seconds)
            if len(paused) > 3:
                over.set()
                await asyncio.Event().wait()  # until it is cancelled

        async with giving_back(pause):
            await over.wait()
        assert len(asyncio.all_tasks()) == 1, "it ends with its block"

    asyncio.run(run())
    assert paused == [GIVE_BACK_SECONDS] * 4


def test_a_server_has_few_arenas_however_many_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(unchosen()):
        monkeypatch.delenv(name)
    with ServerProcess(tmp_path / "db") as server:
        server.sql("CREATE NAMESPACE app; CREATE TABLE app.orders (id INT PRIMARY KEY)")
        for number in range(CALLERS):
            server.sql(f"CREATE USER 'caller{number}' WITH PASSWORD '{PASSWORD}' ROLE 'service'")

        def call(number: int) -> None:
            for turn in range(5):
                sql = f"INSERT INTO app.orders VALUES ({number * 5 + turn}); SELECT count(*) FROM app.orders"
                assert server.post("/sql", {"sql": sql}, user=f"caller{number}").status == 200

        callers = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert server.sql("SELECT count(*) FROM app.orders")[0]["rows"] == [[str(5 * CALLERS)]]
        assert arenas(server.pid) < ARENAS
