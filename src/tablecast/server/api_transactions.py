"""Transactions over several requests: begun, continued by requests with the header `Transaction-Id`, and ended."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from tablecast.server.answers import accepted, answer
from tablecast.server.api_rows import rows_answer
from tablecast.server.call import Call
from tablecast.server.transactions import IDLE_SECONDS


class BeginAnswer(msgspec.Struct, frozen=True):
    """`idle_seconds`: how long it stays open without a request."""

    transaction_id: str
    idle_seconds: float


class RollbackAnswer(msgspec.Struct, frozen=True):
    """Whether it was open."""

    rolled_back: bool


async def begin(call: Call) -> Response:
    call.query()
    opened = await call.services.transactions.begin(call.who)
    return answer(BeginAnswer(opened.transaction_id, IDLE_SECONDS), accepted(call.headers))


async def commit(call: Call) -> Response:
    call.query()
    call.refuse_idempotency_key("the transaction's id is the key: a commit may be repeated for a day")
    result = await call.services.transactions.commit(call.path["transaction"], call.who)
    return answer(rows_answer(result), accepted(call.headers))


async def roll_back(call: Call) -> Response:
    call.query()
    rolled_back = call.services.transactions.roll_back(call.path["transaction"], call.who)
    return answer(RollbackAnswer(rolled_back), accepted(call.headers))
