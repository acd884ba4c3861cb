"""What is remembered of texts that users send is bounded: a long one is not kept, and means the same."""

from __future__ import annotations

import pytest

import tablecast
from tablecast.core.expression import like
from tablecast.model.schema import SYSTEM_ACTOR
from tablecast.sql import plan_live as live


@pytest.mark.parametrize(("length", "kept"), [(like.KEPT_PATTERN_CHARS, 1), (like.KEPT_PATTERN_CHARS + 1, 0)])
@pytest.mark.parametrize("wildcard", ["%", "_"])
def test_patterns(length: int, kept: int, wildcard: str) -> None:
    like._kept.cache_clear()
    text = "é" * (length - 1)
    matches = like.matcher(text + wildcard)
    assert matches(text + "x") and not matches("x" + text)
    assert like._kept.cache_info().currsize == kept


@pytest.mark.parametrize(("more", "kept"), [(0, 1), (1, 0)])
def test_live_queries(more: int, kept: int) -> None:
    for cache in (live._parsed, live._form):
        cache.cache_clear()
    with tablecast.open(":memory:") as db:
        db.execute("CREATE TABLE notes (id INT PRIMARY KEY, text TEXT)")
        sql = "SELECT text FROM notes WHERE id > ? AND text <> ''"
        sql = sql[:-1] + "x" * (live.KEPT_TEXT_CHARS - len(sql) + more) + "'"
        first, second = (live.plan_live(db.engine.catalog, SYSTEM_ACTOR, sql, [7]) for _ in range(2))
    assert len(sql) == live.KEPT_TEXT_CHARS + more
    assert first.identity == second.identity  # whoever asks for the same is still told together
    assert [live._parsed.cache_info().currsize, live._form.cache_info().currsize] == [kept, kept]
