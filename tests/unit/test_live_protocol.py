"""The protocol of live connections, as scripts that a reviewer can read, and under random events.

A step of a script is a command; below the dashes stand the actions it led to, and where the connection and its
subscriptions are then. `python test_live_protocol.py` writes the scripts anew: look at the difference before you keep it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.codec import live as m
from tablecast.core import live_protocol as p
from tablecast.errors import Overloaded, TablecastError, Unauthenticated, UnknownTable

SCRIPTS = sorted((Path(__file__).parent / "golden" / "live").glob("*.txt"))
DASHES = "----"
ERRORS = {kind.code: kind for kind in (Unauthenticated, Overloaded, UnknownTable)}
COLUMNS = [m.LiveColumn("id", "BIGINT")]


class Play:
    """One connection. `1` is the subscription of that id that was made last, `1#1` the first one."""

    def __init__(self, max_subscriptions: int = 3) -> None:
        self.protocol = p.LiveProtocol(max_subscriptions)
        self.made: dict[str, list[p.Subscription]] = {}

    def step(self, command: str) -> str:
        verb, *words = command.split()
        actions: p.Actions = getattr(self, verb)(*words)
        for action in actions:
            if isinstance(action, p.Open):
                self.made.setdefault(str(action.subscription.id), []).append(action.subscription)
        return "\n".join([*(self.shown(action) for action in actions), self.state()])

    def state(self) -> str:
        stages = ", ".join(f"{s.id} {s.stage.name}" for s in self.protocol.subscriptions)
        return f"({self.protocol.phase.name}{': ' if stages else ''}{stages})"

    def shown(self, action: p.Action) -> str:
        if isinstance(action, p.Send):
            return f"send {m.encode(action.message, 'json').decode()}"
        return " ".join([type(action).__name__, *(self.told(value) for value in action)])

    def told(self, value: Any) -> str:
        return str(value.id) if isinstance(value, p.Subscription) else str(value)

    def of(self, word: str) -> p.Subscription:
        name, _, number = word.partition("#")
        return self.made[name][int(number) - 1 if number else -1]

    # --- from the client ---

    def authenticate(self, user: str) -> p.Actions:
        return self.protocol.received(m.Authenticate(user=user, password="secret"))

    def subscribe(self, name: str, *options: str) -> p.Actions:
        given: dict[str, Any] = dict(option.split("=") for option in options)
        given |= {key: int(value) for key, value in given.items() if value.isdecimal()}
        return self.protocol.received(m.Subscribe(int(name), "SELECT id FROM t", **given))

    def next_batch(self, name: str) -> p.Actions:
        return self.protocol.received(m.NextBatch(int(name)))

    def unsubscribe(self, name: str) -> p.Actions:
        return self.protocol.received(m.Unsubscribe(int(name)))

    def ping(self, *nonce: str) -> p.Actions:
        return self.protocol.received(m.Ping(*nonce))

    # --- what became of it ---

    def signed_in(self, user: str, role: str) -> p.Actions:
        return self.protocol.signed_in(user, role)

    def refused(self, code: str) -> p.Actions:
        return self.protocol.refused(ERRORS[code]("no"))

    def late(self) -> p.Actions:
        return self.protocol.is_late(3.0)

    def opened(self, name: str, mode: m.Mode, seq: str) -> p.Actions:
        return self.protocol.opened(self.of(name), int(seq), "7f3a90c1d2e4b586", mode, COLUMNS, [0])

    def read(self, name: str, seq: str, values: str, end: str) -> p.Actions:
        rows: list[m.Values] = [[value] for value in values.split(",")]
        return self.protocol.rows_read(self.of(name), int(seq), rows, end == "last")

    def joined(self, name: str, channel: str, seq: str) -> p.Actions:
        return self.protocol.joined(self.of(name), int(channel), int(seq), [m.RowChange("delete", key=["1"])])

    def lagging(self, name: str, seq: str) -> p.Actions:
        return self.protocol.lagging(self.of(name), int(seq))

    def ended(self, name: str, code: str) -> p.Actions:
        return self.protocol.failed(self.of(name), ERRORS[code]("it is over"))

    # --- the end ---

    def garbage(self, code: str) -> p.Actions:
        return self.protocol.failed_for_all(int(code), TablecastError("what is that?"))

    def account_ended(self) -> p.Actions:
        return self.protocol.failed_for_all(p.UNAUTHENTICATED, Unauthenticated("the account was dropped"))

    def drain(self) -> p.Actions:
        return self.protocol.drained()

    def lost(self) -> p.Actions:
        return self.protocol.closed()


def played(script: str) -> str:
    """The script with the output of its steps as they are now. A remark that begins with `## ` begins anew."""
    play = Play()
    paragraphs = []
    for paragraph in re.split(r"\n{2,}", script.strip()):
        command, dashes, _ = paragraph.partition(f"\n{DASHES}")
        if not dashes:
            paragraphs.append(paragraph)
            play = Play() if paragraph.startswith("## ") else play
        else:
            paragraphs.append(f"{command}\n{DASHES}\n{play.step(command)}")
    return "\n\n".join(paragraphs) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    script = path.read_text(encoding="utf-8")
    assert script.count(f"\n{DASHES}\n") > 3
    assert played(script) == script


def test_every_transition_of_the_table_is_in_a_script() -> None:
    """At least every verb, every action and every state."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in SCRIPTS)
    verbs = [
        name for name in vars(Play) if not name.startswith("_") and name not in ("step", "state", "shown", "told", "of")
    ]
    assert [verb for verb in verbs if not re.search(rf"^{verb}\b", text, re.MULTILINE)] == []
    seen = [phase for phase in p.Phase if f"({phase.name}" in text]
    assert seen == [p.Phase.CHECKING, p.Phase.OPEN, p.Phase.CLOSED], "whatever happens, it is UNKNOWN no longer"
    assert [stage.name for stage in p.Stage if f" {stage.name}" not in text] == []
    for action in (p.Answer, p.CheckCredentials, p.Open, p.ReadRows, p.Join, p.Leave, p.Close):
        assert re.search(rf"^{action.__name__} ", text, re.MULTILINE), action
    for message in (m.AuthOk, m.Subscribed, m.Rows, m.Live, m.Lagging, m.Error, m.Unsubscribed):
        assert f'"type":"{message.__struct_config__.tag}"' in text, message


