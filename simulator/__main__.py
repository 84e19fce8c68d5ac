"""The command ``foreshard``, and ``python -m simulator`` where it is not on the path."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command; an interrupt while it is still loading is one line like any other."""
    try:
        from simulator.cli.main import app

        app(prog_name="foreshard")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said: threads end undisturbed


if __name__ == "__main__":
    main()
