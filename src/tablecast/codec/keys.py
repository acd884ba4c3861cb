"""Keys that order as bytes exactly as their values order.

A key is a sequence of elements, each of a known type, written one after the other:

    BOOLEAN    1 byte: 00 false, 01 true
    SMALLINT   2 bytes, INT 4 bytes, BIGINT 8 bytes: big-endian with the sign bit flipped
    FLOAT      4 bytes, DOUBLE 8 bytes: IEEE big-endian; negative: all bits flipped, else the sign bit; -0.0 is 0.0
    DECIMAL    the unscaled integer: 8 bytes for precision <= 18, else 16, sign bit flipped
    TEXT       UTF-8, each 00 written as 00 FF, then 00 01
    BYTES      likewise over the raw bytes
    TIMESTAMP  microseconds since 1970-01-01 UTC, as BIGINT
    DATE       days since 1970-01-01, as INT
    TIME       microseconds since midnight, as BIGINT
    UUID       16 bytes

No element is a prefix of another of its type, so composite keys order element by element. A key column is never NULL.
Whole storage keys begin with fixed-width ids (see the `*_key` functions at the end), so every table, partition and
group is one contiguous range; `after(prefix)` is where that range ends.

Keys are read back as they were written, to the last byte; anything else is CorruptData.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, NoReturn
from uuid import UUID

from tablecast.errors import CorruptData
from tablecast.model.schema import ColumnType, TypeName

_I16, _I32, _I64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_F32, _F64 = struct.Struct(">f"), struct.Struct(">d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_WIDE_DECIMAL = 18  # the largest precision whose unscaled value fits 8 bytes
_EXACT = Context(prec=80)  # the default of 28 digits would round a DECIMAL(38, s), and two keys would be one

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes, int], tuple[Any, int]]  # (bytes, position) -> (value, next position)


def timestamp_us(value: datetime) -> int:
    return (value - _EPOCH) // _MICROSECOND


def timestamp_from_us(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def time_us(value: time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def time_from_us(us: int) -> time:
    seconds, micro = divmod(us, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return time(hour, minute, second, micro)


# --- elements ------------------------------------------------------------------------------------------------


def _int(width: struct.Struct) -> tuple[Encode, Decode]:
    bias = 1 << (8 * width.size - 1)
    pack, unpack, size = width.pack, width.unpack_from, width.size

    def encode(value: int) -> bytes:
        return pack(value + bias)

    def decode(data: bytes, at: int) -> tuple[int, int]:
        return unpack(data, at)[0] - bias, at + size

    return encode, decode


def _float(width: struct.Struct, bits: struct.Struct) -> tuple[Encode, Decode]:
    sign = 1 << (8 * width.size - 1)
    everything = (sign << 1) - 1

    def encode(value: float) -> bytes:
        (raw,) = bits.unpack(width.pack(value + 0.0))  # -0.0 + 0.0 is 0.0
        return bits.pack(raw ^ everything if raw & sign else raw | sign)

    def decode(data: bytes, at: int) -> tuple[float, int]:
        (raw,) = bits.unpack_from(data, at)
        (value,) = width.unpack(bits.pack(raw ^ sign if raw & sign else raw ^ everything))
        return value, at + width.size

    return encode, decode


def _decimal(precision: int, scale: int) -> tuple[Encode, Decode]:
    size = 8 if precision <= _WIDE_DECIMAL else 16
    bias = 1 << (8 * size - 1)

    def encode(value: Decimal) -> bytes:
        return (int(value.scaleb(scale, _EXACT)) + bias).to_bytes(size, "big")

    def decode(data: bytes, at: int) -> tuple[Decimal, int]:
        if len(data) < at + size:
            raise IndexError("the key ends within a DECIMAL")
        unscaled = int.from_bytes(data[at : at + size], "big") - bias
        return Decimal((0 if unscaled >= 0 else 1, _digits(unscaled), -scale)), at + size

    return encode, decode


def _digits(number: int) -> tuple[int, ...]:
    return tuple(int(digit) for digit in str(abs(number)))


NUL, ESCAPED_NUL, END = b"\x00", b"\x00\xff", b"\x00\x01"


def encode_bytes(value: bytes) -> bytes:
    return value.replace(NUL, ESCAPED_NUL) + END


def decode_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.find(END, at)
    if end < 0:
        _corrupt(data, f"the text that begins at byte {at} does not end")
    return data[at:end].replace(ESCAPED_NUL, NUL), end + 2


def encode_text(value: str) -> bytes:
    return encode_bytes(value.encode())


def decode_text(data: bytes, at: int) -> tuple[str, int]:
    raw, end = decode_bytes(data, at)
    try:
        return raw.decode(), end
    except UnicodeDecodeError:
        _corrupt(data, f"the text that begins at byte {at} is not UTF-8")


def _mapped(
    inner: tuple[Encode, Decode], to: Callable[[Any], Any], back: Callable[[Any], Any]
) -> tuple[Encode, Decode]:
    inner_encode, inner_decode = inner

    def encode(value: Any) -> bytes:
        return inner_encode(to(value))

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        value, end = inner_decode(data, at)
        return back(value), end

    return encode, decode


_FLAGS = (False, True)
_BIGINT = _int(_I64)
_ELEMENTS: dict[TypeName, tuple[Encode, Decode]] = {
    TypeName.BOOLEAN: (lambda v: b"\x01" if v else b"\x00", lambda data, at: (_FLAGS[data[at]], at + 1)),
    TypeName.SMALLINT: _int(_I16),
    TypeName.INT: _int(_I32),
    TypeName.BIGINT: _BIGINT,
    TypeName.FLOAT: _float(_F32, _I32),
    TypeName.DOUBLE: _float(_F64, _I64),
    TypeName.TEXT: (encode_text, decode_text),
    TypeName.BYTES: (encode_bytes, decode_bytes),
    TypeName.TIMESTAMP: _mapped(_BIGINT, timestamp_us, timestamp_from_us),
    TypeName.DATE: _mapped(
        _int(_I32), lambda v: v.toordinal() - _EPOCH_DAY, lambda d: date.fromordinal(d + _EPOCH_DAY)
    ),
    TypeName.TIME: _mapped(_BIGINT, time_us, time_from_us),
    TypeName.UUID: (lambda v: v.bytes, lambda data, at: (UUID(bytes=data[at : at + 16]), at + 16)),
}


def element(column_type: ColumnType) -> tuple[Encode, Decode]:
    """How one value of this type is written into a key, and read back."""
    if column_type.name is TypeName.DECIMAL:
        return _decimal(column_type.precision, column_type.scale)
    return _ELEMENTS[column_type.name]


def decode_elements(types: Sequence[ColumnType], data: bytes, at: int) -> tuple[Any, ...]:
    """The values from byte `at` to the end of the key."""
    values = []
    try:
        for column_type in types:
            value, at = element(column_type)[1](data, at)
            values.append(value)
    except (struct.error, IndexError, ValueError, OverflowError) as e:
        _corrupt(data, str(e))
    _check_end(data, at)
    return tuple(values)


def _check_end(key: bytes, end: int) -> None:
    if len(key) != end:
        _corrupt(key, f"it has {len(key)} bytes, not {end}")


def _corrupt(key: bytes, why: str) -> NoReturn:
    raise CorruptData(f"the key {key.hex()} does not decode: {why}", key=key.hex())


# --- whole keys ----------------------------------------------------------------------------------------------


def after(prefix: bytes) -> bytes | None:
    """The first key greater than every key that begins with `prefix`; None when there is none."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None