def test_messages_that_come_before_it_is_known_who_sends_them_are_few() -> None:
    protocol = p.LiveProtocol(10)
    protocol.received(m.Authenticate(token="t"))
    for _ in range(p.MAX_EARLY_MESSAGES):
        assert protocol.received(m.Ping()) == []
    [error, close] = protocol.received(m.Ping())
    assert isinstance(error, p.Send)
    assert isinstance(error.message, m.Error)
    assert error.message.code == "too_many_requests"
    assert close == p.Close(p.PROTOCOL_ERROR, "too_many_requests")


def test_credentials_are_in_no_text() -> None:
    assert "secret" not in repr(m.Authenticate(user="ann", password="secret"))
    assert "secret" not in repr(p.CheckCredentials(m.Authenticate(token="secret")))


# --- random events ----------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["1", "2", "3", "4"])
EVENTS = st.one_of(
    st.tuples(st.just("subscribe"), NAMES),
    st.tuples(st.sampled_from(["next_batch", "unsubscribe"]), NAMES),
    st.tuples(st.just("opened"), NAMES, st.sampled_from(["snapshot", "resumed", "refetch"]), st.just("7")),
    st.tuples(st.just("read"), NAMES, st.just("7"), st.just("1,2"), st.sampled_from(["more", "last"])),
    st.tuples(st.just("joined"), NAMES, st.just("4"), st.just("9")),
    st.tuples(st.just("lagging"), NAMES, st.just("9")),
    st.tuples(st.just("ended"), NAMES, st.just("unknown_table")),
    st.sampled_from([("ping",), ("signed_in", "ann", "user"), ("late",), ("authenticate", "ann")]),
    st.sampled_from([("drain",), ("lost",), ("garbage", "1007"), ("account_ended",), ("refused", "overloaded")]),
)


class Outside:
    """What the owner of the socket knows: what it was told to do, and what may therefore be reported."""

    def __init__(self) -> None:
        self.play = Play()
        self.under_way: dict[p.Subscription, type] = {}
        self.over: set[p.Subscription] = set()
        self.is_closed = False

    def may(self, verb: str, name: str) -> bool:
        """A report comes only for what was asked for, or about a subscription that is live."""
        subscription = self.play.made[name][-1] if name in self.play.made else None
        if subscription is None or subscription in self.over:
            return False
        wanted = {"opened": p.Open, "read": p.ReadRows, "joined": p.Join}.get(verb)
        return wanted is None or self.under_way.get(subscription) is wanted

    def happens(self, verb: str, *words: str) -> None:
        actions: p.Actions = getattr(self.play, verb)(*words)
        if verb in ("opened", "read", "joined"):
            self.under_way.pop(self.play.of(words[0]), None)
        assert not (self.is_closed and actions), "nothing follows a close"
        for action in actions:
            self.check(action)

    def check(self, action: p.Action) -> None:
        match action:
            case p.Open(subscription):
                self.play.made.setdefault(str(subscription.id), []).append(subscription)
                self.under_way[subscription] = p.Open
            case p.ReadRows(subscription) | p.Join(subscription):
                assert subscription not in self.under_way, "one thing at a time"
                assert subscription not in self.over
                self.under_way[subscription] = type(action)
            case p.Leave(subscription):
                assert subscription not in self.over, "it leaves once"
                self.over.add(subscription)
                self.under_way.pop(subscription, None)
            case p.Send(m.Live(name)) | p.Send(m.Rows(name)) | p.Send(m.Subscribed(name)):
                assert self.play.made[str(name)][-1] not in self.over
            case p.Close():
                self.is_closed = True
                assert self.play.protocol.subscriptions == []


@given(st.lists(EVENTS, max_size=60))
def test_whatever_happens_each_subscription_is_opened_and_left_once(events: list[tuple[str, ...]]) -> None:
    outside = Outside()
    outside.happens("signed_in", "ann", "user")
    for verb, *words in events:
        if verb in ("opened", "read", "joined", "lagging", "ended") and not outside.may(verb, words[0]):
            continue
        if verb == "refused":
            continue  # nothing is checked any more
        outside.happens(verb, *words)
        if verb == "lost":
            outside.is_closed = True
    made = {s for each in outside.play.made.values() for s in each}
    assert made - outside.over == set(outside.play.protocol.subscriptions)
    assert set(outside.under_way) <= set(outside.play.protocol.subscriptions)


if __name__ == "__main__":
    for path in SCRIPTS:
        path.write_text(played(path.read_text(encoding="utf-8")), encoding="utf-8")
