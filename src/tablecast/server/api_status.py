"""`/health`, `/ready` and `/metrics`: what watches the process asks here."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.responses import Response

from tablecast.core.rights import require
from tablecast.model.schema import Role
from tablecast.server.answers import answer
from tablecast.server.bodies import JSON
from tablecast.server.call import Call
from tablecast.server.metrics import CONTENT_TYPE


class StatusAnswer(msgspec.Struct, frozen=True):
    """`/health`: ok. `/ready`: ready, starting, draining, or writes_stopped after a storage failure."""

    status: str


async def health(call: Call) -> Response:
    return answer(StatusAnswer("ok"), JSON)


async def ready(call: Call) -> Response:
    status = _status(call)
    response = answer(StatusAnswer(status), JSON)
    if status != "ready":
        response.status_code = 503
        response.headers["Retry-After"] = "1"
    return response


def _status(call: Call) -> str:
    services = call.services
    if services.lifecycle.draining or services.db.engine.closed:
        return "draining"
    if not services.lifecycle.serving:
        return "starting"
    return "writes_stopped" if services.db.engine.writes_stopped else "ready"


async def metrics(call: Call) -> Response:
    """Without credentials only if `metrics_public` is on: names of topics and groups are among the labels."""
    if not call.services.settings.metrics_public:
        await call.sign_in()
        require(call.who, Role.SERVICE, "reading /metrics")
    # The lag of every group is read from the store: not on the event loop.
    rendered = await asyncio.get_running_loop().run_in_executor(None, call.services.metrics.render)
    return Response(rendered, media_type=CONTENT_TYPE)
