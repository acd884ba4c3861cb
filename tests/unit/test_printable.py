"""What strangers send can neither forge a line of a log nor steer a terminal that shows it, in every form of log."""

from __future__ import annotations

import io
import json
import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tablecast
from tablecast.core.printable import printable
from tablecast.server.logs import RequestContext, _current, configure_logging, identify

HOSTILE = "ann\r\n2026-01-01 INFO forged\x1b[2J\x07\x9b\u2028\u202egnp.exe\u2066\u200b\ufeff\ud800"
texts = st.text() | st.text(st.sampled_from(HOSTILE))


class Settings(msgspec.Struct):
    log_format: str
    log_level: str = "info"


@given(texts)
def test_everything_is_shown_and_what_can_be_seen_is_left_alone(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    shown.encode()
    if text.isprintable():
        assert shown == text


def logged(form: str, text: str) -> str:
    """All that is written when a stranger's text is in every part of a line."""
    stream = io.StringIO()
    configure_logging(Settings(form), stream)
    token = _current.set(RequestContext("r1"))
    try:
        identify(text)
        fields = {"path": text, text: 1, "all": [text, {"name": text}]}
        try:
            raise ValueError(text)
        except ValueError:
            logging.getLogger("tablecast.test").exception("of %s", text, extra={"fields": fields})
    finally:
        _current.reset(token)
        logging.getLogger().handlers.clear()
    return stream.getvalue()


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in strings(part)]
    if isinstance(value, list):
        return [text for part in value for text in strings(part)]
    return [value] if isinstance(value, str) else []


@given(texts)
def test_a_line_of_json_has_nothing_in_it_that_is_not_to_be_seen(text: str) -> None:
    [line] = logged("json", text).splitlines()
    found = json.loads(line)
    for part in found.pop("exception").split("\n"):
        assert part.startswith("    ")
        assert part.isprintable()
    assert all(part.isprintable() for part in strings(found))


@given(texts)
def test_a_line_of_text_is_one_line_and_a_traceback_none(text: str) -> None:
    first, *rest = logged("text", text).split("\n")
    assert first.isprintable()
    assert rest.pop() == ""
    assert all(line.isprintable() and line.startswith("    ") for line in rest)


@pytest.mark.parametrize("name", [HOSTILE, "a\nb", "\x1b]0;title\x07", "\u202etxt"])
def test_the_audit_log_shows_names_of_strangers_escaped(name: str) -> None:
    with tablecast.open(":memory:") as db:
        db.audit(name, "SIGN IN", target=name, outcome="failed", detail=name, request_id=name)
        db.execute("CREATE NAMESPACE app")  # entries are not waited for, but come in order
        [row] = db.query(
            "SELECT user_id, target, detail, request_id FROM system.audit_log WHERE action = 'SIGN IN'"
        ).rows
    assert row == (printable(name),) * 4
    assert all(text.isprintable() for text in row)
