"""`foreshard mcp`: a server of the Model Context Protocol on standard input and output."""

from __future__ import annotations

from simulator.cli.runner import question
from simulator.errors import InputError


@question("mcp", "mcp")
def ask() -> None:
    """Serve plan, predict, compare, size and explain as tools of an agent.

    It speaks the Model Context Protocol on standard input and output. An agent's settings name the
    command: {"command": "foreshard", "args": ["mcp"]}. Tools answer with the screen of the command
    of their name, or with its JSON. Nothing is loaded from elsewhere and no file is written. Needs
    the extra foreshard[mcp].
    """
    try:
        from simulator.questions.mcp.server import server
    except ImportError:
        rule = 'needs the SDK of the Model Context Protocol: pip install "foreshard[mcp]"'
        raise InputError(f"mcp: {rule}") from None
    server().run()
