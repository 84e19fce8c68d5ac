"""Many clients clicking on the explorer at once, as its page does, and what they have of it.

``python -m tests.explorer.load [--clients N] [--seconds S]`` (`make load`: 200 clients, five
minutes) starts the server in a process of its own. Each client loads the page, moves a slider, asks
for what is near at once, then for the search, which the next move ends (``explorer.js``); at the
end everybody waits for the answer to the last question. Printed are the waits for page and script,
the server's memory in time, and what was lost; a p95 above MOST_S, memory that grew by more than
GROWS of itself in the second half, or anything lost ends in 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

MOST_S = 0.1
GROWS = 0.1
BETWEEN_S = (0.5, 5.0)
"""Between two moves of a client."""
RELOADS = 0.2
"""Of a client's moves, so many begin with loading the page again."""
QUESTION = {
    "model": "gpt2-small", "cluster": "dgx-a100", "gpus": 8, "tokens": 1e10, "global_batch": 64,
    "sequence_length": 1024,
}  # fmt: skip
EXPECTED = (200, 409, 422, 429, 503)
"""Answers, and refusals that say when to ask again; all else is lost."""


def asked(**changes: Any) -> dict[str, str]:
    """The query of a question."""
    return {"q": json.dumps({**QUESTION, **changes})}


@dataclass(frozen=True)
class Server:
    """The explorer in a process of its own."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def resident_mib(self) -> float:
        """What of its memory is resident now; NaN where the system does not say."""
        with suppress(OSError, IndexError):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        return float("nan")


@contextmanager
def served() -> Iterator[Server]:
    """The explorer as a user starts it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "simulator", "serve", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        server = Server(port, process.pid)
        try:
            for _ in range(600):
                with suppress(OSError):
                    if asyncio.run(_status(server, "/health")) == 200:
                        break
                time.sleep(0.05)
            yield server
        finally:
            process.terminate()


