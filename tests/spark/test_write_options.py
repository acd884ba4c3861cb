"""Options of a write: what they mean, and what is said of wrong ones."""

from __future__ import annotations

import pytest

from tablecast.errors import InvalidRequest
from tablecast.spark.write_options import refuse_overwrite, refuse_writer_id, write_options

GIVEN = {"url": "http://127.0.0.1:1", "user": "ann", "password": "hush hush", "table": "app.t"}


def test_defaults_and_any_case() -> None:
    made = write_options(GIVEN, {})
    assert (made.table, made.mode, made.op_column, made.bulk, made.writer_id, made.batch_id) == (
        "app.t", "insert", None, "auto", None, 0,
    )  # fmt: skip
    assert write_options({**GIVEN, "MODE": "Upsert"}, {}).mode == "upsert"
    changes = write_options({**GIVEN, "opcolumn": "what"}, {})
    assert (changes.mode, changes.op_column) == ("changes", "what")
    numbered = write_options({**GIVEN, "writerId": "w", "batchId": "7"}, {})
    assert (numbered.writer_id, numbered.batch_id) == ("w", 7)


def test_a_topic_is_asked_for_its_table() -> None:
    made = write_options({**GIVEN, "table": "", "topic": "app.told"}, {})
    assert (made.topic, made.table) == ("app.told", "")
    assert write_options(GIVEN, {}).topic is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "replace"}, 'option "mode" is one of insert, upsert, delete'),
        ({"mode": "upsert", "opColumn": "op"}, 'give option "mode" or option "opColumn", not both'),
        ({"bulk": "sometimes"}, 'option "bulk" is one of auto, always, never'),
        ({"bulk": "always", "mode": "upsert"}, "goes with inserts only, not with upsert"),
        ({"bulk": "always", "opColumn": "op"}, "goes with inserts only, not with changes"),
        ({"batchId": "4"}, 'option "batchId" numbers the writes of a "writerId"'),
        ({"writerId": "w", "batchId": "-4"}, 'option "batchId" is a whole number from 0'),
        ({"writerId": ""}, 'option "writerId" is a text of 1 to 200 bytes'),
        ({"writerId": "é" * 101}, 'option "writerId" is a text of 1 to 200 bytes'),
        ({"tabel": "x"}, "did you mean 'table'?"),
        ({"topic": "app.told"}, 'give option "topic" or option "table", one of them'),
    ],
)
def test_what_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        write_options({**GIVEN, **options}, {})
    assert said in str(refused.value)
    assert "hush" not in str(refused.value)


def test_only_append_writes() -> None:
    refuse_overwrite(False)
    with pytest.raises(InvalidRequest, match=r"only \.mode"):
        refuse_overwrite(True)


def test_a_stream_has_no_writer_id() -> None:
    refuse_writer_id(write_options(GIVEN, {}))
    with pytest.raises(InvalidRequest, match="known by the query id in its checkpoint"):
        refuse_writer_id(write_options({**GIVEN, "writerId": "w"}, {}))


def test_credentials_are_not_shown() -> None:
    assert "hush" not in repr(write_options(GIVEN, {}))
