"""What the accelerators wait for where their input does not keep up, and what would end it."""

from __future__ import annotations

import math
from typing import ClassVar

from simulator.answers import Encoded
from simulator.cost.estimate import Estimate
from simulator.cost.loading import Supply, supply_of
from simulator.data_input.supply import cores_of, read_s, sample_of, workers_of
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.units import show_count, show_percent, show_rate

READY = "samples are tokens, ready in time: no section [data], so that nothing waits for input"
"""What is assumed without a section [data]."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """How much of one thing would end the waiting for it."""

    KEYS: ClassVar[tuple[str, ...]] = ("what", "needed", "now")

    what: str
    """Stage of the supply (STAGES)."""
    needed: float
    now: float
    """What there is, in the same unit."""
    words: str
    instead: str = ""
    """Something else that would do as well."""


@dataclass(frozen=True, kw_only=True)
class InputVerdict(Encoded):
    """How the input of one layout keeps up."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("waiting_s", "waiting_fraction=fraction", "stages_s", "slowest", "first_epoch_share"),
        *("would_end_it=needs", "verdict=sentence"),
    )

    waiting_s: float
    step_time_s: float
    stages_s: dict[str, float]
    """Seconds that each stage takes for the samples of one step, over the run's epochs."""
    slowest: str
    needs: tuple[Need, ...]
    """All of them together end the waiting; empty where nothing waits."""
    first_epoch_share: float
    """Share of the steps that read from the store."""
    later_epochs_wait: bool
    """Whether steps wait too that read local copies, or would if there were any."""

    @property
    def fraction(self) -> float:
        """Share of the time in which the accelerators wait."""
        return self.waiting_s / self.step_time_s

    def sentence(self) -> str:
        """The verdict in words."""
        if not self.waiting_s > 0.0:
            spare = self.stages_s[self.slowest] / self.step_time_s
            return (
                "input keeps up: nothing waits; its slowest stage"
                f" ({self.slowest}) is busy {show_percent(spare)} of the time"
            )
        ends = " and ".join(f"{need.words}{need.instead}" for need in self.needs)
        when = " in the first epoch" if not self.later_epochs_wait else ""
        share = show_percent(self.fraction)
        return f"the GPUs wait {share} of the time{when}: {ends} would end it"


def input_verdict(scenario: Scenario, estimate: Estimate, i: int = 0) -> InputVerdict | None:
    """How the input of one layout of an estimate keeps up; None without a section [data]."""
    if scenario.workload.data is None:
        return None
    row = estimate.take([i])
    supply = supply_of(row.layouts, scenario.workload, scenario.cluster, scenario.software)
    if supply is None:
        return None
    waiting_s, whole_s = float(row.waiting_s[0]), float(row.step_time_s[0])
    share = supply.cold_share
    stages = {
        name: share * float(supply.cold_s[name][0]) + (1.0 - share) * float(supply.warm_s[name][0])
        for name in supply.cold_s
    }
    needs = _needs(supply, scenario, whole_s - waiting_s) if waiting_s > 0.0 else ()
    return InputVerdict(
        waiting_s=waiting_s,
        step_time_s=whole_s,
        stages_s=stages,
        slowest=max(stages, key=lambda name: stages[name]),
        needs=needs,
        first_epoch_share=share,
        later_epochs_wait=max(float(x[0]) for x in supply.warm_s.values()) > whole_s - waiting_s
        or bool(supply.copy_s[0] > 0.0),
    )


def _needs(supply: Supply, scenario: Scenario, step_s: float) -> tuple[Need, ...]:
    """What has to grow to what so that no stage takes longer than `step_s`."""
    data, store = supply.data, supply.data.store
    needs = [_workers(supply, scenario, step_s)]
    units: dict[str, tuple[float, str]] = {"cores": (cores_of(data), "{} cores a server")}
    if store is not None:
        who = "a server's own drives" if store.per_server else "the store"
        units["store"] = (float(store.read_bytes_per_s), f"{{}} from {who}")
        units["server"] = (float(store.server_bytes_per_s or math.inf), "{} to every server")
        units["requests"] = (float(store.requests_per_s or math.inf), "{} reads/s")
        units["opens"] = (float(store.opens_per_s or math.inf), "{} opened files/s")
    drives = scenario.cluster.node.nvme
    units["drives"] = (float(drives.read_bytes_per_s) if drives else math.inf, "{} of drives")
    link = float(scenario.cluster.node.host_bytes_per_s or math.inf)
    units["host link"] = (link, "{} of every host link")
    for name, (now, words) in units.items():
        seconds = max(float(supply.cold_s[name][0]), float(supply.warm_s[name][0]))
        if seconds > step_s:
            needed = now * seconds / step_s
            counted = name in ("cores", "requests", "opens")
            shown = show_count(math.ceil(needed)) if counted else show_rate(needed)
            needs.append(Need(what=name, needed=needed, now=now, words=words.format(shown)))
    if float(supply.copy_s[0]) > 0.0:
        needs.append(Need(what="pinned", needed=1.0, now=0.0, words="pinned memory"))
    return tuple(need for need in needs if need is not None)


def _workers(supply: Supply, scenario: Scenario, step_s: float) -> Need | None:
    """Workers of a rank, or what those that there are would have to read at."""
    data, recipe = supply.data, scenario.workload.recipe
    now = workers_of(data)
    seconds = max(float(supply.cold_s["workers"][0]), float(supply.warm_s["workers"][0]))
    if now >= 1.0 and seconds <= step_s:
        return None
    needed = math.ceil(seconds * max(now, 1.0) / step_s - 1e-9)
    words = {"images": "decode workers", "text": "tokenizer workers"}.get(data.kind, "workers")
    sample = sample_of(data, recipe.tokens_per_step / recipe.global_batch)
    n = float(supply.readers.samples[0])
    left_s = step_s * max(now, 1.0) / n - sample.worker_s
    bytes_s = sample.stored_bytes / float(data.store.read_bytes_per_s) if data.store else 0.0
    if data.store is not None and data.store.stream_bytes_per_s is not None:
        bytes_s = sample.stored_bytes / float(data.store.stream_bytes_per_s)
    left_s -= read_s(sample, data.store) - bytes_s  # opening and first bytes stay
    instead = ""
    if now >= 1.0 and 0.0 < left_s < bytes_s:
        instead = f" (or {show_rate(sample.stored_bytes / left_s)} to each of the {now:g})"
    return Need(
        what="workers",
        needed=float(needed),
        now=now,
        words=f"{needed} {words} a rank",
        instead=instead,
    )