def table_prefix(table_id: int) -> bytes:
    return _I32.pack(table_id)


def user_prefix(table_id: int, user_id: str) -> bytes:
    return _I32.pack(table_id) + encode_text(user_id)


_LOG = struct.Struct(">IHQ")
_LOG_PREFIX = struct.Struct(">IH")


def log_key(topic_id: int, partition: int, first_offset: int) -> bytes:
    return _LOG.pack(topic_id, partition, first_offset)


def log_prefix(topic_id: int, partition: int) -> bytes:
    return _LOG_PREFIX.pack(topic_id, partition)


def log_offset(key: bytes) -> int:
    _check_end(key, _LOG.size)
    offset: int = _I64.unpack_from(key, _LOG_PREFIX.size)[0]
    return offset


_CHANGE = struct.Struct(">IQH")


def change_key(table_id: int, seq: int, piece: int = 0) -> bytes:
    return _CHANGE.pack(table_id, seq, piece)


def decode_change_key(key: bytes) -> tuple[int, int, int]:
    _check_end(key, _CHANGE.size)
    table_id, seq, piece = _CHANGE.unpack(key)
    return table_id, seq, piece


def topic_prefix(topic_id: int) -> bytes:
    return _I32.pack(topic_id)


def group_key(topic_id: int, group: str, partition: int) -> bytes:
    return _I32.pack(topic_id) + encode_text(group) + _I16.pack(partition)


def decode_group_key(key: bytes) -> tuple[int, str, int]:
    group, at = decode_text(key, _I32.size)
    _check_end(key, at + _I16.size)
    return _I32.unpack_from(key)[0], group, _I16.unpack_from(key, at)[0]


def expiry_key(expires_ms: int, family: str, key: bytes) -> bytes:
    return _I64.pack(expires_ms) + encode_text(family) + key


def decode_expiry_key(key: bytes) -> tuple[int, str, bytes]:
    family, at = decode_text(key, _I64.size)
    return _I64.unpack_from(key)[0], family, key[at:]
