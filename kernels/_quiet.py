"""How much of the host other processes take, and waiting until it is little (Linux)."""

from __future__ import annotations

import os
import time
from pathlib import Path

QUIET_CORES = 0.15
"""Others may take so much of one core while a machine still counts as idle."""
LOOK_S = 1.0
"""Length of one look at an idle machine."""

STAT = Path("/proc/stat")


def busy_s() -> float:
    """Return the seconds that all cores of the host have worked so far; 0 where nobody tells."""
    if not STAT.exists():
        return 0.0
    fields = STAT.read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _wait, irq, soft, steal = (int(one) for one in fields[:8])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


class Foreign:
    """Counts what others use between two looks, given what this run's processes used."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin to count."""
        self.wall, self.busy, self.own = time.monotonic(), busy_s(), time.process_time()

    def used(self) -> tuple[float, float, float]:
        """Return seconds since `restart`, of all cores, and of this process."""
        return (
            time.monotonic() - self.wall,
            busy_s() - self.busy,
            time.process_time() - self.own,
        )

    def cores(self, world) -> float:
        """Return the cores that processes outside this run's ranks kept busy, on average.

        Every rank must ask; all get the same answer.
        """
        wall_s, busy, own = self.used()
        wall_s, busy = world.agree_all([wall_s, busy], "max")
        (own,) = world.agree_all([own], "sum")
        return max(0.0, (busy - own) / max(wall_s, 1e-9))


def wait_until_quiet(world, longest_s: float) -> float:
    """Sleep until others take less than `QUIET_CORES`, or `longest_s` has passed; return how long.

    All ranks come back together.
    """
    begin = time.monotonic()
    while world.agree(longest_s - (time.monotonic() - begin), "min") > 0.0:
        looked = Foreign()
        time.sleep(LOOK_S)
        if looked.cores(world) < QUIET_CORES:
            break
    return time.monotonic() - begin
