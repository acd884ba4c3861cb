"""Parts and starts of dates and times."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

Part = Callable[[Any], int]

DATE_PARTS: dict[str, Part] = {
    "year": lambda value: value.year,
    "quarter": lambda value: (value.month + 2) // 3,
    "month": lambda value: value.month,
    "week": lambda value: value.isocalendar().week,
    "day": lambda value: value.day,
    "doy": lambda value: value.timetuple().tm_yday,
    "dow": lambda value: value.isoweekday() % 7,
    "isodow": lambda value: value.isoweekday(),
}

TIME_PARTS: dict[str, Part] = {
    "hour": lambda value: value.hour,
    "minute": lambda value: value.minute,
    "second": lambda value: value.second,
    "millisecond": lambda value: value.second * 1000 + value.microsecond // 1000,
    "microsecond": lambda value: value.second * 1_000_000 + value.microsecond,
}


def _midnight(value: datetime) -> datetime:
    return value.replace(hour=0, minute=0, second=0, microsecond=0)


STARTS: dict[str, Callable[[datetime], datetime]] = {
    "year": lambda value: _midnight(value).replace(month=1, day=1),
    "quarter": lambda value: _midnight(value).replace(month=(value.month - 1) // 3 * 3 + 1, day=1),
    "month": lambda value: _midnight(value).replace(day=1),
    "week": lambda value: _midnight(value) - timedelta(days=value.weekday()),
    "day": _midnight,
    "hour": lambda value: value.replace(minute=0, second=0, microsecond=0),
    "minute": lambda value: value.replace(second=0, microsecond=0),
    "second": lambda value: value.replace(microsecond=0),
}

# Other spellings, ours and those the parser canonicalises to.
SYNONYMS = {
    "dayofweek": "dow",
    "dayofweekiso": "isodow",
    "dayofweek_iso": "isodow",
    "dayofyear": "doy",
    "dayofmonth": "day",
    "weekofyear": "week",
}


def part_of_date(field: str) -> Part:
    """Of a DATE: the time is midnight."""
    return DATE_PARTS.get(field, lambda value: 0)


def part_of_timestamp(field: str) -> Part:
    return DATE_PARTS.get(field) or TIME_PARTS[field]


def date_to_timestamp(value: date) -> datetime:
    return datetime(value.year, value.month, value.day, tzinfo=UTC)


def timestamp_to_date(value: datetime) -> date:
    return value.date()


def timestamp_to_time(value: datetime) -> time:
    return value.time()
