"""Two nodes compare their tables: they end equal, exchange only what differs, and are silent when nothing does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_double import TABLE, Node

from tablecast.codec import sync
from tablecast.codec.events import encode_event
from tablecast.codec.sync import MAX_SYNC_BYTES, AskEvents, AskNodes, AskRoots, Busy, Events, Push, Taken
from tablecast.core.anti_entropy import LEAST_MESSAGE_BYTES, Dialogue, Missing, Room, reply
from tablecast.core.merkle import bucket_of
from tablecast.errors import InvalidRequest
from tablecast.model.replication import Event, Version


class Talk:
    """Runs a dialogue over encoded messages and keeps count. It breaks off after `most` questions."""

    def __init__(
        self,
        asker: Node,
        peer: Node,
        in_vain: frozenset[Missing] = frozenset(),
        room: Room | None = None,
        most: int | None = None,
    ) -> None:
        self.dialogue = Dialogue(lambda: asker, in_vain, room)
        self.room = room
        self.largest = 0
        self.questions: list[sync.Question] = []
        self.bytes = 0
        while len(self.questions) != most and (question := self.dialogue.question()) is not None:
            self.questions.append(question)
            for data in self.dialogue.replied(sync.decode_reply(self._sent(self._answer(question, peer)))):
                asker.apply(TABLE, data)

    def _answer(self, question: sync.Question, peer: Node) -> sync.Reply:
        asked = sync.decode_question(self._sent(question))
        if not isinstance(asked, Push):
            return reply(asked, peer, self.room)
        for data in asked.events:
            peer.apply(TABLE, data)
        return Taken()

    def _sent(self, message: sync.Question | sync.Reply) -> bytes:
        data = sync.encode(message)
        alone = isinstance(message, Push | Events) and len(message.events) == 1
        assert len(data) <= MAX_SYNC_BYTES or alone
        self.bytes += len(data)
        self.largest = max(self.largest, len(data))
        return data


Write = tuple[str, int, str]
WRITES = st.lists(
    st.tuples(
        st.sampled_from([f"{TABLE}:{n}" for n in range(40)]),
        st.integers(0, 3),
        st.sampled_from("abc"),
    )
)


def one_bucket(key: str) -> int:
    return 0xA3F


@given(WRITES, WRITES, st.sampled_from([bucket_of, one_bucket]))
@settings(max_examples=30)
def test_both_end_with_the_greater_version_of_everything(
    mine: list[Write], theirs: list[Write], bucket: Callable[[str], int]
) -> None:
    a, b = Node(bucket=bucket), Node(bucket=bucket)
    best: dict[str, Version] = {}
    for node, writes in ((a, mine), (b, theirs)):
        for key, timestamp_ms, node_id in writes:
            version = Version(timestamp_ms, node_id, timestamp_ms)
            node.apply(TABLE, encode_event(Event(key, version, "v" if timestamp_ms % 2 else None)))
            best[key] = max(best.get(key, Version(0, "", 0)), version)
    differing = sum(a.tables[TABLE].get(key) != b.tables[TABLE].get(key) for key in best)
    talk = Talk(a, b)
    assert {key: event.version for key, event in a.tables[TABLE].items()} == best
    assert a.roots() == b.roots()
    assert talk.dialogue.pulled + talk.dialogue.pushed >= differing
    silent = Talk(a, b)
    assert silent.questions == [AskRoots(dict(a.roots()))]
    assert silent.dialogue.pulled == silent.dialogue.pushed == 0


def filled(count: int, bucket: Callable[[str], int] = bucket_of, value: str = "v") -> Node:
    node = Node(bucket=bucket)
    for number in range(count):
        node.write(f"{TABLE}:{number:06}", number, value=value)
    return node


@pytest.mark.parametrize("asker_is_empty", [True, False])
def test_an_empty_node_is_filled_whoever_asks(asker_is_empty: bool) -> None:
    full, empty = filled(700), Node()
    Talk(*((empty, full) if asker_is_empty else (full, empty)))
    assert empty.tables == full.tables


def test_a_bucket_that_fills_several_messages_is_told_in_parts() -> None:
    full, other = filled(3000, one_bucket), Node(bucket=one_bucket)
    other.write(f"{TABLE}:001500", 9_999, "z")
    other.write(f"{TABLE}:9", 1, "z")
    talk = Talk(other, full)
    assert other.tables == full.tables
    assert len(full.tables[TABLE]) == 3001
    assert sum(isinstance(question, sync.AskEntries) for question in talk.questions) > 1


def test_an_event_larger_than_a_message_goes_alone() -> None:
    a, b = filled(3, value="x" * 100_000), filled(0)
    Talk(b, a)
    assert b.tables == a.tables
    b.write(f"{TABLE}:000001", 10**6, value="y" * 100_000)
    Talk(b, a)
    assert b.tables == a.tables


@pytest.mark.parametrize("asker_is_empty", [True, False])
def test_a_dialogue_that_broke_off_is_resumed_and_only_the_rest_is_exchanged(asker_is_empty: bool) -> None:
    rows, most = 2_000, 25
    full, empty = filled(rows), Node()
    pair = (empty, full) if asker_is_empty else (full, empty)
    first = Talk(*pair, most=most)
    assert len(first.questions) == most
    exchanged = len(empty.tables[TABLE])
    assert 0 < exchanged < rows
    second = Talk(*pair)
    assert second.dialogue.pulled + second.dialogue.pushed == rows - exchanged
    assert empty.tables == full.tables
    whole = Talk(*((Node(), full) if asker_is_empty else (full, Node())))
    assert len(second.questions) < len(whole.questions), "what is equal by now is not descended into again"


def test_few_differences_cost_little() -> None:
    a, b = filled(20_000, value="x" * 100), filled(20_000, value="x" * 100)
    for number in range(0, 20_000, 5_000):
        b.write(f"{TABLE}:{number:06}", 10**7, "b")
    talk = Talk(a, b)
    assert talk.dialogue.pulled == 4
    assert a.tables == b.tables
    assert talk.bytes < 0.01 * sum(len(encode_event(event)) for event in a.tables[TABLE].values())


def test_what_cannot_be_had_is_not_asked_for_again() -> None:
    a, b = filled(10), filled(10)
    b.write(f"{TABLE}:poison", 99)
    a.accepts = lambda event: "poison" not in event.key
    first = Talk(a, b).dialogue
    assert first.exchanged == {Missing(TABLE, f"{TABLE}:poison", Version(99, "a", 100))}
    again = Talk(a, b, frozenset(first.exchanged))
    assert again.dialogue.differing_buckets == 1
    assert not [question for question in again.questions if isinstance(question, AskEvents)]


def test_tables_of_one_side_only_are_left_alone() -> None:
    a, b = Node([TABLE, "app.mine"]), Node([TABLE, "app.theirs"])
    a.write("app.mine:1", 1, table="app.mine")
    b.write(f"{TABLE}:1", 1)
    Talk(a, b)
    assert a.tables[TABLE] == b.tables[TABLE]
    assert "app.mine" not in b.tables


def test_a_table_that_is_dropped_on_the_way_ends_its_part_only() -> None:
    a, b = Node([TABLE, "app.zoo"]), Node([TABLE, "app.zoo"])
    b.write(f"{TABLE}:1", 1)
    b.write("app.zoo:1", 1, table="app.zoo")
    dialogue = Dialogue(lambda: a)
    first = dialogue.question()
    assert isinstance(first, AskRoots)
    dialogue.replied(reply(first, b))
    del b.tables[TABLE]
    asked = []
    while (question := dialogue.question()) is not None:
        asked.append(question)
        assert not isinstance(question, Push)
        dialogue.replied(reply(question, b))
    assert [question for question in asked if question.table == TABLE] == [
        AskNodes(TABLE, 1, [bucket_of(f"{TABLE}:1") >> 8])
    ]
    assert [question.keys for question in asked if isinstance(question, AskEvents)] == [["app.zoo:1"]]


def test_a_reply_to_another_question_ends_the_dialogue() -> None:
    a, b = filled(1), filled(2)
    dialogue = Dialogue(lambda: a)
    dialogue.question()
    assert dialogue.replied(Taken()) == ()
    assert dialogue.question() is None
    assert dialogue.broken_off
    assert b.roots() != a.roots()


def test_a_busy_peer_was_not_compared_with() -> None:
    a = filled(1)
    dialogue = Dialogue(lambda: a)
    dialogue.question()
    assert dialogue.replied(Busy()) == ()
    assert dialogue.question() is None
    assert dialogue.broken_off
    assert not Talk(a, filled(2)).dialogue.broken_off


def test_a_peer_that_looks_at_nothing_is_not_asked_for_ever() -> None:
    a, b = Node(), filled(1)
    dialogue = Dialogue(lambda: a)
    while not isinstance(question := dialogue.question(), AskEvents):
        assert question is not None and not isinstance(question, Push)
        dialogue.replied(reply(question, b))
    dialogue.replied(Events([], 0))
    assert dialogue.question() is None


def test_messages_are_written_as_specified() -> None:
    assert sync.encode(AskNodes("app.t", 1, [2, 255])).hex(" ") == (
        "01 94 a6 6e 6f 64 65 73 3f a5 61 70 70 2e 74 01 92 02 cc ff"
    )
    assert sync.encode(Taken()).hex(" ") == "01 91 a5 74 61 6b 65 6e"


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else(data: bytes) -> None:
    for decode in (sync.decode_question, sync.decode_reply):
        try:
            decode(data)
        except InvalidRequest:
            pass
        try:
            decode(b"\x01" + data)
        except InvalidRequest:
            pass


# --- a broker that lets in only so much -------------------------------------------------------------------------------

SIZES = st.lists(st.sampled_from([1, 100, 700, 3_000, 20_000]), max_size=60)


@given(SIZES, SIZES, st.integers(LEAST_MESSAGE_BYTES, 12_000), st.sampled_from([bucket_of, one_bucket]))
@settings(max_examples=30)
def test_no_message_is_larger_than_the_broker_lets_in_and_what_fits_is_exchanged(
    mine: list[int], theirs: list[int], limit: int, bucket: Callable[[str], int]
) -> None:
    a, b = Node(bucket=bucket), Node(bucket=bucket)
    for node, sizes in ((a, mine), (b, theirs)):
        for number, size in enumerate(sizes):
            node.write(f"{TABLE}:{'a' if node is a else 'b'}{number}", number + 1, value="x" * size)
    before = {key: event for node in (a, b) for key, event in node.tables[TABLE].items()}
    left_out: list[int] = []
    talk = Talk(a, b, room=Room(limit, limit, left_out.append))
    assert talk.largest <= limit
    for node in (a, b):
        lacking = {key: event for key, event in before.items() if key not in node.tables[TABLE]}
        assert all(len(encode_event(event)) > limit - 512 for event in lacking.values())
        assert all(len(encode_event(event)) in left_out for event in lacking.values())


def test_many_tables_and_deep_trees_fit_a_narrow_broker_too() -> None:
    tables = [TABLE, *(f"app.{'t' * 50}{number:03}" for number in range(300))]
    a, b = Node(tables), Node(tables)
    for number in range(3_000):
        a.write(f"{TABLE}:{number:06}", number)
    talk = Talk(a, b, room=Room(LEAST_MESSAGE_BYTES, LEAST_MESSAGE_BYTES))
    assert talk.largest <= LEAST_MESSAGE_BYTES
    assert talk.dialogue.pushed == 3_000


def test_an_event_that_needs_a_message_of_its_own_may_be_larger_than_the_others() -> None:
    a, b = Node(), Node()
    a.write(f"{TABLE}:1", 1, value="x" * 9_000)
    a.write(f"{TABLE}:2", 2, value="x" * 200_000)
    a.write(f"{TABLE}:3", 3, value="x" * 11_000)
    Talk(a, b, room=Room(5_000, 10_000))
    assert b.tables[TABLE].keys() == {f"{TABLE}:1"}
