"""What a caller gives, as the rest expects it: frames become Arrow, NumPy's scalars Python's, anything else is refused.

NumPy, pandas and Polars are not imported here: they are known by what they offer. Values of plain types cost one look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from tablecast.errors import InvalidRequest

_SCALARS = frozenset({type(None), bool, int, float, str, bytes, Decimal, datetime, date, time, UUID})
_PLAIN = _SCALARS | {dict, list, tuple}
_NOTHING = ("NaTType", "NAType")  # how pandas says null
_INDEX = "__index_level_"  # the index of a pandas frame, which is no column
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def given_text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{what} is a text, not {_named(value)}")
    return value


def given_list(values: Sequence[Any], what: str) -> Sequence[Any]:
    """A list or tuple as it is, any other iterable as a list."""
    if type(values) is list or type(values) is tuple:
        return values
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidRequest(f"{what} are a list, not {_named(values)}")
    return list(values)


_ARGUMENTS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("topic", "group", "consumer", "reason"), ((str,), "a text")),
    **dict.fromkeys(("partition", "limit", "upto_offset"), ((int,), "a whole number")),
    **dict.fromkeys(("timeout_seconds", "visibility_seconds"), ((int, float), "a number of seconds")),
}


def check_arguments(**given: Any) -> None:
    """Of a call about a topic. None is for what may be left out: callers leave it out here, too."""
    for name, value in given.items():
        kinds, meant = _ARGUMENTS[name]
        if not isinstance(value, kinds) or isinstance(value, bool) or value != value:  # NaN is a float
            raise InvalidRequest(f"{name} is {meant}, not {_named(value)} ({value!r:.40})", argument=name)


def check_optional(**given: Any) -> None:
    check_arguments(**{name: value for name, value in given.items() if value is not None})


def given_offsets(offsets: Any) -> list[int]:
    found = list(given_list(offsets, "offsets"))
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in found):
        raise InvalidRequest("offsets are whole numbers")
    return found


def given_params(params: Sequence[Any]) -> Sequence[Any]:
    params = given_list(params, "params")
    for value in params:
        if type(value) not in _PLAIN:
            return [given_value(each) for each in params]
    return params


def given_value(value: Any) -> Any:
    """A scalar of NumPy or pandas as Python's, also inside of a list or mapping; anything else as it is."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind.__module__ == "numpy" and hasattr(value, "dtype"):
        return _from_numpy(value)
    if kind.__name__ in _NOTHING:
        return None
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime(warn=False)
    if isinstance(value, Mapping):
        return {name: given_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        inner = [given_value(each) for each in value]
        return inner if isinstance(value, list) else tuple(inner)
    return value


def _from_numpy(value: Any) -> Any:
    if value.ndim:
        return [given_value(each) for each in value.tolist()]
    if value.dtype.kind == "M" and isinstance(value.item(), int):  # nanoseconds, which Python's do not have
        return value.astype("datetime64[us]").item()
    found = value.item()
    return float(found) if value.dtype.kind == "f" else found


# --- rows --------------------------------------------------------------------------------------------------------


def given_rows(rows: Any) -> Any:
    """Arrow as it is or as a frame offers it, or a list of rows, which nobody has looked into."""
    if isinstance(rows, pa.Table | pa.RecordBatch | list | tuple):
        return rows
    if hasattr(rows, "__arrow_c_stream__"):
        return _from_frame(rows)
    return list(given_list(given_value(rows) if hasattr(rows, "dtype") else rows, "rows"))


def _from_frame(frame: Any) -> pa.Table:
    try:
        table = pa.table(frame)
        table = table.drop_columns([name for name in table.column_names if name.startswith(_INDEX)])
        columns = {name: _plain_column(table.column(name)) for name in table.column_names}
        return pa.table(columns)
    except (pa.ArrowException, TypeError, ValueError) as e:
        raise InvalidRequest(f"{_named(frame)} cannot be read as rows: {e}") from None


def _plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without dictionaries and views, of which a few bytes can stand for much."""
    if not pa.types.is_dictionary(column.type):
        return column.cast(_VIEWS.get(column.type, column.type))
    wanted = _VIEWS.get(column.type.value_type, column.type.value_type)
    chunks = [
        pa.DictionaryArray.from_arrays(c.indices, c.dictionary.cast(wanted)).dictionary_decode() for c in column.chunks
    ]
    return pa.chunked_array(chunks, wanted)


def _named(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
