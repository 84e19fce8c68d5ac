"""What a pipeline schedule asks of ranks, chunks and micro-batches."""

from __future__ import annotations

from operator import attrgetter

import numpy as np

from simulator.layout.keys import distinct_codes
from simulator.layout.layouts import Layouts
from simulator.layout.rules.rule import (
    Case,
    Mask,
    Rule,
    Setting,
    Wording,
    around,
    closest,
)
from simulator.schedules.registry import SCHEDULES, TAKES_ROUNDS, WORDS, by_code
from simulator.software.profile import Software

# --- rounds of micro-batches --------------------------------------------------------------------


def _breaks_rounds(x: Layouts, at: Setting) -> Mask:
    breaks = TAKES_ROUNDS[x.schedule] & ~_has_rounds(x, at.software)
    return (x.vpp > 1) & ((x.pp == 1) | breaks)


def _has_rounds(x: Layouts, software: Software) -> Mask:
    """Whether micro-batches divide into rounds as long as the software takes them.

    megatron/core/pipeline_parallel/schedules.py: rounds of microbatch_group_size_per_vp_stage, pp
    unless given, from pp to all micro-batches. torch/distributed/pipelining/schedules.py: as many
    rounds as pp goes into the micro-batches, one at the least.
    """
    rounds = np.maximum(x.micro_batches // x.pp, 1)
    if software.supports.rounds == "pp":
        return np.asarray(x.micro_batches % x.pp == 0)
    fewer = software.supports.rounds == "any"
    return np.asarray((x.micro_batches % rounds == 0) & ((x.micro_batches >= x.pp) | fewer))


_ROUNDS = {
    "pp": "needs a number of micro-batches that divides by pp = {pp}",
    "longer": "needs micro-batches in equal rounds of {pp} to {most}",
    "any": "needs micro-batches in equal rounds of {pp} to {most}, or a single one of fewer",
}
"""What each software asks of interleaved schedules."""


def _word_rounds(case: Case) -> Wording:
    row = case.row
    if row["pp"] == 1:
        return Wording("must be 1 where pp is 1", near=[1])
    count = row["global_batch"] // (row["dp"] * row["micro_batch"])
    rounds = case.software.supports.rounds
    asked = rounds if rounds == "pp" or SCHEDULES[row["schedule"]].by_default else "longer"
    must = _ROUNDS[asked].format(pp=row["pp"], most=2 * row["pp"] - 1)
    step = row["dp"] * row["micro_batch"] * row["pp"]
    near = closest(row["global_batch"], around(row["global_batch"], step))
    offers = ["vpp 1", *(f"global_batch {batch}" for batch in near)]
    return Wording(f"{must} in {case.software.name}", f"{count} micro-batches", offers)


INTERLEAVING = Rule(
    field="layout.vpp",
    reason="interleaving needs pp > 1 and micro-batches in rounds that the software has",
    wrong=_breaks_rounds,
    wording=_word_rounds,
)


# --- a schedule's own number of chunks, ranks or micro-batches -----------------------------------


def _misfits_schedule(x: Layouts, at: Setting) -> Mask:
    """Schedules of their own number of chunks, ranks or micro-batches."""
    misfits = np.zeros(len(x), dtype=bool)
    for code in distinct_codes(x.schedule):
        schedule, rows = SCHEDULES[WORDS[code]], x.schedule == code
        wrong = (x.vpp < schedule.fewest_chunks) | (x.vpp > schedule.most_chunks)
        if not schedule.by_default:
            wrong |= (x.pp == 1) | (x.micro_batches < schedule.fewest_micro_batches(x.pp))
        if schedule.even:
            wrong |= (x.pp % 2 != 0) | (x.micro_batches % 2 != 0)
        misfits |= rows & wrong
    return misfits


def _word_schedule(case: Case) -> Wording:
    row, word = case.row, case.row["schedule"]
    if row["pp"] == 1:
        return Wording("needs pp > 1", repr(word))
    named = SCHEDULES[word]
    least, most = named.fewest_chunks, named.most_chunks
    if not least <= row["vpp"] <= most:
        many = str(least) if least == most else f"at least {least}"
        return Wording(f"must be {many} with {word}", near=[least], field="layout.vpp")
    if named.even and row["pp"] % 2:
        return Wording(f"must be even with {word}", near=around(row["pp"], 2), field="layout.pp")
    few = named.fewest_micro_batches(row["pp"])
    step = row["dp"] * row["micro_batch"] * (2 if named.even else 1)
    even = " and an even number of them" if named.even else ""
    count = row["global_batch"] // (row["dp"] * row["micro_batch"])
    batch = max(few * row["dp"] * row["micro_batch"], around(row["global_batch"], step)[0])
    must = f"{word} needs at least {few} micro-batches{even}"
    return Wording(must, count, [f"global_batch {batch}"])


SCHEDULE = Rule(
    field="layout.schedule",
    reason="the schedule does not go with this pp, vpp or number of micro-batches",
    wrong=_misfits_schedule,
    wording=_word_schedule,
)


# --- the barrier before the optimizer -------------------------------------------------------------


_POST_VALIDATED = by_code(attrgetter("post_validated"))


def _needs_barrier(x: Layouts, at: Setting) -> Mask:
    """Layouts whose ranks end a step together: every schedule but those of zero bubble."""
    able = _POST_VALIDATED[x.schedule] & (x.pp > 1)
    waits = ~(able & at.software.supports.post_validation)
    return waits & at.workload.recipe.optimizer_post_validation


def _word_barrier(case: Case) -> Wording:
    asking = "training.optimizer_post_validation"
    if not case.software.supports.post_validation:
        must = f"must be false: {case.software.name} waits for the norm of all gradients"
        return Wording(must, True, field=asking)
    able = ", ".join(word for word, schedule in SCHEDULES.items() if schedule.post_validated)
    return Wording(f"must be one of {able} with {asking}", repr(case.row["schedule"]))


POST_VALIDATION = Rule(
    field="layout.schedule",
    reason="post-validation of the optimizer needs a zero-bubble schedule, and software that can",
    wrong=_needs_barrier,
    wording=_word_barrier,
)
