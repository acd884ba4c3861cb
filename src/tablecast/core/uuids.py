"""UUIDs that grow with time."""

from __future__ import annotations

from uuid import UUID

RANDOM_BYTES = 10  # what one takes


def uuid_v7(now_ms: int, random: bytes) -> UUID:
    """RFC 9562: 48 bits of milliseconds, then random bits, six of which give way to version and variant."""
    value = (now_ms & (1 << 48) - 1) << 80 | int.from_bytes(random, "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    return UUID(int=value)
