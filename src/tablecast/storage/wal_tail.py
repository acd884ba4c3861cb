"""How a write-ahead log of RocksDB ends: well, torn by a power cut, or damaged.

    log       blocks of 32 KiB
    block     fragments; fewer than 7 bytes that are left over at its end are filler
    fragment  checksum (4), length (2), kind (1), all little-endian, then that many bytes
    kind      1 a whole record, 2 its first, 3 a middle, 4 its last fragment
    checksum  CRC-32C of kind and bytes, rotated right by 15, plus 0xA282EAD8

Only the kinds are known that RocksDB writes as we open it (logs are not recycled, records neither compressed nor
stamped).

**Zeros** may follow the last record: `zeros_ahead.py` puts them there. RocksDB takes a header of kind 0 and length 0 for
nothing *up to the end of its block*, in every mode and in silence, and reads on in the next one. So a log that goes on behind
such a header has lost something that nobody would hear of: `passes_over_something` finds it, by headers alone.

**A torn record** is one that was being written when the machine died. A disk writes sectors of 512 bytes, each entirely or
not at all, in any order; those that were not written are still the zeros that were put there before. So a record is torn if
a sector's part of it is all zeros, while a flipped bit leaves none, or shows by the checksum that only the length is wrong.
And it is the last one, since no record is written into zeros before the one in front of it is durable. `torn_at` therefore
asks for three things: all records before are whole, this one misses a sector, and no other record begins behind it.
Whatever else is wrong with a log is damage. What cannot be told from a torn record: damage to the last one if a sector of it
was zeros anyway. Then only the watermark helps, if it is as new as the record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

BLOCK = 32 << 10
SECTOR = 512
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4

_HEADER = struct.Struct("<IHB")
_MASK_DELTA = 0xA282EAD8
_CASTAGNOLI = 0x82F63B78


def log_files(store: Path) -> list[Path]:
    """Oldest first; the last is the one that is written to."""
    return sorted((file for file in store.glob("*.log") if file.stem.isdecimal()), key=lambda file: int(file.stem))


def passes_over_something(log: bytes) -> bool:
    """Whether RocksDB would leave out something that is there."""
    at = 0
    while (at := _next_header(at)) + _HEADER.size <= len(log):
        _, length, kind = _HEADER.unpack_from(log, at)
        if kind == length == 0:
            return not _is_zero(log, at, len(log))
        end = at + _HEADER.size + length
        if not WHOLE <= kind <= LAST or end > _block_end(at):
            return False  # RocksDB refuses it
        at = end
    return False


def torn_at(log: bytes) -> int | None:
    """Where the torn record begins; None if the log is not torn, or not only torn."""
    start = at = 0
    while _is_next(log, header := _next_header(at), is_inside=start < at):
        kind = log[header + 6]
        at = _end(log, header)
        if kind in (WHOLE, LAST):
            start = at
    if start == at and _is_zero(log, header, len(log)):
        return None
    is_torn = _misses_a_sector(log, header) and not _is_whole_but_for_its_length(log, header) and _is_last(log, header)
    return start if is_torn else None


# --- fragments ----------------------------------------------------------------------------------------------


def _next_header(at: int) -> int:
    left = BLOCK - at % BLOCK
    return at + left if left < _HEADER.size else at


def _block_end(at: int) -> int:
    return at - at % BLOCK + BLOCK


def _kind(log: bytes, header: int) -> int:
    """0 if that, or the length, is none that a fragment can have."""
    if header + _HEADER.size > len(log):
        return 0
    checksum, length, kind = _HEADER.unpack_from(log, header)
    if checksum == 0 and SECTOR - header % SECTOR in (5, 6):
        return 0  # the sector that ends in the length, or behind it, is missing, and only the kind is there
    fits = header + _HEADER.size + length <= _block_end(header)
    return int(kind) if fits and WHOLE <= kind <= LAST else 0


def _end(log: bytes, header: int) -> int:
    """Of the fragment; of the block, if its header does not tell."""
    if _kind(log, header) == 0:
        return _block_end(header)
    _, length, _ = _HEADER.unpack_from(log, header)
    return header + _HEADER.size + int(length)


def _is_next(log: bytes, header: int, *, is_inside: bool) -> bool:
    """Whether a fragment is here, whole, and one that may come at this place."""
    if _kind(log, header) not in ((MIDDLE, LAST) if is_inside else (WHOLE, FIRST)) or _end(log, header) > len(log):
        return False
    checksum, _, _ = _HEADER.unpack_from(log, header)
    return int(checksum) == _masked(_crc32c(log[header + 6 : _end(log, header)]))


# --- what is torn -------------------------------------------------------------------------------------------


def _is_zero(log: bytes, start: int, end: int) -> bool:
    end = min(end, len(log))
    return start >= end or log.count(0, start, end) == end - start


def _misses_a_sector(log: bytes, header: int) -> bool:
    """Whether a sector of this fragment was never written: from its beginning, or the fragment's, to its end all zeros.

    A header that tells nothing must itself be what is missing, or a part of it that is in the next sector. And a process
    that is killed may have handed over a header and nothing else.
    """
    end = _end(log, header) if _kind(log, header) else header + _HEADER.size
    if header + _HEADER.size < end and _is_zero(log, header + _HEADER.size, end):
        return header + _HEADER.size < len(log)
    starts = [header, *range(header - header % SECTOR + SECTOR, end, SECTOR)]
    return any(start < len(log) and _is_zero(log, start, start - start % SECTOR + SECTOR) for start in starts)


def _is_whole_but_for_its_length(log: bytes, header: int) -> bool:
    """Whether the checksum, which leaves the length out, is that of fewer bytes: then the length is damaged, and makes the
    zeros that follow look like a part that is missing."""
    if _kind(log, header) == 0:
        return False
    checksum, _, _ = _HEADER.unpack_from(log, header)
    return any(int(checksum) == _masked(crc) for crc in _crcs32c(log[header + 6 : _end(log, header)]))


def _is_last(log: bytes, header: int) -> bool:
    """Whether nothing is behind this fragment that does not belong to the same record.

    The header at a block's beginning is in one sector: it was written, or it is zeros and tells nothing of its block.
    """
    while _kind(log, header) in (0, FIRST, MIDDLE):
        end = _end(log, header)
        if not _is_zero(log, end, _block_end(header)):
            return False  # such a fragment fills its block
        header = _block_end(header)
        if header >= len(log):
            return True
        if _kind(log, header) not in (MIDDLE, LAST) and not _is_zero(log, header, header + _HEADER.size):
            return False
    return _is_zero(log, _end(log, header), len(log))


# --- the checksum -------------------------------------------------------------------------------------------


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_CASTAGNOLI if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def _crcs32c(content: bytes) -> Iterator[int]:
    """Of its first byte, of its first two, and so on."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
        yield crc ^ 0xFFFFFFFF


def _crc32c(content: bytes) -> int:
    """A loop over bytes is slow, some 10 MB a second; it only runs when a log was refused."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
