"""A node that runs: its loop, its link and its thread. `replicate` starts one for a database that is open.

The thread is the node's own: applying events and reading the outbox wait for the disk now and then, and must keep nobody
else waiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace

from tablecast.client.retry import chance
from tablecast.edge.address import BrokerAddress, parse_address
from tablecast.edge.link import MqttLink
from tablecast.edge.node import EdgeNode, EdgeSettings, outfit
from tablecast.edge.replica import EngineReplica
from tablecast.edge.status import EdgeObserver, StatusBoard
from tablecast.engine.engine import Engine
from tablecast.errors import Conflict, TablecastError
from tablecast.model.replication_status import ReplicationStatus


def replicate(
    engine: Engine,
    url: str,
    *,
    node_id: str | None = None,
    settings: EdgeSettings | None = None,
    ca_file: str = "",
    observer: EdgeObserver | None = None,
) -> EdgeService:
    """Begins to mirror the replicated tables through the broker at `url`, until `stop`.

    `node_id` is given once and kept; without one the database keeps its own or makes one up. Raises NodeMismatch if it has
    another one. A broker that is away is no error: it is tried again.
    """
    if engine.replication.carrier is not None:
        raise Conflict("this database replicates already: stop that first")
    address = parse_address(url)
    node = engine.replication.claim_identity(node_id)
    service = EdgeService(engine, node.node_id, address, settings or EdgeSettings(), ca_file)
    if observer is not None:
        service.observe(observer)
    service.start()
    return service


class EdgeService:
    """Safe to use from any thread."""

    def __init__(
        self, engine: Engine, node_id: str, address: BrokerAddress, settings: EdgeSettings, ca_file: str
    ) -> None:
        self._engine = engine
        self._board = StatusBoard(engine.now_ms, ReplicationStatus(node_id, broker=str(address)))
        self._loop = asyncio.new_event_loop()
        try:
            self._link = MqttLink(address, outfit(settings.prefix, node_id), self._loop, chance.random, ca_file=ca_file)
        except TablecastError:
            self._loop.close()
            raise
        replica = EngineReplica(engine, self._loop)
        self._node = EdgeNode(replica, self._link, self._loop, chance.random, settings, self._board)
        self._stop_hearing = replica.on_growth(self._node.publisher.woken), replica.on_set_aside(self._board.unsendable)
        self._thread = threading.Thread(target=self._run, name="tablecast-edge", daemon=True)

    def observe(self, observer: EdgeObserver) -> None:
        self._board.observer = observer

    def start(self) -> None:
        self._engine.replication.carrier = self
        self._thread.start()

    def status(self) -> ReplicationStatus:
        replication = self._engine.replication
        return replace(
            self._board.status,
            sequence=replication.sequence(),
            pending=replication.pending(),
            given_up=replication.dropped(),
        )

    def watch(self) -> Iterator[ReplicationStatus]:
        """The status now, and again whenever it has changed, until the node stops."""
        for _ in self._board.watch():
            yield self.status()

    def stop(self) -> None:
        """Ends the node. What was not published stays in the outbox. Idempotent."""
        if self._engine.replication.carrier is not self:
            return
        self._engine.replication.carrier = None
        self._engine.replication.block_above = None
        for stop_hearing in self._stop_hearing:
            stop_hearing()
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join()
        self._board.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._node.start)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _end(self) -> None:
        self._link.close()
        self._loop.stop()
