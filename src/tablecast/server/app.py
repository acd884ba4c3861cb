"""The application: every path of the API, and who serves it.

AccessLog          request id, one log line, one metric        server/logs.py
  Paths, Router    path → endpoint                             below; Starlette
    Endpoint       method, who asks, errors → answers          server/call.py
      handler      parse, call the engine, render              server/api_*.py
"""

from __future__ import annotations

from typing import NamedTuple

from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from tablecast.engine.snapshots import Snapshots
from tablecast.errors import NotFound
from tablecast.server import (
    api_auth,
    api_live,
    api_loads,
    api_log,
    api_maintenance,
    api_pipelines,
    api_rows,
    api_snapshots,
    api_sql,
    api_status,
    api_topics,
    api_transactions,
    api_writes,
    docs_page,
    live_upgrade,
)
from tablecast.server.accounts import Accounts
from tablecast.server.auth import Authenticator
from tablecast.server.call import Endpoint, Handler, Services
from tablecast.server.configuration import told
from tablecast.server.console_page import console_routes
from tablecast.server.doorkeeper import Doorkeeper
from tablecast.server.errors import error_response
from tablecast.server.lifecycle import Lifecycle
from tablecast.server.limits import monotonic_clock
from tablecast.server.live import LiveService
from tablecast.server.live_upgrade import LiveUpgrade
from tablecast.server.load_work import LoadWork
from tablecast.server.logs import AccessLog
from tablecast.server.maintenance import Maintenance
from tablecast.server.metrics import Metrics
from tablecast.server.sessions import Sessions
from tablecast.server.settings import Settings
from tablecast.server.transactions import Transactions
from tablecast.sql.aio import AsyncDatabase

API = "/v1/api"


class Served(NamedTuple):
    method: str
    path: str
    handler: Handler
    public: bool = False


SERVED = (
    Served("POST", f"{API}/sql", api_sql.run_sql),
    Served("POST", f"{API}/transactions", api_transactions.begin),
    Served("POST", f"{API}/transactions/{{transaction}}/commit", api_transactions.commit),
    Served("DELETE", f"{API}/transactions/{{transaction}}", api_transactions.roll_back),
    Served("POST", f"{API}/writes", api_writes.write_many),
    Served("POST", f"{API}/topics/consume", api_topics.consume),
    Served("POST", f"{API}/topics/ack", api_topics.ack),
    Served("POST", f"{API}/topics/extend", api_topics.extend),
    Served("POST", f"{API}/topics/release", api_topics.release),
    Served("POST", f"{API}/tables/{{table}}/rows", api_rows.write_rows),
    Served("GET", f"{API}/topics/{{topic}}/arrow", api_topics.read_topic),
    Served("GET", f"{API}/topics/{{topic}}/log", api_log.stream_log),
    Served("GET", f"{API}/topics/{{topic}}", api_log.describe_topic),
    Served("GET", f"{API}/live", api_live.stream_live, public=True),  # it signs in itself, for longer than a request
    Served("POST", f"{API}/pipelines/{{name}}/report", api_pipelines.report),
    Served("POST", f"{API}/loads", api_loads.begin),
    Served("GET", f"{API}/loads", api_loads.list_loads),
    Served("PUT", f"{API}/loads/{{load}}/parts/{{part}}", api_loads.put_part),
    Served("POST", f"{API}/loads/{{load}}/commit", api_loads.commit),
    Served("DELETE", f"{API}/loads/{{load}}", api_loads.abort),
    Served("POST", f"{API}/snapshots", api_snapshots.open_snapshot),
    Served("GET", f"{API}/snapshots/{{snapshot}}/rows", api_snapshots.read_snapshot),
    Served("DELETE", f"{API}/snapshots/{{snapshot}}", api_snapshots.close_snapshot),
    Served("POST", f"{API}/backup", api_maintenance.backup),
    Served("POST", f"{API}/verify", api_maintenance.verify),
    Served("POST", f"{API}/auth/login", api_auth.login, public=True),
    Served("POST", f"{API}/auth/refresh", api_auth.refresh, public=True),
    Served("GET", f"{API}/auth/me", api_auth.me),
    Served("GET", "/health", api_status.health, public=True),
    Served("GET", "/ready", api_status.ready, public=True),
    Served("GET", "/metrics", api_status.metrics, public=True),  # it looks at the settings, and signs in itself
    Served("GET", "/openapi.json", docs_page.openapi_json, public=True),
    Served("GET", "/docs", docs_page.docs_html, public=True),
)


def create_app(
    db: AsyncDatabase,
    settings: Settings,
    auth: Authenticator,
    metrics: Metrics,
    lifecycle: Lifecycle,
    door: Doorkeeper,
) -> ASGIApp:
    """To be called on the event loop that serves it. `lifecycle.drain()` answers every consume that waits."""
    live = LiveService(db, settings, auth, metrics, lifecycle, door)
    snapshots, loads = Snapshots(monotonic_clock, per_user=settings.max_snapshots_per_user), LoadWork(db.engine)
    accounts = Accounts(db.engine, auth)
    accounts.at_change(live.check_all)
    lifecycle.at_drain(accounts.stop)
    sessions = Sessions(db)
    transactions = Transactions(db, sessions)
    services = Services(
        db, settings, auth, metrics, lifecycle, sessions, transactions, snapshots, loads, live, Maintenance(), accounts,
    )  # fmt: skip
    lifecycle.at_drain(db.end_waits)
    lifecycle.at_drain(transactions.close)
    metrics.parked(lambda: db.parked)
    metrics.door(door.stats)
    db.engine.process.is_draining = lambda: lifecycle.draining
    db.engine.process.settings = told(settings)
    routes: list[BaseRoute] = [WebSocketRoute(live_upgrade.PATH, LiveUpgrade(services))]
    routes += console_routes(metrics) if settings.console else []
    routes += [Route(path, _endpoint(services, path)) for path in dict.fromkeys(served.path for served in SERVED)]
    return AccessLog(_Paths(routes, Router(routes, redirect_slashes=False, default=_NotServed(metrics))), metrics)


def _endpoint(services: Services, path: str) -> Endpoint:
    found = [served for served in SERVED if served.path == path]
    handlers = {served.method: served.handler for served in found}
    return Endpoint(services, path, handlers, public=all(served.public for served in found))


class _Paths:
    """Most paths have no parameter, and are looked up. The router tries its routes one by one, each with a regular
    expression."""

    def __init__(self, routes: list[BaseRoute], others: ASGIApp) -> None:
        self._plain = {route.path: route for route in routes if isinstance(route, Route) and not route.param_convertors}
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._plain.get(scope["path"]) if scope["type"] == "http" and not scope.get("root_path") else None
        if route is None:
            await self._others(scope, receive, send)
            return
        scope["route"], scope["path_params"] = route, {}
        await route.handle(scope, receive, send)


class _NotServed:
    """What no route takes."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._metrics.error(NotFound.code)
        is_live = scope["type"] == "http" and scope["path"] == live_upgrade.PATH
        hint = "only WebSockets are taken" if is_live else "there is nothing"
        response = error_response(NotFound(f"{hint} at this path; /docs lists what there is"))
        await response(scope, receive, send)
