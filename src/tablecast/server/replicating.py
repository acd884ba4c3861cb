"""Replication while the server runs, if the settings name a broker. MQTT is imported only then."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tablecast.engine.engine import Engine
from tablecast.errors import InvalidRequest
from tablecast.server.metrics import Metrics
from tablecast.server.settings import Settings

_log = logging.getLogger("tablecast.serve")


@contextmanager
def replicating(engine: Engine, settings: Settings, metrics: Metrics) -> Iterator[None]:
    if not settings.mqtt:
        yield
        return
    try:
        from tablecast.edge.node import EdgeSettings
        from tablecast.edge.service import replicate
    except ModuleNotFoundError as error:
        message = f"mqtt needs a package that is not installed ({error.name}): pip install 'tablecast[mqtt]'"
        raise InvalidRequest(message, setting="mqtt", package=error.name) from error
    chosen = EdgeSettings(
        prefix=settings.mqtt_prefix,
        overflow=settings.mqtt_overflow,
        outbox_events=settings.mqtt_outbox_events,
        compare_seconds=settings.mqtt_compare_seconds,
    )
    service = replicate(
        engine,
        settings.mqtt,
        node_id=settings.node_id or None,
        settings=chosen,
        ca_file=settings.mqtt_ca,
        observer=metrics,
    )
    status = service.status()
    _log.info("node %s replicates through %s", status.node_id, status.broker)
    try:
        yield
    finally:
        service.stop()
