"""`foreshard serve`: the live explorer on this machine."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import print_line
from simulator.cli.runner import question
from simulator.errors import InputError

if TYPE_CHECKING:
    from socket import socket

Port = Annotated[
    int, typer.Option("--port", metavar="N", min=1, max=65535, help="Port to listen on.")
]
Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="Address to listen on: of this machine alone, unless you say otherwise.",
    ),
]


@question(
    "serve",
    "serve",
    "serve --port 8100",
)
def ask(*, port: Port = 8021, host: Host = "127.0.0.1") -> None:
    """Serve the explorer: model, cluster, goal and pins; the answer follows as they move.

    Takes a config.json or a scenario of your own, pasted or from a file, and keeps one answer as A
    beside the next. Nothing is loaded from elsewhere; the link of the page carries its state. Needs
    the extra foreshard[ui]. Stop it with Ctrl-C.
    """
    try:
        import uvicorn

        from simulator.explorer.replying import Worker
        from simulator.explorer.web import WAITED_S, Connection, application
    except ImportError:
        rule = 'needs starlette and uvicorn: pip install "foreshard[ui]"'
        raise InputError(f"serve: {rule}") from None
    local = ("127.0.0.1", "localhost", "[::1]")
    hosts = local if host in ("127.0.0.1", "localhost", "::1") else (*local, host)
    with _listening(host, port) as listener, suppress(KeyboardInterrupt):
        print_line(f"Explorer: http://{host}:{port}/ (Ctrl-C stops it)")
        if hosts != local:
            print_line(
                "It listens beyond this machine: whoever reaches the address can use it.", err=True
            )
        config = uvicorn.Config(
            application(hosts, worker=Worker()),
            log_level="warning",
            http=Connection,
            limit_concurrency=1024,
            timeout_keep_alive=int(WAITED_S),
            server_header=False,
        )
        uvicorn.Server(config).run(sockets=[listener])


def _listening(host: str, port: int) -> socket:
    """Open the socket before the server starts, so that what is wrong with it is one line.

    Raises
    ------
    InputError
        If the host is not known or not of this machine, or the port is taken.
    """
    import socket

    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=2048)
    except (OSError, ValueError) as error:  # ValueError: no name of a host
        said = (getattr(error, "strerror", None) or str(error)).partition(" (")[0]
        rule = "must be a free port of an address of this machine"
        raise InputError(f"serve: --host, --port: {rule}, got {host}:{port} ({said})") from None
