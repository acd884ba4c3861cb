"""A key range cut into parts of about equal size, whatever its keys look like and without reading them all."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablecast.codec import keys
from tablecast.engine import splits
from tablecast.engine.splits import split_keys
from tablecast.model.schema import ColumnType, TypeName
from tablecast.storage.base import Family
from tablecast.storage.memory import MemoryStore

TABLE, NEXT = keys.table_prefix(5), keys.table_prefix(6)
COUNT = 30_000
text, bigint, integer = (keys.element(ColumnType(name))[0] for name in (TypeName.TEXT, TypeName.BIGINT, TypeName.INT))
chance = random.Random(1)


def tenant() -> int:
    """One of 200 has nine of ten rows."""
    return 0 if chance.random() < 0.9 else chance.randrange(200)


KEYS: dict[str, Callable[[int], bytes]] = {
    "sequential": bigint,
    "negative and positive": lambda i: bigint(7 * i - 3 * COUNT),
    "random UUIDs as text": lambda i: text(str(UUID(int=chance.getrandbits(128)))),
    "random UUIDs": lambda i: chance.randbytes(16),
    "numbers as text": lambda i: text(str(i)),
    "composite": lambda i: integer(i % 50) + bigint(1_760_000_000_000_000 + chance.randrange(10**12)),
    "composite, one tenant with nearly all": lambda i: integer(tenant()) + bigint(chance.randrange(10**12)),
    "ids that grow with time": lambda i: bigint(((1_760_000_000_000 + i // 7) << 22) + ((i % 7) << 10)),
    "a long common beginning": lambda i: text(f"https://example.com/orders/2026/{i:09}"),
}


def store_of(stored: list[bytes]) -> MemoryStore:
    """Among rows of the tables before and after."""
    store = MemoryStore()
    batch = store.batch()
    for prefix in (keys.table_prefix(4), NEXT):
        batch.put_many(Family.ROWS, [prefix + bigint(i) for i in range(100)], [b""] * 100)
    batch.put_many(Family.ROWS, stored, [b"v"] * len(stored))
    store.write(batch)
    return store


def sizes(stored: list[bytes], cuts: list[bytes]) -> list[int]:
    at = [0, *(bisect_left(stored, cut) for cut in cuts), len(stored)]
    return [end - start for start, end in pairwise(at)]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KEYS)
def test_parts_are_about_equal(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "EXACT_KEYS", 100)  # so that it is guessed
    chance.seed(f"{kind} {seed}")
    stored = sorted({TABLE + KEYS[kind](i) for i in range(COUNT)})
    store = store_of(stored)
    for parts in (2, 7, 24):
        found = sizes(stored, split_keys(store, Family.ROWS, TABLE, NEXT, parts))
        assert len(found) == parts
        assert max(found) < 1.6 * len(stored) / parts, found
        assert min(found) > 0.5 * len(stored) / parts, found


def test_it_looks_at_few_keys() -> None:
    stored = [TABLE + bigint(i) for i in range(300_000)]
    store = store_of(stored)
    looked = 0

    class Counting:
        def scan(self, *args: object, **options: object) -> object:
            nonlocal looked
            for entry in store.scan(*args, **options):  # type: ignore[arg-type]
                looked += 1
                yield entry

    splitting = splits._Splitting(Counting(), Family.ROWS)  # type: ignore[arg-type]
    cuts = splitting.split(splits._Branch(stored[0], NEXT), 8)
    assert max(sizes(stored, cuts)) < 1.2 * len(stored) / 8
    assert looked < 60_000


@given(count=st.integers(0, 60), parts=st.integers(1, 20), exact=st.sampled_from([5, 1000]))
@settings(deadline=None, max_examples=150)
def test_cuts_are_keys_in_order_and_never_more_than_asked_for(count: int, parts: int, exact: int) -> None:
    stored = sorted({TABLE + text(str(UUID(int=chance.getrandbits(128)))) for _ in range(count)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "EXACT_KEYS", exact)
        cuts = split_keys(store_of(stored), Family.ROWS, TABLE, NEXT, parts)
    assert cuts == sorted(set(cuts))
    assert set(cuts) <= set(stored[1:])
    assert len(cuts) <= max(parts - 1, 0)
    if exact > count >= parts:
        assert max(sizes(stored, cuts)) - min(sizes(stored, cuts)) <= 1
