"""When a node compares, with whom and how fast, in virtual time. What is said is tested in test_anti_entropy.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from edge_double import LinkDouble, ReplicaDouble
from node_double import TABLE, Node

from tablecast.codec.sync import AskEvents, AskRoots, Busy, Push, Question, Reply, Taken, decode_question, encode
from tablecast.core.anti_entropy import reply
from tablecast.edge.anti_entropy import (
    MAX_REPLIES_PER_SECOND,
    QUESTION_SECONDS,
    REPLY_SECONDS,
    AntiEntropy,
)
from tablecast.edge.base import Delivery, Limits, Publication
from tablecast.edge.status import StatusBoard
from tablecast.errors import Overloaded
from tablecast.testing.virtual_time import VirtualTime

BASE = "p/sync"
INTERVAL_SECONDS = 600.0
SOON_SECONDS = 5.0  # much less than the interval


def filled(count: int) -> Node:
    node = Node()
    for number in range(count):
        node.write(f"{TABLE}:{number:06}", number)
    return node


class Side:
    """A node that compares, and what it published."""

    def __init__(
        self,
        time: VirtualTime,
        name: str = "me",
        node: Node | None = None,
        *,
        chance: float = 0.5,
        at_once: bool = True,
    ) -> None:
        self.time = time
        self.replica = ReplicaDouble(name, node, at_once=at_once)
        self.link = LinkDouble(time)
        self.board = StatusBoard(lambda: 0)
        self.moving = False
        self.comparing = AntiEntropy(
            self.replica,
            self.link,
            time,
            self.board,
            BASE,
            lambda: chance,
            lambda: self.moving,
            interval_seconds=INTERVAL_SECONDS,
        )

    def connect(self, peer: str = "peer") -> None:
        self.comparing.connected(Limits(None))
        self.comparing.presence(peer, online=True)

    def next_question(self) -> Publication:
        """Of a round that begins soon, not with the interval."""
        before = len(self.link.published)
        self.time.run_for(SOON_SECONDS)
        [(_, question)] = self.link.published[before:]
        return question

    def answer(self, question: Publication, said: Reply) -> None:
        self.comparing.replied(Delivery(question.topic, encode(said), None, question.correlation, 1, 1))


def asked(question: Publication) -> Question:
    return decode_question(question.payload)


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


# --- how fast ---------------------------------------------------------------------------------------------------------


def test_a_node_answers_only_so_many_questions_a_second(time: VirtualTime) -> None:
    side = Side(time, node=filled(3))
    question = Delivery(f"{BASE}/me", encode(AskRoots({TABLE: bytes(16)})), f"{BASE}/peer/replies", b"1", 1, 1)
    for answered in (MAX_REPLIES_PER_SECOND, 2 * MAX_REPLIES_PER_SECOND):
        for _ in range(MAX_REPLIES_PER_SECOND + 50):
            side.comparing.asked(question)
        assert len(side.link.published) == answered, "what is beyond is not answered"
        time.run_for(1)
    side.comparing.asked(question)
    assert len(side.link.published) == 2 * MAX_REPLIES_PER_SECOND + 1, "and is not made up for later"


def test_questions_keep_a_distance_however_fast_the_peer_is(time: VirtualTime) -> None:
    side, peer = Side(time, node=Node()), filled(1_000)
    side.connect()
    answered = 0
    while not side.board.status.rounds:
        time.run_for(QUESTION_SECONDS / 10)
        for _, question in side.link.published[answered:]:
            answered += 1
            read = asked(question)
            assert not hasattr(read, "events")
            side.answer(question, reply(read, peer))  # type: ignore[arg-type]
    times = [at for at, _ in side.link.published]
    assert len(times) > 5
    assert min(later - earlier for earlier, later in pairwise(times)) >= QUESTION_SECONDS
    assert side.replica.node.tables == peer.tables
    assert side.board.status.pulled == 1_000


# --- rounds that come to no end ---------------------------------------------------------------------------------------


def test_a_peer_that_is_busy_was_not_compared_with_and_is_asked_again_soon(time: VirtualTime) -> None:
    side = Side(time)
    side.connect()
    side.answer(side.next_question(), Busy())
    assert side.board.status.rounds == 0
    assert side.board.status.last_compared_ms is None
    question = side.next_question()
    read = asked(question)
    assert isinstance(read, AskRoots)
    side.answer(question, reply(read, Node()))
    time.run_for(SOON_SECONDS)
    assert side.board.status.rounds == 1


def test_nothing_is_learnt_from_a_reply_that_is_none(time: VirtualTime) -> None:
    """The row that was asked for did not come: it must not be taken for one that cannot be had."""
    side, peer = Side(time), filled(1)
    side.connect()
    for attempt in range(3):
        question = side.next_question()
        while not isinstance(read := asked(question), AskEvents):
            side.answer(question, reply(read, peer))  # type: ignore[arg-type]
            time.run_for(2 * QUESTION_SECONDS)
            assert side.link.published[-1][1] is not question, f"attempt {attempt}: the row is not asked for"
            question = side.link.published[-1][1]
        side.answer(question, Taken())
    assert side.board.status.rounds == 0


@pytest.mark.parametrize(
    "break_off",
    [
        lambda side, question: side.time.run_for(REPLY_SECONDS),
        lambda side, question: side.comparing.replied(Delivery("", b"\xff", None, question.correlation, 1, 1)),
    ],
    ids=["no reply", "garbage"],
)
def test_a_round_that_came_to_no_end_is_followed_by_another_soon(
    time: VirtualTime, break_off: Callable[[Side, Publication], None]
) -> None:
    side = Side(time)
    side.connect()
    first = side.next_question()
    time.run_for(REPLY_SECONDS - SOON_SECONDS)
    break_off(side, first)
    assert side.board.status.rounds == 0
    assert isinstance(asked(side.next_question()), AskRoots)


def test_a_round_whose_events_could_not_be_written_is_followed_by_another_soon(time: VirtualTime) -> None:
    side, peer = Side(time, at_once=False), filled(1)
    side.connect()
    question = side.next_question()
    while not side.replica.applying:
        side.answer(question, reply(asked(question), peer))  # type: ignore[arg-type]
        time.run_for(2 * QUESTION_SECONDS)
        question = side.link.published[-1][1]
    [(_, done)] = side.replica.applying
    done(None, Overloaded("the queue is full"))
    assert side.board.status.rounds == 0
    assert isinstance(asked(side.next_question()), AskRoots)


def test_a_push_that_could_not_be_written_is_not_answered_and_ends_no_round_of_ours(time: VirtualTime) -> None:
    side = Side(time, at_once=False)
    side.connect()
    question = side.next_question()
    pushed = Delivery(f"{BASE}/me", encode(Push([b"event"])), f"{BASE}/peer/replies", b"1", 1, 1)
    side.comparing.asked(pushed)
    [(_, done)] = side.replica.applying
    done(None, Overloaded("the queue is full"))
    assert [publication for _, publication in side.link.published] == [question]
    read = asked(question)
    assert isinstance(read, AskRoots)
    side.answer(question, reply(read, Node()))
    time.run_for(SOON_SECONDS)
    assert side.board.status.rounds == 1


def test_a_peer_that_never_answers_is_asked_less_and_less(time: VirtualTime) -> None:
    side = Side(time)
    side.connect()
    time.run_for(INTERVAL_SECONDS / 2)
    times = [at for at, _ in side.link.published]
    waits = [later - earlier - REPLY_SECONDS for earlier, later in pairwise(times)]
    assert waits[:6] == pytest.approx([1, 2, 4, 8, 16, 32])
    assert max(waits) == pytest.approx(32)


# --- replies of an earlier life ---------------------------------------------------------------------------------------


def test_a_reply_to_an_earlier_life_of_the_node_is_none_to_this_one(time: VirtualTime) -> None:
    """A broker keeps the session of a node that is killed, and what was on its way to it."""
    before, after = Side(time, chance=0.25), Side(time, chance=0.75)
    questions = []
    for side in (before, after):
        side.connect()
        questions.append(side.next_question())
    late, present = questions
    assert late.correlation != present.correlation
    after.answer(late, reply(AskRoots({TABLE: bytes(16)}), Node()))
    time.run_for(SOON_SECONDS)
    assert after.board.status.rounds == 0, "nobody answered its own question"
    after.answer(present, reply(AskRoots({TABLE: bytes(16)}), Node()))
    time.run_for(SOON_SECONDS)
    assert after.board.status.rounds == 1
