"""Standard output and error as a shell hands them over: closed, full, of any encoding and width."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BAD_OUTPUT = 2

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""What writing to an open stream may end with; files are written under their names."""


@contextmanager
def sound_streams() -> Iterator[None]:
    """Run a command on streams that can be written, or end it with one line on standard error.

    Characters that an encoding lacks are written as escapes. A width of 0 is none.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # as long as the process
    if sys.stdout is None:  # the next file that is opened would be taken for it
        _end("is closed")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if not os.environ.get("COLUMNS", "").strip("0"):
        os.environ.pop("COLUMNS", None)
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        forget_output()
        _end(f"cannot be written: {error.strerror}")


def _end(problem: str) -> None:
    sys.stderr.write(f"standard output: {problem}\n")
    raise SystemExit(BAD_OUTPUT)


def forget_output() -> None:
    """Send what is still buffered nowhere: nobody can take it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
