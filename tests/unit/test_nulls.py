"""A null for a field that may be left out means that it is left out, in every request and message that clients send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec.inspect import Field, ListType, StructType, Type, UnionType, type_info

from tablecast.client.values import from_extension
from tablecast.codec import live
from tablecast.errors import InvalidRequest
from tablecast.server import api_writes
from tablecast.server.bodies import JSON, MSGPACK, Decoder
from tablecast.server.openapi import description
from tablecast.server.operations import OPERATIONS, Operation

WITH_EXAMPLE = [operation for operation in OPERATIONS if isinstance(operation.example, dict)]
ENCODE = {JSON: msgspec.json.encode, MSGPACK: msgspec.msgpack.encode}
MESSAGES = [  # every one that clients of live queries send, with what it requires
    {"type": "authenticate", "user": "ann", "password": "secret"},
    {"type": "authenticate", "token": "a.b.c"},
    {"type": "subscribe", "id": 1, "sql": "SELECT id FROM t"},
    {"type": "next_batch", "id": 1},
    {"type": "unsubscribe", "id": 1},
    {"type": "ping"},
]


def structs(kind: Type) -> list[StructType]:
    kinds = kind.types if isinstance(kind, UnionType) else [getattr(kind, "type", kind)]
    return [each for each in kinds if isinstance(each, StructType)]


def nulled(value: Any, kind: Type) -> Iterator[tuple[str, Any, Any]]:
    """(field, the value with a null for it, the value without it) for every field that may be left out, also further in."""
    if isinstance(kind, ListType) and isinstance(value, list) and value:
        for name, with_null, without in nulled(value[0], kind.item_type):
            yield name, [with_null, *value[1:]], [without, *value[1:]]
    if not isinstance(value, dict):
        return
    for field in (field for struct in structs(kind) for field in struct.fields):
        rest = {name: item for name, item in value.items() if name != field.name}
        if not field.required:
            yield field.name, {**rest, field.name: None}, rest
        for name, with_null, without in nulled(value.get(field.name), getattr(field.type, "type", field.type)):
            yield f"{field.name}.{name}", {**rest, field.name: with_null}, {**rest, field.name: without}


@pytest.mark.parametrize("media_type", [JSON, MSGPACK])
@pytest.mark.parametrize("operation", WITH_EXAMPLE, ids=lambda operation: operation.name)
def test_a_null_is_a_field_left_out_in_every_request(operation: Operation, media_type: str) -> None:
    kind = operation.takes[JSON]
    packed = api_writes.PackedWritesRequest if kind is api_writes.WritesRequest else None
    decode = Decoder(kind, packed)
    tried = list(nulled(operation.example, type_info(kind)))
    optional = [field for struct in structs(type_info(kind)) for field in struct.fields if not field.required]
    assert len(tried) >= len(optional)
    for name, with_null, without in tried:
        expected = decode(ENCODE[media_type](without), media_type)
        assert decode(ENCODE[media_type](with_null), media_type) == expected, name


@pytest.mark.parametrize("form", [live.JSON_FORM, live.MSGPACK_FORM])
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message["type"])
def test_a_null_is_a_field_left_out_in_every_message(message: dict[str, Any], form: live.Form) -> None:
    decode = live.client_decoder(from_extension)
    encode = msgspec.json.encode if form == live.JSON_FORM else msgspec.msgpack.encode
    [struct] = [
        each for each in structs(type_info(live.ClientMessage)) if each.cls.__struct_config__.tag == message["type"]
    ]
    expected = decode(encode(message), form)
    for field in left_out(struct, message):
        assert decode(encode({**message, field.name: None}), form) == expected, field.name


def left_out(struct: StructType, message: dict[str, Any]) -> list[Field]:
    return [field for field in struct.fields if not field.required and field.name not in message]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"topic": None}, "Expected `str`, got `null` - at `$.topic`"),
        ({"topic": "t", "tpoic": None}, "unknown field `tpoic`"),
        ({"topic": "t", "limit": None, "partition_id": -1}, "at `$.partition_id`"),
        ({"topic": "t", "start": {"type": None}}, "at `$.start.type`"),
        (None, "Expected `object`, got `null`"),
        ([None], "Expected `object`, got `array`"),
    ],
)
def test_a_null_for_what_is_needed_or_unknown_is_refused_by_name(body: Any, said: str) -> None:
    [consume] = [operation for operation in OPERATIONS if operation.name == "consume"]
    with pytest.raises(InvalidRequest) as caught:
        Decoder(consume.takes[JSON])(msgspec.json.encode(body), JSON)
    assert said in caught.value.message


def test_numbers_beside_a_null_stay_as_they_were_sent() -> None:
    [sql] = [operation for operation in OPERATIONS if operation.name == "sql"]
    text = b'{"sql": "SELECT ?", "params": [%s], "namespace": null}'
    number = b"123456789012345678901234567890"
    decode = Decoder(sql.takes[JSON])
    without = decode((text % number).replace(b', "namespace": null', b""), JSON)
    assert decode(text % number, JSON).params == without.params


def test_the_description_tells_that_nulls_are_taken() -> None:
    schemas = description()["components"]["schemas"]
    for operation in WITH_EXAMPLE:
        content = description()["paths"][operation.path][operation.method.lower()]["requestBody"]["content"][JSON]
        struct = schemas[content["schema"]["$ref"].rpartition("/")[2]]
        for name, field in struct["properties"].items():
            is_needed = name in struct.get("required", ())
            takes_null = {"type": "null"} in field.get("anyOf", ()) or not field.keys() - {"description", "default"}
            assert takes_null is not is_needed, (operation.name, name)
