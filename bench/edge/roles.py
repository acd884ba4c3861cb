"""Who sends and who receives, each in a process of its own: two databases, or paho and nothing else.

The broker keeps what comes for a database that is away, so each round has a prefix of its own.

Every role puts the time at which its part began or ended into a queue; the clock is the machine's, the same for all.
"""

from __future__ import annotations

import time
from multiprocessing.queues import Queue
from threading import Event

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.subscribeoptions import SubscribeOptions

import tablecast

TOPIC = "bare/replication/events"
WINDOW = 100  # publications in flight, as the publisher has by default
NEVER_SECONDS = 100_000.0
UNLIMITED = 10**9
SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.readings (id BIGINT PRIMARY KEY, sensor TEXT, value DOUBLE, unit TEXT) WITH (REPLICATE = TRUE);
"""

Times = Queue  # of float


def bare_receiver(port: int, count: int, times: Times[float]) -> None:
    client = _client("bare-receiver")
    left, all_here = [count], Event()

    def arrived(client: Client, userdata: object, message: MQTTMessage) -> None:
        left[0] -= 1
        if not left[0]:
            times.put(time.perf_counter())
            all_here.set()

    client.on_message = arrived
    client.on_subscribe = lambda *_: times.put(time.perf_counter())  # ready
    client.connect("127.0.0.1", port)
    client.subscribe(TOPIC, options=SubscribeOptions(qos=1))
    client.loop_start()
    all_here.wait()
    client.disconnect()
    client.loop_stop()


def bare_sender(port: int, events: list[bytes], times: Times[float]) -> None:
    client = _client("bare-sender")
    client.max_inflight_messages_set(WINDOW)
    connected = Event()
    client.on_connect = lambda *_: connected.set()
    client.connect("127.0.0.1", port)
    client.loop_start()
    connected.wait()
    times.put(time.perf_counter())
    for event in events:
        last = client.publish(TOPIC, event, qos=1)
    last.wait_for_publish()
    client.disconnect()
    client.loop_stop()


def our_receiver(path: str, port: int, prefix: str, count: int, times: Times[float]) -> None:
    with tablecast.open(path) as db:
        db.execute_all(SCHEMA)
        db.replicate(_url(port), node_id="receiver", prefix=prefix, compare_seconds=NEVER_SECONDS)
        ready = False
        for status in db.replication.watch():
            if status.online and not ready:
                ready = True
                times.put(time.perf_counter())
            if status.applied == count:
                times.put(time.perf_counter())
                return


def our_sender(path: str, port: int, prefix: str, times: Times[float], may_end: Event) -> None:
    with tablecast.open(path) as db:
        db.replicate(
            _url(port), node_id="sender", prefix=prefix, compare_seconds=NEVER_SECONDS, outbox_events=UNLIMITED
        )
        for status in db.replication.watch():
            if status.online:
                break
        times.put(time.perf_counter())
        may_end.wait()


def _url(port: int) -> str:
    return f"mqtt://127.0.0.1:{port}"


def _client(name: str) -> Client:
    return Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
