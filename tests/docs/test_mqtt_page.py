"""docs/mqtt.md and docs/formats/sync.md are true: topics, numbers, reason codes, vectors and messages are those of the code."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pages import ROOT, table_rows

from tablecast.codec import sync
from tablecast.codec.events import MAX_EVENT_BYTES, MAX_KEY_BYTES, MAX_NODE_ID_BYTES, MAX_VALUE_BYTES, encode_event
from tablecast.core import anti_entropy as dialogue
from tablecast.core import publishing
from tablecast.edge import anti_entropy, applier, link
from tablecast.edge.address import MAX_PREFIX_BYTES, PORTS
from tablecast.edge.base import RECEIVE_MAXIMUM
from tablecast.edge.node import Topics, outfit
from tablecast.model.replication import Event, Version

PAGE = ROOT / "docs" / "mqtt.md"
MQTT = PAGE.read_text()
SYNC = (ROOT / "docs" / "formats" / "sync.md").read_text()


@pytest.mark.parametrize(
    "line",
    [
        f"(`mqtt://`, port {PORTS['mqtt']}) or TLS (`mqtts://`, port {PORTS['mqtts']})",
        f"| session expiry interval | {link.SESSION_EXPIRY_SECONDS:,} s |",
        f"| keep alive | {link.KEEPALIVE_SECONDS} s |",
        f"| receive maximum | {RECEIVE_MAXIMUM:,}:",
        f"| maximum packet size | {link.MAX_PACKET_BYTES:,} bytes |",
        f"at most {MAX_PREFIX_BYTES} bytes",
        f"| key | {MAX_KEY_BYTES} |",
        f"| value | {MAX_VALUE_BYTES:,} |",
        f"| node id | {MAX_NODE_ID_BYTES} |",
        f"| the whole event | {MAX_EVENT_BYTES:,} |",
        f"at most {publishing.DEFAULT_WINDOW_EVENTS} events and {publishing.MAX_WINDOW_BYTES // 2**20} MiB",
        f"refused {publishing.MAX_UNEXPLAINED} times is set aside",
        f"Up to {applier.EVENTS_PER_COMMIT} events are one commit",
        f"expire at the broker after {anti_entropy.EXPIRES_SECONDS} s",
        f"| a round begins | {anti_entropy.SOON_SECONDS:g} s after a connection",
        f"`mqtt_compare_seconds` ({anti_entropy.DEFAULT_INTERVAL_SECONDS:g})",
        f"at the earliest {anti_entropy.QUESTION_SECONDS * 1000:g} ms later",
        f"| no reply | after {anti_entropy.REPLY_SECONDS:g} s",
        f"| replies | at most {anti_entropy.MAX_REPLIES_PER_SECOND} a second",
        f"for at most {anti_entropy.MAX_PUT_OFF_INTERVALS} intervals",
        f"let be for {anti_entropy.FORGET_ROUNDS} rounds",
        f"| a message | at most {sync.MAX_SYNC_BYTES:,} bytes",
    ],
)
def test_numbers_of_the_mqtt_page_are_those_of_the_code(line: str) -> None:
    assert line in MQTT


def test_reason_codes_are_those_of_the_code() -> None:
    paused, aside = publishing._ABOUT_US, publishing._ABOUT_THE_EVENT
    table = MQTT.split("## Reason codes")[1].split("And a connection")[0]
    said = [int(code, 16) for code in re.findall(r"^\| `(0x[0-9a-f]{2})` \|", table, re.MULTILINE)]
    assert set(said) == paused | aside
    of_connections = MQTT.split("And a connection")[1].split("## Receiving")[0]
    assert {int(code, 16) for code in re.findall(r"0x[0-9a-f]{2}", of_connections)} == {
        *link._WRONG_CREDENTIALS,
        *link._NOT_LET_IN,
        publishing.FIRST_FAILURE,
    }


def test_topics_are_those_of_the_code() -> None:
    said = set(
        re.findall(r"^\| `(\{prefix\}/[^`]+)` \|", MQTT.split("## Topics")[1].split("## Rights")[0], re.MULTILINE)
    )
    topics = Topics("{prefix}", "{node}")
    assert said == {topics.events, topics.presence, topics.questions, topics.replies}
    assert f"`{outfit('{prefix}', '{node}').client_id}`" in MQTT


def test_vectors_are_what_the_code_writes() -> None:
    rows = [cells for cells in table_rows(PAGE) if len(cells) == 6 and cells[5].startswith("`a")]
    assert len(rows) == 2
    for key, node, seq, timestamp, value, data in ([cell.strip("`") for cell in row] for row in rows):
        event = Event(key, Version(int(timestamp), node, int(seq)), None if value == "(tombstone)" else value)
        assert encode_event(event).hex() == data


def test_sync_messages_are_those_of_the_codec() -> None:
    kinds: list[Any] = [
        kind
        for kind in vars(sync).values()
        if isinstance(kind, type) and issubclass(kind, sync._Message) and kind.__struct_config__.tag
    ]
    listed = re.findall(r"^\| `([a-z]+\??)` \|", SYNC, re.MULTILINE)
    assert listed == [kind.__struct_config__.tag for kind in kinds]
    for limit in ("TABLES", "NODES", "BUCKETS", "KEYS"):
        assert f"t most {getattr(dialogue, f'MAX_{limit}_ASKED')}" in SYNC
