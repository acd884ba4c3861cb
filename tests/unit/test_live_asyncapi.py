"""docs/live.asyncapi.yaml is true: it has every message of the codec, field by field, and its examples are messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import jsonschema_rs
import msgspec
import pytest
import yaml

from tablecast.client.values import from_extension
from tablecast.codec import live as m
from tablecast.core import live_protocol
from tablecast.server.settings import Settings

TEXT = (Path(__file__).parents[2] / "docs" / "live.asyncapi.yaml").read_text(encoding="utf-8")
DOCUMENT: dict[str, Any] = yaml.safe_load(TEXT)
MESSAGES: dict[str, Any] = DOCUMENT["components"]["messages"]
FROM_CLIENT = {str(kind.__struct_config__.tag): kind for kind in get_args(m.ClientMessage)}
TO_CLIENT = {str(kind.__struct_config__.tag): kind for kind in get_args(m.ServerMessage)}
KINDS = FROM_CLIENT | TO_CLIENT
EXAMPLES = [(name, example["payload"]) for name, each in MESSAGES.items() for example in each["examples"]]


def named(operation: str) -> list[str]:
    return [each["$ref"].rpartition("/")[2] for each in DOCUMENT["operations"][operation]["messages"]]


def validator(name: str) -> Any:
    return jsonschema_rs.validator_for({**MESSAGES[name]["payload"], "components": DOCUMENT["components"]})


def test_it_has_every_message_and_no_other() -> None:
    assert list(MESSAGES) == list(KINDS) == list(DOCUMENT["channels"]["live"]["messages"])
    assert named("fromClient") == list(FROM_CLIENT)
    assert named("toClient") == list(TO_CLIENT)


@pytest.mark.parametrize("name", KINDS)
def test_a_message_has_the_fields_of_its_struct(name: str) -> None:
    fields = msgspec.structs.fields(KINDS[name])
    payload = MESSAGES[name]["payload"]
    assert set(payload["properties"]) == {"type", *(field.name for field in fields)}
    assert set(payload["required"]) == {"type", *(field.name for field in fields if field.required)}
    assert payload["properties"]["type"] == {"const": name}
    assert (payload.get("additionalProperties") is False) == (name in FROM_CLIENT), "only a client's are taken strictly"


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("form", get_args(m.Form))
def test_an_example_is_a_message(name: str, example: dict[str, Any], form: m.Form) -> None:
    decode: Any = (m.client_decoder if name in FROM_CLIENT else m.server_decoder)(from_extension)
    packed = json.dumps(example).encode() if form == "json" else msgspec.msgpack.encode(example)
    message = decode(packed, form)
    assert type(message) is KINDS[name]
    again = msgspec.to_builtins(decode(m.encode(message, form), form))
    assert {field: again[field] for field in example} == example
    validator(name).validate(example)


def test_the_schemas_refuse_what_the_codec_refuses() -> None:
    decode = m.client_decoder(from_extension)
    wrong = [
        {"type": "subscribe", "sql": "SELECT 1"},
        {"type": "subscribe", "id": "", "sql": "SELECT 1"},
        {"type": "subscribe", "id": -1, "sql": "SELECT 1"},
        {"type": "subscribe", "id": "x" * 65, "sql": "SELECT 1"},
        {"type": "subscribe", "id": 1, "sql": "SELECT 1", "batch_rows": 0},
        {"type": "subscribe", "id": 1, "sql": "SELECT 1", "resume": -1},
        {"type": "subscribe", "id": 1, "sql": "SELECT 1", "resume": 1, "history": 7},
        {"type": "subscribe", "id": 1, "sql": "SELECT 1", "resume": 1, "history": "x" * 65},
        {"type": "subscribe", "id": 1, "sql": "SELECT 1", "batchrows": 10},
        {"type": "authenticate"},
        {"type": "authenticate", "user": "ann"},
        {"type": "authenticate", "user": "ann", "password": "p", "token": "t"},
        {"type": "next_batch"},
        {"type": "ping", "nonce": 1.5},
    ]
    for message in wrong:
        assert not validator(message["type"]).is_valid(message), message
        with pytest.raises(msgspec.ValidationError):
            decode(json.dumps(message).encode(), "json")


def test_references_lead_somewhere() -> None:
    for reference in re.findall(r"\$ref: '#/([^']+)'", TEXT):
        found: Any = DOCUMENT
        for step in reference.split("/"):
            found = found[step]


def test_numbers_it_names_are_those_of_the_code() -> None:
    said = DOCUMENT["info"]["description"]
    assert f"may have {m.MAX_MESSAGE_BYTES:,} bytes" in said
    assert f"within {Settings().live_auth_seconds:g} seconds" in said
    assert Settings().live_buffer_bytes == 2**20
    assert "more than 1 MiB untaken" in said
    codes = {int(code) for code in re.findall(r"^\s*\| (\d{4}) \|", said, re.MULTILINE)}
    assert codes == {
        value
        for name, value in vars(live_protocol).items()
        if isinstance(value, int) and value < 5_000 and name != "MAX_EARLY_MESSAGES"
    }
    assert (
        f"batch_rows: {{type: integer, minimum: 1, maximum: {m.MAX_BATCH_ROWS}, default: {m.DEFAULT_BATCH_ROWS},"
        in TEXT
    )
