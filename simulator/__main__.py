"""The command ``foreshard``, and ``python -m simulator`` where it is not on the path."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys


def main() -> None:
    """Run the command; an interrupt while it is still loading is one line like any other.

    Python looks for circles after 700 new objects, and frees one by one at the end what goes with
    the process: seven hundredths of `predict`, which has no need of either.
    """
    gc.set_threshold(200_000, 20, 20)
    code = 1

    def leave() -> None:
        """End the process, once all that was to be done at its end is."""
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        except (OSError, ValueError):
            return  # what cannot be written Python says
        os._exit(code)

    atexit.register(leave)  # the first to be registered is the last to be called
    try:
        from simulator.cli.main import app

        app(prog_name="foreshard")
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        raise
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said: threads end undisturbed


if __name__ == "__main__":
    main()
