"""Loaders played batch by batch: workers, batches made ahead, and ranks that wait for the slowest.

torch's DataLoader gives batch i to worker i mod W, hands batches out in order, and keeps W x
prefetch of them asked for: batch i is asked for when batch i - W x prefetch is handed out. All
ranks begin a micro-batch together, so that the slowest rank's batch decides.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.arrays import Floats
from simulator.cost.loading import Supply
from simulator.data_input.supply import workers_of
from simulator.events.played import SimulatedStep
from simulator.events.step.timeline import Loading
from simulator.records import dataclass

_STEPS = 200
_MOST_BATCHES = 20_000
"""Micro-batches played; steps of many are played fewer times."""
_MOST_RANKS = 1024
"""Ranks drawn; of more the slowest is a little faster than it would be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaders:
    """Loaders of all ranks, same, except chance."""

    workers: int
    prefetch: int
    batch_s: float
    """Mean time in which one worker makes one micro-batch."""
    spread: float
    """Standard deviation of its logarithm."""
    ranks: int


def play_loaders(loaders: Loaders, compute_s: float, batches: int, seed: int = 0) -> Floats:
    """Seconds that each of so many micro-batches is waited for, each computed in `compute_s`.

    Examples
    --------
    Two workers that take 3 s for a batch hand one out every 1.5 s; ranks that compute for 1 s wait
    for 0.5 s in the mean: the first batch takes 3 s, the second is ready with it, and so on.

    >>> two = Loaders(workers=2, prefetch=1, batch_s=3.0, spread=0.0, ranks=4)
    >>> play_loaders(two, 1.0, 6).round(9).tolist()
    [3.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    """
    draw = np.random.default_rng(seed)
    mean = np.log(max(loaders.batch_s, 1e-30)) - loaders.spread**2 / 2.0
    took = np.exp(mean + loaders.spread * draw.standard_normal((batches, loaders.ranks)))
    waits, now = np.zeros(batches), 0.0
    if loaders.workers == 0:
        return np.asarray(took.max(axis=1))
    ahead = loaders.workers * loaders.prefetch
    free = np.zeros((loaders.workers, loaders.ranks))
    handed = np.zeros(batches)
    for i in range(batches):
        asked = handed[i - ahead] if i >= ahead else 0.0
        worker = free[i % loaders.workers]
        np.maximum(worker, asked, out=worker)
        worker += took[i]
        waits[i] = max(float(worker.max()) - now, 0.0)
        handed[i] = now + waits[i]
        now = handed[i] + compute_s
    return waits


def played_input(supply: Supply, micro_batches: int, step_s: float, seed: int = 0) -> Loading:
    """Play the loaders of a run whose steps take `step_s` without waiting."""
    count = int(np.clip(_MOST_BATCHES // micro_batches, 2, _STEPS))
    share, found = supply.cold_share, {}
    for name, stages in (("cold", supply.cold_s), ("warm", supply.warm_s)):
        slowest = max(float(seconds[0]) for seconds in stages.values())
        workers = int(workers_of(supply.data))
        loaders = Loaders(
            workers=workers,
            prefetch=supply.data.prefetch,
            batch_s=slowest * max(workers, 1) / micro_batches,
            spread=supply.data.spread,
            ranks=int(min(max(supply.readers.ranks[0], 1.0), _MOST_RANKS)),
        )
        waits = play_loaders(loaders, step_s / micro_batches, count * micro_batches, seed)
        found[name] = waits.reshape(count, micro_batches)
    half = slice(count // 2, None)  # the first steps live off batches made before them
    per_step = {name: waits[half].sum(axis=1) for name, waits in found.items()}
    copies = float(supply.copy_s[0])
    most = per_step["cold" if share >= 0.5 else "warm"]
    mean = share * per_step["cold"].mean() + (1.0 - share) * per_step["warm"].mean()
    return Loading(
        waiting_s=copies + float(mean),
        waiting_p90_s=copies + float(np.quantile(most, 0.9)),
        first_batch_s=float(found["cold"][0, 0]),
        spread=supply.data.spread,
        steps=count,
    )


def with_loading(step: SimulatedStep, loading: Loading) -> SimulatedStep:
    """A played step behind the wait for its samples, in which nothing else runs."""
    before, late_s = step.step_time_s, loading.waiting_s
    after = before + late_s
    kept = before / after
    shares = {name: share * kept for name, share in step.critical_share.items()}
    shares["input"] = shares.get("input", 0.0) + late_s / after
    return replace(
        step,
        step_time_s=after,
        terms_s={**step.terms_s, "input": step.terms_s["input"] + late_s},
        critical_share=shares,
        idle_s=step.idle_s + late_s,
        links={name: share * kept for name, share in step.links.items()},
        loading=loading,
    )
