"""Three nodes, a broker and bad luck, for real: processes that are killed, mosquitto, links through proxies.

What `simulation` does in memory and in virtual time with thousands of seeds, this does with what users run. Nodes write to
the same few rows with clocks up to an hour apart; nodes are killed, the broker is killed (which loses its sessions) or
stopped (which keeps them), links are cut, and somebody sends old events again, in any order. Then it is quiet, and all
replicas must be equal, tombstones included; every row must be of its greatest acknowledged version; no change may be
twice on a topic.

    python tests/edge/struggle.py --runs 50 [--first 0]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Self

import paho.mqtt.client as mqtt
from cut_proxy import CutProxy
from edge_nodes import EVENTS
from mqtt_broker import Broker
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.subscribeoptions import SubscribeOptions
from struggle_child import ROWS, TABLE

CHILD = Path(__file__).with_name("struggle_child.py")
NAMES = ("ant", "bee", "cat")
SKEW_MS = 3_600_000
STEPS = 60
QUIET_SECONDS = 120.0  # a bound for the end, not a measure: all are equal long before

Version = tuple[Any, ...]


class NodeProcess:
    def __init__(self, name: str, folder: Path, broker_port: int, skew_ms: int) -> None:
        self.name = name
        self.proxy = CutProxy(broker_port)
        self._arguments = [str(folder / name), self.proxy.url, name, str(skew_ms)]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.proxy.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.proxy.__exit__()

    @property
    def is_up(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        if self._process is None:
            command = [sys.executable, str(CHILD), *self._arguments]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{self.name} ended by itself"
        found: dict[str, Any] = json.loads(line)
        return found


class Repeater:
    """Hears all events and sends some of them again, in any order."""

    def __init__(self, port: int, random: Random) -> None:
        self._random, self._port = random, port
        self._heard: list[bytes] = []
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, "repeater", protocol=mqtt.MQTTv5)
        self._client.on_connect = lambda client, *_: client.subscribe(
            EVENTS, options=SubscribeOptions(qos=1, noLocal=True)
        )
        self._client.on_message = lambda _, __, message: self._heard.append(bytes(message.payload))
        self._client.reconnect_delay_set(1, 1)

    def __enter__(self) -> Self:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def repeat(self) -> None:
        for payload in self._random.sample(self._heard, min(len(self._heard), 10)):
            self._client.publish(EVENTS, payload, qos=1)


class Struggle:
    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self._random = Random(seed)
        self._broker = Broker(folder)
        self._broker_is_up = True
        self._nodes = [NodeProcess(name, folder, self._broker.port, self._skew()) for name in NAMES]
        self._repeater = Repeater(self._broker.port, Random(seed))
        self._later: list[tuple[int, Callable[[], None]]] = []  # what is mended, and at which step
        self.writes: list[tuple[int, str | None, Version]] = []
        self.kills = 0

    def _skew(self) -> int:
        return self._random.choice((0, self._random.randint(-SKEW_MS, SKEW_MS)))

    def run(self) -> None:
        with ExitStack() as stack:
            self._broker.start()
            stack.callback(self._broker.kill)
            stack.enter_context(self._repeater)
            for node in self._nodes:
                stack.enter_context(node).start()
            for step in range(STEPS):
                self._mend(step)
                self._step(step)
            self._mend(None)
            self._check(self._quiet())

    # --- bad luck ---

    def _step(self, step: int) -> None:
        node, roll = self._random.choice(self._nodes), self._random.random()
        if roll < 0.75:
            self._write(node, step)
        elif roll < 0.83:
            self._kill(node, step)
        elif roll < 0.9:
            node.proxy.cut()
            self._after(step, node.proxy.heal)
        elif roll < 0.95:
            self._repeater.repeat()
        elif self._broker_is_up:
            self._broker_is_up = False
            (self._broker.kill if self._random.random() < 0.5 else self._broker.stop)()
            self._after(step, self._start_broker)

    def _write(self, node: NodeProcess, step: int) -> None:
        for some in range(self._random.choice((1, 1, 5, 20)) if node.is_up else 0):
            row, deletes = self._random.randrange(ROWS), self._random.random() < 0.25
            body = None if deletes else f"{node.name}-{step}-{some}"
            version = node.ask("write", row=row, body=body)["version"]
            if version is not None and version[1] == node.name:  # else somebody's later one was there already
                self.writes.append((row, body, tuple(version)))

    def _kill(self, node: NodeProcess, step: int) -> None:
        if node.is_up:
            node.kill()
            self.kills += 1
            self._after(step, node.start)

    def _start_broker(self) -> None:
        self._broker.start()
        self._broker_is_up = True

    def _after(self, step: int, mended: Callable[[], None]) -> None:
        self._later.append((step + self._random.randint(1, 12), mended))

    def _mend(self, step: int | None) -> None:
        due = [mended for at, mended in self._later if step is None or at <= step]
        self._later = [(at, mended) for at, mended in self._later if step is not None and at > step]
        for mended in due:
            mended()

    # --- what must be so ---

    def _quiet(self) -> dict[str, Any]:
        """What all of them have, once they have the same and nothing waits to be sent."""
        deadline = time.monotonic() + QUIET_SECONDS
        while True:
            looks = [node.ask("look") for node in self._nodes]
            if len({json.dumps(look) for look in looks}) == 1 and not looks[0]["pending"]:
                return looks[0]
            assert time.monotonic() < deadline, f"seed {self.seed}: replicas differ: {looks}"
            time.sleep(0.05)

    def _check(self, found: dict[str, Any]) -> None:
        rows, versions = dict(found["rows"]), {key: tuple(version) for key, version, _ in found["entries"]}
        best: dict[int, tuple[str | None, Version]] = {}
        for row, body, version in self.writes:
            if row not in best or version > best[row][1]:
                best[row] = body, version
        for row, (body, version) in best.items():
            last = versions[f"{TABLE}:{row}"]
            # A write whose answer a kill took may be there too: acknowledged ones may be beaten, and not lost.
            assert last >= version, f"seed {self.seed}: row {row} lost {version}, it has {last}"
            assert last != version or rows.get(row) == body, f"seed {self.seed}: row {row} is not {body!r}"
        for node in self._nodes:
            said = node.ask("told")
            assert not said["problems"], f"seed {self.seed}: {node.name}: {said['problems']}"
            twice = [payload for payload, count in Counter(said["told"]).items() if count > 1]
            assert not twice, f"seed {self.seed}: twice on a topic of {node.name}: {twice}"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=50)
    arguments.add_argument("--first", type=int, default=0)
    given = arguments.parse_args()
    writes = kills = 0
    for seed in range(given.first, given.first + given.runs):
        with tempfile.TemporaryDirectory(prefix="tablecast-struggle-") as folder:
            struggle = Struggle(seed, Path(folder))
            struggle.run()
        writes += len(struggle.writes)
        kills += struggle.kills
        sys.stdout.write(f"seed {seed}: equal ({writes:,} acknowledged writes, {kills} killed nodes so far)\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