@dataclass
class Load:
    """What the clients had of the server."""

    waits_s: list[float] = field(default_factory=list)
    """For page and script."""
    near_s: list[float] = field(default_factory=list)
    """For what is near, which needs no search."""
    searched: int = 0
    """Searches that were answered."""
    ended: int = 0
    """Searches that the next move ended."""
    last: int = 0
    """Clients whose last question was answered."""
    lost: Counter[str] = field(default_factory=Counter)
    """Replies that no page can go on from, and requests without a reply."""
    resident_mib: list[float] = field(default_factory=list)
    """Of the server, every second."""
    own_lag_s: list[float] = field(default_factory=list)
    """What the clients' own process wakes up too late, which is part of every wait."""

    def p95_s(self) -> float:
        """The wait for page and script that nineteen of twenty stay below."""
        return quantile(self.waits_s, 0.95)

    def growth(self) -> float:
        """The most of the last quarter over the most of the second one, less one.

        The first quarter fills caches: profiles, prices, remembered plans.
        """
        seen = self.resident_mib
        quarter = max(len(seen) // 4, 1)
        return max(seen[-quarter:]) / max(seen[quarter : 2 * quarter] or seen) - 1.0


def quantile(values: list[float], share: float) -> float:
    """The value that so many of the others stay below."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


async def clicked(server: Server, *, clients: int, seconds: float) -> Load:
    """Click until the time is up; then everybody's last question is asked until it is answered."""
    load = Load()
    stop = asyncio.Event()
    watch = asyncio.create_task(_watched(server, load, stop))
    end = time.monotonic() + seconds
    await asyncio.gather(*(_client(server, number, end, load) for number in range(clients)))
    stop.set()
    await watch
    return load


async def _watched(server: Server, load: Load, stop: asyncio.Event) -> None:
    while not stop.is_set():
        load.resident_mib.append(server.resident_mib)
        for _ in range(10):
            due = time.monotonic() + 0.1
            await asyncio.sleep(0.1)
            load.own_lag_s.append(time.monotonic() - due)


async def _client(server: Server, number: int, end: float, load: Load) -> None:
    chance, first = random.Random(number), True
    await asyncio.sleep(chance.random())
    while True:
        over = time.monotonic() > end
        query = {**asked(global_batch=8 * chance.randint(1, 40)), "page": f"page {number}"}
        for path in ("/", "/explorer.js") if first or chance.random() < RELOADS else ():
            await _replied(server, path, {}, load, load.waits_s)
        first = False
        await _replied(server, "/api/now", query, load, load.near_s)
        if over:
            answered = await _last(server, query, load)
            load.last += answered
            return
        search = asyncio.create_task(_replied(server, "/api/search", query, load, []))
        await asyncio.wait([search], timeout=chance.uniform(*BETWEEN_S))
        if search.done():
            load.searched += search.result() == 200
        else:
            search.cancel()
            load.ended += 1
            with suppress(asyncio.CancelledError):
                await search


async def _last(server: Server, query: dict[str, str], load: Load) -> bool:
    """Ask for a search as often as the server says to ask again."""
    while True:
        status = await _replied(server, "/api/search", query, load, [])
        if status not in (429, 503):
            return status == 200
        await asyncio.sleep(1.0)


async def _replied(
    server: Server, path: str, query: dict[str, str], load: Load, waits_s: list[float]
) -> int:
    """The status of a reply, its wait noted; 0 where there is none."""
    begun = time.monotonic()
    try:
        status = await _status(server, f"{path}?{urlencode(query)}")
    except (OSError, ValueError, IndexError, asyncio.IncompleteReadError) as error:
        load.lost[f"{path} {type(error).__name__}"] += 1
        return 0
    waits_s.append(time.monotonic() - begun)
    if status not in EXPECTED:
        load.lost[f"{path} {status}"] += 1
    return status


async def _status(server: Server, target: str) -> int:
    """The status of one request on a connection of its own, read to the end.

    Without a client library: hundreds of clients in one process are to take little of it.
    """
    read, write = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        head = f"GET {target} HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\nconnection: close"
        write.write(f"{head}\r\n\r\n".encode())
        reply = await read.read()
    finally:
        write.close()
    head_bytes, _, body = reply.partition(b"\r\n\r\n")
    first, *lines = head_bytes.decode("latin-1").split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines)
    if len(body) != int(fields["content-length"]):
        raise asyncio.IncompleteReadError(body, int(fields["content-length"]))
    return int(first.split()[1])


def main() -> int:
    """Click, print what came of it, and say by the exit code whether that is as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.explorer.load", description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300.0)
    asked_for = parser.parse_args()
    with served() as server:
        how = {"clients": asked_for.clients, "seconds": asked_for.seconds}
        load = asyncio.run(clicked(server, **how))
    p50, p95, p99 = (1e3 * quantile(load.waits_s, share) for share in (0.5, 0.95, 0.99))
    print(f"page and script: p50 {p50:.0f}, p95 {p95:.0f}, p99 {p99:.0f} ms of {len(load.waits_s)}")
    p50, p95 = (1e3 * quantile(load.near_s, share) for share in (0.5, 0.95))
    print(f"what is near: p50 {p50:.0f}, p95 {p95:.0f} ms of {len(load.near_s)}")
    late = 1e3 * quantile(load.own_lag_s, 0.95)
    print(f"the clients' own process wakes up late: p95 {late:.0f} ms")
    print(f"searches: {load.searched} answered, {load.ended} ended by the next move")
    print(f"last questions answered: {load.last} of {asked_for.clients}")
    seen = load.resident_mib
    shown = ", ".join(f"{seen[i * (len(seen) - 1) // 5]:.0f}" for i in range(6))
    print(f"resident: {shown} MiB in time, {load.growth():+.1%} since the second quarter")
    print(f"lost: {dict(load.lost) or 'nothing'}")
    whole = load.last == asked_for.clients and not load.lost
    return 0 if whole and load.p95_s() < MOST_S and not load.growth() > GROWS else 1


if __name__ == "__main__":
    sys.exit(main())
