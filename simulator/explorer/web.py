"""The explorer as a web application: pages and answers for this machine alone.

Every answer is a GET with the question in ``q``. Host must be a name of this machine, requests that
a page of another origin makes are refused, and nothing is loaded from anywhere else.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from simulator import catalogue
from simulator.cost.terms import LABELS
from simulator.errors import ForeshardError, InputError, visible
from simulator.explorer.answering import Answers
from simulator.explorer.asked import LONGEST, Question, question_of
from simulator.files import json_of
from simulator.report.palette import PALETTE
from simulator.workload import presets

_ASSETS = Path(__file__).resolve().parent / "assets"

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

_LONGEST_TARGET = 4 * LONGEST
"""Characters of a path with its query."""

_BURST, _PER_S = 60.0, 20.0
"""Requests of one address: so many at once, so many a second after that."""

_ADDRESSES = 256


class _Guard:
    """Hosts, origins, sizes and rates, before anything is read."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...], clock: Callable[[], float]) -> None:
        self.app, self.hosts, self.clock = app, hosts, clock
        self.rooms: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(k.encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            status, text = refusal
            await PlainTextResponse(text, status)(scope, receive, with_headers)
            return
        await self.app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        host = headers.get("host", "")
        if host.rpartition(":")[0] not in self.hosts and host not in self.hosts:
            return 421, "this host is not served here"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, "requests of other origins are refused"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "requests of other sites are refused"
        target = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        if target > _LONGEST_TARGET or int(headers.get("content-length") or 0) > 0:
            return 413, "too large"
        address = (scope.get("client") or ("",))[0]
        return None if self._has_room(address) else (429, "too many requests: wait a second")

    def _has_room(self, address: str) -> bool:
        now = self.clock()
        room, before = self.rooms.pop(address, (_BURST, now))
        room = min(room + _PER_S * (now - before), _BURST)
        self.rooms[address] = (max(room - 1.0, 0.0), now)
        while len(self.rooms) > _ADDRESSES:
            self.rooms.popitem(last=False)
        return room >= 1.0


def application(
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]"),
    *,
    answers: Answers | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Starlette:
    """The application for the names of a host, as ``foreshard serve`` and its tests run it."""
    known = answers or Answers()

    def answered(make: Callable[[Question, Request], Response]) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            try:
                return make(question_of(request.query_params.get("q", "")), request)
            except ForeshardError as error:
                problems = error.problems if isinstance(error, InputError) else (str(error),)
                return JSONResponse({"problems": [visible(text) for text in problems]}, 422)

        return respond

    routes = [
        Route("/", lambda request: FileResponse(_ASSETS / "explorer.html")),
        Route("/explorer.js", lambda request: FileResponse(_ASSETS / "explorer.js")),
        Route("/explorer.css", lambda request: FileResponse(_ASSETS / "explorer.css")),
        Route("/api/choices", _choices),
        Route("/api/now", answered(lambda q, r: _json(known.now(q, _near(r), _last(r))))),
        Route("/api/search", answered(lambda q, _: _json(known.searched(q)))),
        Route("/api/otherwise", answered(lambda q, _: _json(known.otherwise(q)))),
        Route("/scenario.toml", answered(lambda q, _: _file(known.scenario_file(q), "toml"))),
        Route("/launch.sh", answered(lambda q, _: _file(known.launch(q), "sh"))),
        Route("/report.html", answered(lambda q, _: _file(known.report(q), "html"))),
    ]
    guard = Middleware(_Guard, hosts=hosts, clock=clock)
    return Starlette(routes=routes, middleware=[guard])


def _near(request: Request) -> dict[str, Any]:
    """The layout on the page: fields of plain values."""
    text = request.query_params.get("near", "{}")
    json = json_of(text[:LONGEST], "near")
    if not isinstance(json, dict):
        return {}
    return {k: v for k, v in json.items() if isinstance(v, (int, str)) and k in _NEAR}


def _last(request: Request) -> Question | None:
    """The question whose plan the page shows."""
    text = request.query_params.get("last")
    return None if text is None else question_of(text)


_NEAR = (
    *("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch", "sharding", "sequence_parallel"),
    *("recompute", "recompute_layers", "rank_order"),
)


def _choices(request: Request) -> Response:
    """What the page offers, names of terms, and the colours of meanings."""
    return JSONResponse(
        {
            "models": presets.names(),
            "clusters": catalogue.names("clusters"),
            "software": catalogue.names("software"),
            "labels": LABELS,
            "colours": {name: [x.light, x.dark] for name, x in PALETTE.items()},
        }
    )


def _json(document: dict[str, Any]) -> Response:
    """A document without NaN, which JSON has not."""
    return Response(json.dumps(document, allow_nan=False), media_type="application/json")


def _file(content: str | bytes, suffix: str) -> Response:
    """A download; never shown as a page of this origin."""
    name = {"toml": "scenario.toml", "sh": "launch.sh", "html": "report.html"}[suffix]
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)
