"""The explorer as a web application: pages and answers for this machine alone.

Every answer is a GET with the question in ``q``. Host must be a name of this machine, requests that
a page of another origin makes are refused, and nothing is loaded from anywhere else.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import field
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from simulator import catalogue
from simulator.cost.terms import LABELS
from simulator.economics.price import load_price
from simulator.errors import ForeshardError, InputError, visible
from simulator.explorer.answering import Answers
from simulator.explorer.asked import LONGEST, question_of, question_of_scenario
from simulator.explorer.asked_rl import RLQuestion, rl_answer, rl_question
from simulator.files import json_of
from simulator.hardware.cluster import load_cluster
from simulator.questions.compare.gpu_counts import ladder
from simulator.records import dataclass
from simulator.report.decision import short_gpu
from simulator.report.palette import PAGE, PALETTE, inks
from simulator.search.in_threads import Stopped, stoppable
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


_QUICK = 4
"""Answers without a search that are worked out at a time."""

_WAITING = 256
"""Searches that wait for their turn; more are refused."""


@dataclass
class _Searches:
    """One search at a time, one of a page, ended where nobody waits for its answer."""

    turn: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(1))
    asked: dict[str, Callable[[], None]] = field(default_factory=dict)
    """By page, what ends its search."""

    async def answer(self, request: Request, work: Callable[[], Response]) -> Response:
        """Wait for a turn and work; a newer search of the page, or its end, ends this one."""
        page = request.query_params.get("page") or (request.client.host if request.client else "")
        key, stop = f"{request.url.path} {page[:_LONGEST_PAGE]}", threading.Event()
        if (end := self.asked.pop(key, None)) is not None:
            end()
        if len(self.asked) >= _WAITING:
            return _said(503, "busy with other questions: ask again in a second")

        def stopped() -> Response:
            with stoppable(stop):
                return work()

        reply: Response | None = None
        async with anyio.create_task_group() as group:

            def end_it() -> None:
                stop.set()
                group.cancel_scope.cancel()

            async def watch() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                end_it()

            self.asked[key] = end_it
            group.start_soon(watch)
            try:
                async with self.turn:
                    reply = await anyio.to_thread.run_sync(stopped)
            except Stopped:
                pass
            finally:
                if self.asked.get(key) is end_it:
                    del self.asked[key]
            group.cancel_scope.cancel()
        return reply or _said(409, "a newer question of this page took its place")


_LONGEST_PAGE = 64
"""Characters of the name that a page gives itself."""


def _said(status: int, text: str) -> Response:
    return JSONResponse({"problems": [text]}, status, {"retry-after": "1"})


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
    clock: Callable[[], float] = time.monotonic,
) -> Starlette:
    """The application for the names of a host, as ``foreshard serve`` and its tests run it."""
    known, searches = answers or Answers(), _Searches()
    quick = anyio.CapacityLimiter(_QUICK)

    def worked(make: _Make, request: Request, read: _Read = question_of) -> Response:
        try:
            return make(read(request.query_params.get("q", "")), request)
        except ForeshardError as error:
            problems = error.problems if isinstance(error, InputError) else (str(error),)
            return JSONResponse({"problems": [visible(text) for text in problems]}, 422)

    def answered(
        make: _Make, read: _Read = question_of
    ) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            work = partial(worked, make, request, read)
            return await anyio.to_thread.run_sync(work, limiter=quick)

        return respond

    def searched(
        make: _Make, read: _Read = question_of
    ) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            return await searches.answer(request, partial(worked, make, request, read))

        return respond

    routes = [
        Route("/", _asset("explorer.html", "text/html")),
        Route("/explorer.js", _asset("explorer.js", "text/javascript")),
        Route("/rl", _asset("rl.html", "text/html")),
        Route("/rl.js", _asset("rl.js", "text/javascript")),
        Route("/explorer.css", _asset("explorer.css", "text/css")),
        Route("/health", _healthy),
        Route("/api/choices", _chosen_from),
        Route("/api/now", answered(lambda q, r: _json(known.now(q, _near(r), _last(r))))),
        Route("/api/scenario", answered(lambda asked, _: _json(asked), question_of_scenario)),
        Route("/api/search", searched(lambda q, _: _json(known.searched(q)))),
        Route("/api/sizes", searched(lambda q, _: _json(known.sizes(q)))),
        Route("/api/otherwise", searched(lambda q, _: _json(known.otherwise(q)))),
        Route("/api/rl", searched(lambda asked, r: _json(_of_rl(asked, r)), rl_question)),
        Route("/scenario.toml", answered(lambda q, _: _file(known.scenario_file(q), "toml"))),
        Route("/launch.sh", searched(lambda q, _: _file(known.launch(q), "sh"))),
        Route("/report.html", searched(lambda q, _: _file(known.report(q), "html"))),
    ]
    guard = Middleware(_Guard, hosts=hosts, clock=clock)
    return Starlette(routes=routes, middleware=[guard])


_Make = Callable[[Any, Request], Response]
_Read = Callable[[str], Any]
"""Makes a question of the text in ``q``."""


def _of_rl(asked: RLQuestion, request: Request) -> dict[str, Any]:
    """The step as it is asked, or with all its splits."""
    return rl_answer(asked, search=request.query_params.get("splits") == "1")


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


def _near(request: Request) -> dict[str, Any]:
    """The layout on the page: fields of plain values."""
    text = request.query_params.get("near", "{}")
    json = json_of(text[:LONGEST], "near")
    if not isinstance(json, dict):
        return {}
    return {k: v for k, v in json.items() if isinstance(v, (int, str)) and k in _NEAR}


def _last(request: Request) -> str:
    """The key of the plan on the page."""
    return request.query_params.get("last", "")


_NEAR = (
    *("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch", "sharding", "sequence_parallel"),
    *("recompute", "recompute_layers", "rank_order"),
)


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


def _json(document: dict[str, Any]) -> Response:
    """A document without NaN, which JSON has not."""
    return Response(json.dumps(document, allow_nan=False), media_type="application/json")


def _file(content: str | bytes, suffix: str) -> Response:
    """A download; never shown as a page of this origin."""
    name = {"toml": "scenario.toml", "sh": "launch.sh", "html": "report.html"}[suffix]
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)
