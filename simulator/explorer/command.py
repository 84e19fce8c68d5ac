"""`foreshard serve`: the live explorer on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import print_line
from simulator.cli.runner import question

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

    Nothing is loaded from elsewhere; the link of the page carries its state. Needs the extra
    foreshard[ui]. Stop it with Ctrl-C.
    """
    from simulator.errors import InputError

    try:
        import uvicorn

        from simulator.explorer.web import application
    except ImportError:
        rule = 'needs starlette and uvicorn: pip install "foreshard[ui]"'
        raise InputError(f"serve: {rule}") from None
    local = ("127.0.0.1", "localhost", "[::1]")
    hosts = local if host in ("127.0.0.1", "localhost", "::1") else (*local, host)
    print_line(f"Explorer: http://{host}:{port}/ (Ctrl-C stops it)")
    if hosts != local:
        print_line(
            "It listens beyond this machine: whoever reaches the address can use it.", err=True
        )
    uvicorn.run(
        application(hosts),
        host=host,
        port=port,
        log_level="warning",
        limit_concurrency=64,
        timeout_keep_alive=10,
        server_header=False,
    )
