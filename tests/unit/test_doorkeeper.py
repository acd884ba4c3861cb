"""The doorkeeper, in a time that passes only when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import pytest

from tablecast.errors import Overloaded
from tablecast.server.doorkeeper import (
    AHEAD_SECONDS,
    BUSY_SECONDS,
    LATELY_SECONDS,
    NEW_SECONDS,
    OWED_SECONDS,
    SAVED_SECONDS,
    SLICE_SECONDS,
    Doorkeeper,
)
from tablecast.testing.virtual_time import VirtualTime

SHARE, WAIT_SECONDS = 0.25, 5.0
COST = 0.001  # seconds of the event loop, for one newcomer


class Time(VirtualTime):
    """Work takes time, too."""

    def works(self, seconds: float) -> None:
        self._now += seconds

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Any:
        """Between the steps of tasks, where there are any."""
        try:
            return asyncio.get_running_loop().call_soon(callback, *args)
        except RuntimeError:
            return super().call_soon(callback, *args)


class Guest:
    def __init__(self, house: House, cost: float = COST) -> None:
        self._house, self._cost = house, cost
        self.admitted_at: float | None = None
        self.error: Overloaded | None = None

    def admitted(self) -> None:
        self.admitted_at = self._house.time.time()
        left = self._cost
        while left > 0:
            with self._house.door:
                self._house.time.works(min(left, SLICE_SECONDS))
            left -= SLICE_SECONDS

    def turned_away(self, error: Overloaded) -> None:
        self.error = error


class House:
    """A doorkeeper, and somebody established who is served all the time."""

    def __init__(self, *, is_busy: bool = True) -> None:
        self.time = Time()
        self.time.run_for(100.0)
        self.door = Doorkeeper(SHARE, WAIT_SECONDS, loop=self.time, clock=self.time.time)
        self.began = self.time.time()
        if is_busy:
            self._serve()

    def _serve(self) -> None:
        self.door.begins(self)
        self.time.call_later(BUSY_SECONDS / 2, self._serve)

    def owes(self) -> None:
        """As much as newcomers can, in no time."""
        self.door._pay(2 * OWED_SECONDS, self.time.time())

    def comes(self, cost: float = COST) -> Guest:
        guest = Guest(self, cost)
        if self.door.arrives(guest):
            guest.admitted()
        return guest

    def crowd(self, count: int, cost: float = COST) -> list[Guest]:
        return [self.comes(cost) for _ in range(count)]


def admitted(guests: list[Guest]) -> int:
    return sum(guest.admitted_at is not None for guest in guests)


def test_nobody_waits_while_nobody_established_is_served() -> None:
    house = House(is_busy=False)
    guests = house.crowd(1_000)
    assert admitted(guests) == 1_000
    assert house.door.stats().waited == 0
    assert house.door.stats().seconds == pytest.approx(1_000 * COST)


def test_newcomers_get_their_share_and_no_more() -> None:
    house = House()
    guests = house.crowd(10_000)
    house.time.run_for(2.0)
    spent = house.door.stats().seconds
    passed = house.time.time() - house.began
    assert spent <= passed * SHARE + SAVED_SECONDS + 2 * COST, "one may have been begun on the last of it"
    assert spent >= 0.9 * 2.0 * SHARE, "and they do get it"
    assert admitted(guests) + house.door.stats().waiting == 10_000


def test_the_share_is_of_time_and_not_of_guests() -> None:
    cheap, dear = House(), House()
    many, few = cheap.crowd(1_000, COST / 4), dear.crowd(1_000, COST * 4)
    cheap.time.run_for(1.0)
    dear.time.run_for(1.0)
    assert admitted(many) > 10 * admitted(few) > 0


def test_they_are_let_in_in_their_order_and_one_at_a_time() -> None:
    house = House()
    guests = house.crowd(50)
    turns: list[int] = []
    while admitted(guests) < 50:
        before = admitted(guests)
        house.time.run_for(0.0001)
        turns.append(admitted(guests) - before)
    times = [guest.admitted_at for guest in guests]
    assert times == sorted(times, key=lambda at: at or 0.0)
    assert max(turns) == 1, "the event loop turns to others in between"


def test_who_comes_after_a_pause_does_not_wait() -> None:
    house = House()
    house.crowd(100)
    house.time.run_for(2.0)
    assert house.door.stats().waiting == 0
    waited = house.door.stats().waited
    assert house.comes().admitted_at is not None
    assert house.door.stats().waited == waited


def test_little_is_saved_up() -> None:
    house = House()
    house.time.run_for(60.0)
    assert 0 <= admitted(house.crowd(100)) - SAVED_SECONDS / COST <= 1, "time passes while they are let in, too"


def test_what_is_owed_is_not_paid_from_the_time_before() -> None:
    house = House(is_busy=False)
    house.time.run_for(60.0)
    house.comes(cost=10 * OWED_SECONDS)
    house._serve()
    guest = house.comes()
    house.time.run_for(0.9 * OWED_SECONDS / SHARE)
    assert guest.admitted_at is None


def test_little_is_owed_after_one_that_was_expensive() -> None:
    house = House()
    house.comes(cost=10.0)
    guest = house.comes()
    house.time.run_for(OWED_SECONDS / SHARE + 0.01)
    assert guest.admitted_at is not None


def test_all_go_in_when_nobody_is_served_any_more() -> None:
    house = House(is_busy=False)
    house.door.serves()
    house.time.run_for(LATELY_SECONDS - 1.0)
    guests = house.crowd(2_000)
    house.time.run_for(0.9)
    assert admitted(guests) < 300
    house.time.run_for(2.5)
    assert admitted(guests) == 2_000


# --- pauses of those who are in ---------------------------------------------------------------------------------

SLICE = AHEAD_SECONDS / 20


def owing(house: House) -> list[Guest]:
    """A crowd in front of a door that owes a little: they go in when nobody is served."""
    house.door._pay(0.001, house.time.time())
    return house.crowd(100, cost=SLICE)


def test_they_go_in_when_nobody_is_being_served() -> None:
    house = House(is_busy=False)
    house.door.begins("one")
    house.door.begins("another")
    guests = owing(house)
    house.door.ends("one")
    house.time.run_for(SLICE)
    assert admitted(guests) == 0, "another is still being served"
    house.door.ends("another")
    house.door.ends("another")  # which may be said twice
    house.time.run_for(5.5 * SLICE)
    assert admitted(guests) == 6


def test_they_stop_when_somebody_is_to_be_served() -> None:
    house = House(is_busy=False)
    house.door.begins("one")
    guests = owing(house)
    house.door.ends("one")
    house.time.call_later(4.5 * SLICE, house.door.begins, "one")
    house.time.run_for(6.5 * SLICE)
    assert admitted(guests) == 5


def test_pauses_do_not_make_their_share_larger() -> None:
    house = House(is_busy=False)
    house.door.serves()
    guests = house.crowd(100_000, cost=SLICE)
    house.time.run_for(2.0)
    passed = house.time.time() - house.began
    assert 0.9 * passed * SHARE <= admitted(guests) * SLICE <= passed * SHARE + AHEAD_SECONDS + 2 * SLICE


def test_who_is_not_answered_for_long_waits_for_something_else() -> None:
    house = House(is_busy=False)
    house.door.begins("a consume that waits for messages")
    house.door._pay(BUSY_SECONDS, house.time.time())
    guest = house.comes()
    house.time.run_for(BUSY_SECONDS - 0.0001)
    assert guest.admitted_at is None
    house.time.run_for(1.5 * BUSY_SECONDS)
    assert guest.admitted_at is not None


def test_they_wait_while_live_queries_are_told() -> None:
    house = House(is_busy=False)
    is_telling = True
    house.door.telling = lambda: is_telling
    house.door.serves()
    house.door._pay(AHEAD_SECONDS / 2, house.time.time())
    guest = house.comes()
    house.time.run_for(BUSY_SECONDS)
    assert guest.admitted_at is None
    is_telling = False
    house.time.run_for(BUSY_SECONDS)
    assert guest.admitted_at is not None


def test_who_waits_too_long_is_told_so() -> None:
    house = House()
    guests = house.crowd(10_000)
    house.time.run_for(WAIT_SECONDS - 0.1)
    assert house.door.stats().refused == 0
    house.time.run_for(0.2)
    stats = house.door.stats()
    assert stats.waiting == 0 and stats.refused == 10_000 - admitted(guests)
    refused = [guest.error for guest in guests if guest.error is not None]
    assert len(refused) == stats.refused
    assert all((guest.admitted_at is None) == (guest.error is not None) for guest in guests), "one of the two, for each"
    assert refused[0].code == "overloaded" and refused[0].details["retry_after_seconds"] > 0


def test_who_goes_away_gives_up_its_place() -> None:
    house = House()
    first, *others = house.crowd(100)
    for guest in others[1:]:
        house.door.leaves(guest)
    house.door.leaves(first)  # which is in, and has none
    house.time.run_for(WAIT_SECONDS * 2)
    assert admitted(others[3:]) == 0 and house.door.stats() == house.door.stats()._replace(waiting=0, refused=0)


# --- live queries -----------------------------------------------------------------------------------------------


async def opens(house: House, opened: list[int], number: int) -> None:
    await house.door.turn()
    with house.door:
        house.time.works(COST)
    opened.append(number)


async def let_pass(house: House, is_over: Callable[[], bool]) -> None:
    while not is_over():
        house.time.run_for(0.001)
        for _ in range(3):  # of the real event loop, for whoever was let in
            await asyncio.sleep(0)


def test_live_queries_and_connections_are_let_in_by_turns() -> None:
    async def main() -> tuple[int, int]:
        house, opened = House(), list[int]()
        house.owes()
        guests = house.crowd(200)
        tasks = [asyncio.create_task(opens(house, opened, number)) for number in range(200)]
        await asyncio.sleep(0)
        await let_pass(house, lambda: len(opened) >= 50)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert opened == sorted(opened)
        assert house.door.stats().waiting == 200 - admitted(guests), "who gave up is gone"
        return len(opened), admitted(guests)

    opened, guests = asyncio.run(main())
    assert abs(opened - guests) <= 2


def test_live_queries_wait_for_as_long_as_it_takes() -> None:
    async def main() -> None:
        house, opened = House(), list[int]()
        tasks = [asyncio.create_task(opens(house, opened, number)) for number in range(3_000)]
        await let_pass(house, lambda: len(opened) == 3_000)
        await asyncio.gather(*tasks)
        assert house.time.time() - house.began > 2 * WAIT_SECONDS and house.door.stats().refused == 0

    asyncio.run(main())


def test_a_live_query_that_was_given_up_costs_no_turn() -> None:
    async def main() -> None:
        house, opened = House(), list[int]()
        house.owes()
        tasks = [asyncio.create_task(opens(house, opened, number)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await let_pass(house, lambda: len(opened) == 2)
        assert opened == [1, 2]
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


# --- what is metered --------------------------------------------------------------------------------------------


def test_work_inside_work_is_paid_once() -> None:
    house = House()
    with house.door:
        house.time.works(0.001)
        with house.door:
            house.time.works(0.002)
    assert house.door.stats().seconds == pytest.approx(0.003)


def test_a_slice_is_paid_up_to_a_bound() -> None:
    """On a machine that others keep busy the rest is theirs, and newcomers would wait for it without end."""
    house = House()
    with house.door:
        house.time.works(1.0)
    assert house.door.stats().seconds == SLICE_SECONDS


def metered(house: House, work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """What a task of it returns, or raises; and what was paid."""

    async def main() -> Any:
        return (await asyncio.gather(asyncio.create_task(house.door.metered(work)), return_exceptions=True))[0]

    return asyncio.run(main()), house.door.stats().seconds


def test_a_task_pays_for_its_slices_and_not_for_its_waits() -> None:
    house = House()

    async def work() -> str:
        house.time.works(0.001)
        asyncio.get_running_loop().call_soon(house.time.works, 0.5)  # others' work
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        house.time.works(0.002)
        return "done"

    result, seconds = metered(house, work())
    assert (result, seconds) == ("done", pytest.approx(0.003))


def test_a_task_that_goes_on_pays_for_its_beginning() -> None:
    house = House()

    async def work() -> None:
        house.time.works(0.001)
        asyncio.get_running_loop().call_soon(house.time.works, NEW_SECONDS)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        house.time.works(0.002)

    assert metered(house, work())[1] == pytest.approx(0.001)


def test_tasks_of_newcomers_among_themselves_are_not_metered() -> None:
    house = House(is_busy=False)

    async def work() -> None:
        house.time.works(0.001)

    assert metered(house, work())[1] == 0.0


def test_every_slice_of_a_task_waits_its_turn() -> None:
    async def main() -> list[float]:
        house, worked_at = House(), list[float]()

        async def work() -> None:
            for _ in range(5):
                worked_at.append(house.time.time())
                house.time.works(COST)
                await asyncio.sleep(0)

        task = asyncio.create_task(house.door.metered(work()))
        await let_pass(house, task.done)
        return worked_at

    worked_at = asyncio.run(main())
    assert all(later - earlier >= 0.9 * COST / SHARE for earlier, later in pairwise(worked_at))


def test_the_slices_of_who_was_in_already_are_paid_and_do_not_wait() -> None:
    async def main() -> tuple[float, float]:
        house = House()
        house.owes()

        async def work() -> None:
            for _ in range(5):
                house.time.works(COST)
                await asyncio.sleep(0)

        began = house.time.time()
        await house.door.metered(work(), waits=False)
        return house.time.time() - began, house.door.stats().seconds - 2 * OWED_SECONDS

    assert asyncio.run(main()) == (pytest.approx(5 * COST), pytest.approx(5 * COST))


def test_a_task_that_waits_for_its_turn_can_be_cancelled_and_gives_it_up() -> None:
    async def main() -> tuple[list[str], int]:
        house, seen = House(), list[str]()
        house.owes()

        async def work() -> None:
            try:
                await asyncio.sleep(0)
                seen.append("went on")
            finally:
                seen.append("cleaned up")

        begun = house.door.metered(work(), waits=False)
        begun.send(None)  # it is in, and its next slice waits
        begun._waits = True  # type: ignore[attr-defined]
        begun.send(None)
        assert house.door.stats().waiting == 1
        with pytest.raises(asyncio.CancelledError):
            begun.throw(asyncio.CancelledError())
        task = asyncio.create_task(house.door.metered(work()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return seen, house.door.stats().waiting

    assert asyncio.run(main()) == (["cleaned up"], 0), "the second had not begun"


def test_turns_that_were_waited_for_do_not_make_a_newcomer_an_old_acquaintance() -> None:
    async def main() -> float:
        house = House()

        async def work() -> None:
            await asyncio.sleep(0)
            house.time.works(COST)

        tasks = [asyncio.create_task(house.door.metered(work())) for _ in range(1_000)]
        await let_pass(house, lambda: all(task.done() for task in tasks))
        assert house.time.time() - house.began > 2 * NEW_SECONDS
        return house.door.stats().seconds

    assert asyncio.run(main()) == pytest.approx(1_000 * COST)


def test_a_metered_task_fails_and_is_cancelled_as_any() -> None:
    house = House()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    assert isinstance(metered(house, fails())[0], ValueError)

    async def main() -> list[str]:
        seen: list[str] = []

        async def waits() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("cleaned up")

        task = asyncio.create_task(house.door.metered(waits()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return seen

    assert asyncio.run(main()) == ["cleaned up"]


def test_who_is_let_in_is_not_in_the_context_of_whoever_came_before() -> None:
    request = ContextVar("request", default="none")
    seen: list[str] = []

    class Asks(Guest):
        def admitted(self) -> None:
            seen.append(request.get())

    house = House()
    house.owes()
    request.set("another's")
    assert not house.door.arrives(Asks(house))
    house.time.run_for(1.0)
    assert seen == ["none"]
