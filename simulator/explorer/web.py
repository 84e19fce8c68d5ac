"""The explorer as a web application: pages and answers for this machine alone.

Every answer is a GET with the question in ``q``. Host must be a name of this machine, requests that
a page of another origin makes are refused, and nothing is loaded from anywhere else.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from simulator import catalogue
from simulator.cost.terms import LABELS
from simulator.economics.price import load_price
from simulator.explorer.answering import Answers
from simulator.explorer.asked import LONGEST
from simulator.explorer.replying import AT_ONCE, PATHS, Reply, Threads, Worker, refusal
from simulator.hardware.cluster import load_cluster
from simulator.questions.compare.gpu_counts import ladder
from simulator.records import dataclass
from simulator.report.decision import short_gpu
from simulator.report.palette import PAGE, PALETTE, inks
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

_LONGEST_TARGET = 3 * LONGEST
"""Characters of a path with its query, whose marks are written with three."""

_BURST, _PER_S = 60.0, 20.0
"""Questions of one page: so many at once, so many a second after that."""

_RATED = ("/api/", "/scenario.toml", "/launch.sh", "/report.html")
"""What takes work to answer."""

_PAGES = 1024
"""Pages whose questions are counted, those that asked last."""


_WAITING = 256
"""Searches that wait for their turn; more are refused."""


@dataclass
class _Searches:
    """One search at a time, one of a page, ended where nobody waits for its answer."""

    turn: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(1))
    asked: dict[str, Callable[[], None]] = field(default_factory=dict)
    """By page, what ends its search."""

    async def answer(self, request: Request, run: Threads | Worker) -> Response:
        """Wait for a turn and a reply; a newer search of the page, or its end, ends this one."""
        page = request.query_params.get("page") or (request.client.host if request.client else "")
        key, stops = f"{request.url.path} {page[:_LONGEST_PAGE]}", list[Callable[[], None]]()
        if (end := self.asked.pop(key, None)) is not None:
            end()
        if len(self.asked) >= _WAITING:
            return _response(refusal(503, "busy with other questions: ask again in a second"))
        reply: Reply | None = None
        async with anyio.create_task_group() as group:

            def end_it() -> None:
                for stop in stops:
                    stop()
                group.cancel_scope.cancel()

            async def watch() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                end_it()

            self.asked[key] = end_it
            group.start_soon(watch)
            try:
                async with self.turn:
                    begun, stop = run.begin(request.url.path, request.query_params)
                    stops.append(stop)
                    with anyio.CancelScope(shield=True):  # the turn is over when the work is
                        reply = await begun
            finally:
                if self.asked.get(key) is end_it:
                    del self.asked[key]
            group.cancel_scope.cancel()
        newer = refusal(409, "a newer question of this page took its place")
        return _response(reply or newer, request.url.path)


_LONGEST_PAGE = 64
"""Characters of the name that a page gives itself."""


def _response(reply: Reply, path: str = "/api/") -> Response:
    """A document, or a download: never shown as a page of this origin."""
    if reply.status != 200:
        return Response(reply.body, reply.status, {"retry-after": "1"}, "application/json")
    if path.startswith("/api/"):
        return Response(reply.body, media_type="application/json")
    headers = {"content-disposition": f'attachment; filename="{path[1:]}"'}
    return Response(reply.body, headers=headers, media_type="application/octet-stream")


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
        if not scope["path"].startswith(_RATED):
            return None
        page = parse_qs((scope.get("query_string") or b"").decode("latin-1")).get("page", [""])[0]
        address = (scope.get("client") or ("",))[0]
        return (
            None
            if self._has_room(f"{address} {page[:_LONGEST_PAGE]}")
            else (429, "too many requests: wait a second")
        )

    def _has_room(self, page: str) -> bool:
        now = self.clock()
        room, before = self.rooms.pop(page, (_BURST, now))
        room = min(room + _PER_S * (now - before), _BURST)
        self.rooms[page] = (max(room - 1.0, 0.0), now)
        while len(self.rooms) > _PAGES:
            self.rooms.popitem(last=False)
        return room >= 1.0


def application(
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]"),
    *,
    answers: Answers | None = None,
    worker: Worker | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Starlette:
    """The application for the names of a host, as ``foreshard serve`` and its tests run it.

    Replies are worked out by `worker`, in threads of this process without one.
    """
    run, searches = worker or Threads(answers or Answers()), _Searches()

    async def answered(request: Request) -> Response:
        begun, _ = run.begin(request.url.path, request.query_params)
        found = await begun
        return _response(found or refusal(409, "stopped"), request.url.path)

    async def searched(request: Request) -> Response:
        return await searches.answer(request, run)

    routes = [
        Route("/", _asset("explorer.html", "text/html")),
        Route("/explorer.js", _asset("explorer.js", "text/javascript")),
        Route("/rl", _asset("rl.html", "text/html")),
        Route("/rl.js", _asset("rl.js", "text/javascript")),
        Route("/explorer.css", _asset("explorer.css", "text/css")),
        Route("/health", _healthy),
        Route("/api/choices", _chosen_from),
        *(Route(path, answered if path in AT_ONCE else searched) for path in PATHS),
    ]
    guard = Middleware(_Guard, hosts=hosts, clock=clock)
    return Starlette(routes=routes, middleware=[guard])


def _asset(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    """A file of the page, held ready: it waits for nothing."""
    content = (_ASSETS / name).read_bytes()
    if name.endswith(".css"):
        content = token_sheet().encode() + content

    async def respond(request: Request) -> Response:
        return Response(content, media_type=media_type)

    return respond


async def _healthy(request: Request) -> Response:
    """Whether it answers, whatever is searched."""
    return PlainTextResponse("ok")


async def _chosen_from(request: Request) -> Response:
    return await anyio.to_thread.run_sync(_choices)


_MOST_GPUS = 16_384
"""Of the slider."""


@cache
def _clusters() -> list[dict[str, Any]]:
    """Clusters by name, with the accelerator, price and numbers of GPUs of each."""
    listed = list[dict[str, Any]]()
    for name in catalogue.names("clusters"):
        cluster = load_cluster(name, 1)
        rate = load_price(cluster.price).usd_per_gpu_hour
        price = "no price" if rate is None else f"{float(rate):.2f} USD"
        chip, server = short_gpu(cluster.accelerator.name), cluster.node.accelerators
        sizes = ladder(1, _MOST_GPUS, server, per_octave=1)
        listed.append({"name": name, "chip": chip, "price": price, "sizes": sizes})
    return sorted(listed, key=lambda entry: (entry["chip"], entry["name"]))


def token_sheet() -> str:
    """Colours of the page and of pictures as variables of a style sheet, light and dark."""
    sides = []
    for side in ("light", "dark"):
        known = {name: getattr(ink, side) for name, ink in PAGE.items()}
        known |= {f"i{digits}": ink for digits, ink in inks(side).items()}
        sides.append(":root { " + "".join(f"--{k}: {v}; " for k, v in known.items()) + "}")
    return f"{sides[0]}\n@media (prefers-color-scheme: dark) {{ {sides[1]} }}\n"


@cache
def _choices() -> Response:
    """What the page offers, names of terms, and the colours of meanings."""
    return JSONResponse(
        {
            "models": presets.names(),
            "clusters": catalogue.names("clusters"),
            "machines": _clusters(),
            "software": catalogue.names("software"),
            "rl_frameworks": catalogue.names("rl_frameworks"),
            "labels": LABELS,
            "colours": {name: [x.light, x.dark] for name, x in PALETTE.items()},
        }
    )


WAITED_S = 5.0
"""Head and body of a request, and the pause before the next, may take so long."""

MOST_WAITING = 256
"""Connections without a request that is being answered; the oldest gives way to a new one."""


class Connection(H11Protocol):
    """A connection that is closed where no whole request comes in time."""

    waiting: ClassVar[OrderedDict[Connection, asyncio.TimerHandle]] = OrderedDict()
    """Those whose request is not here yet, the oldest first, with what closes them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request; only a whole one ends the wait."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._answered()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._answered()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Close the connection in some seconds; what came meanwhile does not put it off."""
        if self in self.waiting or self.transport.is_closing():
            return
        self.waiting[self] = self.loop.call_later(WAITED_S, self._close)
        while len(self.waiting) > MOST_WAITING:
            next(iter(self.waiting))._close()

    def _answered(self) -> None:
        if (timer := self.waiting.pop(self, None)) is not None:
            timer.cancel()

    def _close(self) -> None:
        self._answered()
        self.transport.close()
