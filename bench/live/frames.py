"""Just enough of WebSocket for a load generator and a bare server: heads, masks, frames of up to 64 KiB."""

from __future__ import annotations

import struct

TEXT = 0x81  # one whole text frame
MASK = b"\0\0\0\0"  # a mask that changes nothing: allowed, and free
HEAD_END = b"\r\n\r\n"


def upgrade(path: str, authorization: str) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: tablecast.json\r\nAuthorization: {authorization}\r\n\r\n"
    ).encode()


def masked(payload: bytes) -> bytes:
    """As clients send."""
    if len(payload) < 126:
        return bytes((TEXT, 0x80 | len(payload))) + MASK + payload
    return bytes((TEXT, 0x80 | 126)) + struct.pack(">H", len(payload)) + MASK + payload


def unmasked(payload: bytes) -> bytes:
    """As servers send."""
    if len(payload) < 126:
        return bytes((TEXT, len(payload))) + payload
    return bytes((TEXT, 126)) + struct.pack(">H", len(payload)) + payload


def split(data: bytes) -> tuple[list[bytes], bytes]:
    """The payloads of whole frames, and what is left."""
    payloads, at, size = [], 0, len(data)
    while size - at >= 2:
        length, head = data[at + 1] & 0x7F, 2
        if length == 126:
            if size - at < 4:
                break
            length, head = int.from_bytes(data[at + 2 : at + 4], "big"), 4
        elif length == 127:
            if size - at < 10:
                break
            length, head = int.from_bytes(data[at + 2 : at + 10], "big"), 10
        if data[at + 1] & 0x80:
            head += 4
        if size - at < head + length:
            break
        payloads.append(data[at + head : at + head + length])
        at += head + length
    return payloads, data[at:]
