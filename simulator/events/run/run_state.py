"""What a played run reads and writes: numbers of one layout, and arrays of one seed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator.reliability.run_terms import RunTerms
from simulator.units import DAY_S

CAUSE_PHASES = (
    "lost work",
    "detection",
    "diagnosis",
    "replacement",
    "start",
    "loading",
    "warm-up",
    "failed restarts",
    "checkpoints",
)
"""Where the time goes that a cause of interruptions takes."""

OTHERS = ("slow servers", "maintenance", "checkpoints")
"""Where it goes without one: the last rows of what is spent."""

LOST, DETECTION, DIAGNOSIS, REPLACEMENT, START, LOADING, WARMUP, FAILED, CHECKPOINTS = range(9)

(
    CLOCK, DONE, SINCE, STALL, COUNT,
    AT_1, BEFORE_1, AGE_1, AT_2, BEFORE_2, AGE_2,
    SLOW_AT, SLOW, FOUND_AT, FOUND_BY, GOOD, NEXT_STOP, OUT, LINES, MISSING,
) = range(20)  # fmt: skip
"""Places in `Played.state`: wall clock, ideal seconds done and since the last checkpoint, what is
left of a stall, copies since the last checkpoint to storage; positions of the last copy and the
one before and the training time since (1: copies, 2: storage); when a server turns slow, whether
one is, when corruption is found, its cause, and from where it is repeated; next planned stop;
servers in repair; lines of the strip; servers that a shrunk run is short of."""

STATE = 20
NEVER_S = 1e30


class Rules(NamedTuple):
    """Numbers of a layout; seconds, and per second."""

    work_s: float
    interval_s: float
    stall_s: float
    after_s: float
    """Background until a copy counts (level 1)."""
    store_stall_s: float
    """Stall at a checkpoint to storage, where copies go to peers in between."""
    store_after_s: float
    copies: int
    """Copies for each checkpoint to storage; 1 without peers."""
    stretch: float
    write_s: float
    start_s: float
    load_s: float
    copy_load_s: float
    warmup_s: float
    failing: float
    retry_s: float
    manual: float
    manual_s: float
    hot: int
    pool: int
    hot_s: float
    cold_s: float
    shrinks: bool
    slow_rate: float
    slow_factor: float
    noticed_s: float
    slow_repair_s: float
    stop_every_s: float
    stop_s: float
    shape: float
    age_s: float
    reference_s: float
    lemons: int
    lemon_share: float
    strikes: int
    longest_s: float
    """Wall time after which a run is given up."""
    causes: int
    rate: Any
    """(causes,), at the reference age."""
    kind: Any
    detection_s: Any
    diagnosis_s: Any
    replaced: Any
    repair_s: Any
    taken: Any
    lossless: Any
    from_copies: Any
    single: Any
    """A server of its own, and no switch."""


_ROOM = 128
"""Causes that a record has room for: a multiple of it, so that one compiled code plays all runs."""


def packed(rules: Rules) -> Any:
    """Rules as an array of one record, which compiled functions hand on as one address."""
    kinds: list[Any] = []
    columns = [np.asarray(value) for value in rules]
    for at, (name, column) in enumerate(zip(rules._fields, columns, strict=True)):
        if column.ndim:
            columns[at] = np.pad(column, (0, -len(column) % _ROOM))
        whole = column.dtype.kind in "bi"
        kinds.append((name, np.int64 if whole else np.float64, columns[at].shape))
    record = np.zeros(1, np.dtype(kinds))
    for name, column in zip(rules._fields, columns, strict=True):
        record[name][0] = column
    return record


class Played(NamedTuple):
    """Arrays of one seed; of many, with a row for each in all but `strip`."""

    state: Any
    random: Any
    """uint64, (1,): the counter of the generator."""
    spent: Any
    """(causes + 3, phases): seconds by cause; then slow servers, planned stops, checkpoints."""
    counts: Any
    """(causes + 3,): interruptions."""
    back: Any
    """When servers in repair are back, unordered; the first `state[OUT]` count."""
    strikes: Any
    """(lemons,)"""
    speed_lost: Any
    """Share of the speed that is lost without 0, 1, 2 ... servers; the last for more."""
    strip: Any
    """(lines, 3): start, end and kind of a stretch; none where nobody asks for it."""


def rules_of(terms: RunTerms, interval_s: float, copy_interval_s: float) -> Rules:
    """Numbers of a table of one layout; its work must be known."""
    run = terms.run
    memory = terms.in_memory

    def one(value: Any) -> float:
        return float(np.asarray(value)[0, 0])

    copies = max(round(interval_s / copy_interval_s), 1) if memory else 1
    background = one(terms.background_s)
    return Rules(
        work_s=one(terms.work_s),
        interval_s=interval_s / copies if memory else interval_s,
        stall_s=one(terms.copy_s) if memory else one(terms.stall_s),
        after_s=0.0 if memory else background,
        store_stall_s=one(terms.stall_s) if memory else 0.0,
        store_after_s=background,
        copies=copies,
        stretch=one(terms.stretch),
        write_s=one(terms.write_s),
        start_s=one(terms.start_s),
        load_s=one(terms.load_s),
        copy_load_s=one(terms.copy_load_s) if memory else one(terms.load_s),
        warmup_s=one(terms.warmup_s),
        failing=float(run.restart.failing_fraction),
        retry_s=float(run.restart.retry_s),
        manual=float(run.restart.manual_fraction),
        manual_s=float(run.restart.manual_s),
        hot=int(one(terms.hot)),
        pool=int(one(terms.pool)),
        hot_s=float(run.spares.hot_s),
        cold_s=float(run.spares.cold_s),
        shrinks=run.spares.when_none == "shrink" and terms.speed_lost[0, :2][-1] < 1.0,
        slow_rate=float(run.slow.per_node_day) / DAY_S * one(terms.nodes),
        slow_factor=float(run.slow.time_factor),
        noticed_s=float(run.slow.noticed_s),
        slow_repair_s=float(run.slow.repair_s),
        stop_every_s=float(run.maintenance.every_s) or NEVER_S,
        stop_s=float(run.maintenance.stop_s),
        shape=float(run.early_shape),
        age_s=float(run.age_s),
        reference_s=float(run.reference_age_s),
        lemons=int(one(terms.lemons)),
        lemon_share=float(run.lemon_failure_fraction) * (one(terms.lemons) > 0.0),
        strikes=int(run.lemon_strikes),
        longest_s=1e2 * one(terms.work_s),
        causes=len(terms.kind),
        **_of_causes(terms),
    )


def _of_causes(terms: RunTerms) -> dict[str, Any]:
    """Arrays with an entry for each cause."""
    causes, memory = terms.run.causes.values(), terms.in_memory
    return {
        "rate": np.ascontiguousarray(terms.rate[0], dtype=float),
        "kind": np.asarray(terms.kind, np.int64),
        "detection_s": np.asarray(terms.detection_s, float),
        "diagnosis_s": np.asarray(terms.diagnosis_s, float),
        "replaced": np.asarray(terms.replaced, float),
        "repair_s": np.asarray(terms.repair_s, float),
        "taken": np.asarray(terms.taken_nodes[0], np.int64),
        "lossless": np.asarray(terms.lossless[0], np.bool_),
        "from_copies": np.asarray(terms.from_copies[0], np.bool_) & memory,
        "single": np.array([cause.device not in ("leaf", "spine") for cause in causes]),
    }
