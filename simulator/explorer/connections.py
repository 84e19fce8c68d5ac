"""Connections of the explorer: none is held open by who says nothing, or says it byte by byte."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

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
