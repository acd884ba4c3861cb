"""The rows of a sealed part: in the order of their keys, each key once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tablecast.codec.rows import row_codec
from tablecast.core.columns_key import key_order, repeated
from tablecast.core.row_rules import duplicate_key
from tablecast.core.seal_judge import Reject, reject
from tablecast.core.seal_log import Places
from tablecast.model.schema import TableSchema

_BLOCK_ROWS = 16_384  # values handed on at once


class HeldRows(NamedTuple):
    """A batch of rows of the part under construction."""

    numbers: np.ndarray  # which of all given rows they are
    keys: pa.Array
    values: pa.Array

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.values.nbytes + self.numbers.nbytes)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A part but for its log batches, which were emitted: see codec.sealed. `keys` are sorted; `values`, in blocks, run
    parallel to them. `left_out` are messages that were emitted for rows that are not in the part: see `seal_log.without`.
    """

    table_id: int
    load_number: int
    keys: pa.Array
    values: Iterator[pa.Array]
    left_out: Places

    @property
    def rows(self) -> int:
        return len(self.keys)


class SortedRows(NamedTuple):
    keys: pa.Array
    values: Iterator[pa.Array]
    rejects: list[Reject]
    left_out: np.ndarray | None  # marks, in the order they came, rows whose key came before; None: there are none


def sort_rows(schema: TableSchema, held: Sequence[HeldRows]) -> SortedRows:
    if not held:
        return SortedRows(pa.array([], pa.binary()), iter(()), [], None)
    keys = pa.concat_arrays([rows.keys for rows in held])
    values = [rows.values for rows in held]
    order = key_order(keys)
    if order is not None:
        keys = keys.take(pa.array(order))
    repeats = np.flatnonzero(repeated(keys)) + 1
    if not len(repeats):
        return SortedRows(keys, _in_order(values, order), [], None)
    order = np.arange(len(keys)) if order is None else order
    left_out = np.zeros(len(keys), np.bool_)
    left_out[order[repeats]] = True
    rejects = _rejects(schema, held, keys, order, repeats)
    kept = np.delete(np.arange(len(keys)), repeats)
    return SortedRows(keys.take(pa.array(kept)), _in_order(values, order[kept]), rejects, left_out)


def _rejects(
    schema: TableSchema, held: Sequence[HeldRows], keys: pa.Array, order: np.ndarray, repeats: np.ndarray
) -> list[Reject]:
    """Equal keys stand in the order they came, so all but the first of them repeat it."""
    codec = row_codec(schema)
    at, numbers = len(codec.prefix(None)), np.concatenate([rows.numbers for rows in held])
    found = [
        reject(int(numbers[order[i]]), duplicate_key(schema, codec.decode_key(keys[i].as_py(), at)))
        for i in repeats.tolist()
    ]
    return sorted(found)


def _in_order(values: list[pa.Array], order: np.ndarray | None) -> Iterator[pa.Array]:
    if order is None:
        for batch in values:
            yield from (batch[at : at + _BLOCK_ROWS] for at in range(0, len(batch), _BLOCK_ROWS))
        return
    everything = pa.concat_arrays(values)
    for at in range(0, len(order), _BLOCK_ROWS):
        yield everything.take(pa.array(order[at : at + _BLOCK_ROWS]))
