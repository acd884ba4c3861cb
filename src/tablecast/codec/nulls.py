"""A null for a field that may be left out means that it is left out, in what clients send.

msgspec refuses such a null unless the field's type has it. `Forgiving` decodes as msgspec does, and only what that refuses
once more without those nulls: so what needs no care costs nothing. Every other byte is decoded as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec.inspect import ListType, Metadata, StructType, Type, UnionType, type_info

Decode = Callable[[bytes], Any]


class Forgiving:
    """Decodes one type from one form: `form` is msgspec.json or msgspec.msgpack, `decode` its decoder of that type."""

    def __init__(self, form: Any, kind: Any, decode: Decode) -> None:
        self._decode = decode
        self._kind = type_info(kind)
        self._encode: Callable[[Any], bytes] = form.encode
        self._object: Decode = form.Decoder(dict[str, msgspec.Raw]).decode
        self._array: Decode = form.Decoder(list[msgspec.Raw]).decode
        self._null = self._encode(None)

    def __call__(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except msgspec.ValidationError:
            stripped = self._without_nulls(data, self._kind)
            if stripped == data:
                raise
            return self._decode(stripped)

    def _without_nulls(self, data: bytes, kind: Type) -> bytes:
        """`data` is well-formed, and need not be of the type."""
        structs, items = [], []
        for each in _alternatives(kind):
            if isinstance(each, StructType):
                structs.append(each)
            elif isinstance(each, ListType) and _has_structs(each.item_type):
                items.append(each.item_type)
        try:
            if structs:
                return self._object_without(data, structs)
            if items:
                found = self._array(data)
                return self._encode([msgspec.Raw(self._without_nulls(bytes(item), items[0])) for item in found])
        except msgspec.ValidationError:
            pass  # it is no object, or no array
        return data

    def _object_without(self, data: bytes, structs: list[StructType]) -> bytes:
        """Of several structs, as messages of several types are, a field goes that none of them requires."""
        fields = {field.name: field for struct in structs for field in struct.fields}
        required = {field.name for struct in structs for field in struct.fields if field.required}
        kept = {}
        for name, value in self._object(data).items():
            raw, field = bytes(value), fields.get(name)
            if field is None:
                kept[name] = value
            elif name in required or raw.strip() != self._null:
                kept[name] = msgspec.Raw(self._without_nulls(raw, field.type))
        return self._encode(kept)


def _alternatives(kind: Type) -> Iterator[Type]:
    if isinstance(kind, Metadata):
        yield from _alternatives(kind.type)
    elif isinstance(kind, UnionType):
        for each in kind.types:
            yield from _alternatives(each)
    else:
        yield kind


def _has_structs(kind: Type) -> bool:
    return any(isinstance(each, StructType) for each in _alternatives(kind))
