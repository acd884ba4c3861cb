"""RETURNING _seq: the number of the commit that the statement is, null as long as there is none."""

from __future__ import annotations

from typing import Any

import pytest
from faces import FACES, face

from tablecast.errors import TablecastError, UnsupportedSql

STATEMENTS = [
    "INSERT INTO t VALUES (1, 'x', NULL) RETURNING id, _seq, v, _seq AS at",
    "INSERT INTO t VALUES (1, 'y', NULL) ON CONFLICT (id) DO UPDATE SET v = 'y' RETURNING id, _seq, v, _seq AS at",
    "UPDATE t SET v = 'z' WHERE id = 1 RETURNING id, t._seq, v, _seq AS at",
    "UPDATE t SET v = (SELECT max(v) FROM t) RETURNING id, _seq, v, _seq AS at",
    "DELETE FROM t WHERE id = 1 RETURNING id, _seq, v, _seq AS at",
]


def seqs(result: Any) -> list[Any]:
    """What the columns show, and that they are typed as they are."""
    assert result.columns == ("id", "_seq", "v", "at")
    assert result.schema[1] == ("_seq", "BIGINT")
    assert [row[1] for row in result.rows] == result.arrow().column("_seq").to_pylist()
    return [value for _, one, _, other in result.rows for value in (one, other)]


@pytest.mark.parametrize("kind", FACES)
@pytest.mark.parametrize("keyed", [False, True])
def test_it_is_the_number_of_the_commit(kind: str, keyed: bool) -> None:
    with face(kind) as database:
        database.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT, j JSON)")
        before = 0
        for number, sql in enumerate(STATEMENTS):
            key = {"idempotency_key": f"key {number}"} if keyed else {}
            result = database.execute(sql, **key)
            assert seqs(result) == [result.seq, result.seq]
            assert result.seq > before
            before = result.seq
            if not sql.startswith("DELETE"):
                assert database.query("SELECT _seq FROM t WHERE id = 1").scalar() == result.seq
            if keyed:
                assert seqs(database.execute(sql, **key)) == [result.seq, result.seq]


@pytest.mark.parametrize("kind", FACES)
def test_it_is_null_inside_a_transaction(kind: str) -> None:
    with face(kind) as database:
        database.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT, j JSON)")
        with database.transaction() as tx:
            assert [seqs(tx.execute(sql)) for sql in STATEMENTS] == [[None, None]] * len(STATEMENTS)
        for key in (None, "a key", "a key"):
            *inside, end = database.execute_all("; ".join(["BEGIN", *STATEMENTS, "COMMIT"]), idempotency_key=key)
            assert [seqs(result) for result in inside[1:]] == [[None, None]] * len(STATEMENTS)
            assert end.seq is not None


@pytest.mark.parametrize("kind", FACES)
def test_several_statements_with_a_key_are_one_commit_and_show_it(kind: str) -> None:
    with face(kind) as database:
        database.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT, j JSON)")
        for _ in range(2):
            results = database.execute_all("; ".join(STATEMENTS), idempotency_key="k")
            assert {seq for result in results for seq in seqs(result)} == {results[0].seq}


@pytest.mark.parametrize("kind", FACES)
def test_it_stands_by_itself_and_a_star_does_not_show_it(kind: str) -> None:
    with face(kind) as database:
        database.execute("CREATE TABLE t (id INT PRIMARY KEY, j JSON)")
        with pytest.raises(UnsupportedSql, match="_seq by itself"):
            database.execute("INSERT INTO t VALUES (1, NULL) RETURNING _seq + 1")
        with pytest.raises(TablecastError):
            database.execute("UPDATE t SET _seq = 1")
        result = database.execute("INSERT INTO t VALUES (1, '[1]'), (2, NULL) RETURNING *, _seq")
        assert result.rows == [(1, [1], result.seq), (2, None, result.seq)]
        assert database.execute("DELETE FROM t WHERE id = 9 RETURNING _seq").rows == []
