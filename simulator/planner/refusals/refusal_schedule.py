"""Why a pipeline schedule does not go with a layout, a batch, or a software."""

from __future__ import annotations

from simulator.planner.refusals.case import Case, around, closest
from simulator.schedules.registry import SCHEDULES

__all__ = ["interleave", "post_validation", "schedule"]


_ROUNDS = {
    "pp": "needs a number of micro-batches that divides by pp = {pp}",
    "longer": "needs micro-batches in equal rounds of {pp} to {most}",
    "any": "needs micro-batches in equal rounds of {pp} to {most}, or a single one of fewer",
}
"""What each software asks of interleaved schedules."""


def interleave(case: Case) -> str:
    """Micro-batches that do not divide into rounds."""
    row = case.row
    if row["pp"] == 1:
        return case.line("layout.vpp", "must be 1 where pp is 1", near=[1])
    count = row["global_batch"] // (row["dp"] * row["micro_batch"])
    software = case.scenario.software
    word = software.supports.rounds if SCHEDULES[row["schedule"]].by_default else "longer"
    rule = _ROUNDS["pp" if software.supports.rounds == "pp" else word]
    rule = f"{rule.format(pp=row['pp'], most=2 * row['pp'] - 1)} in {software.name}"
    step = row["dp"] * row["micro_batch"] * row["pp"]
    near = closest(row["global_batch"], around(row["global_batch"], step))
    offers = ["vpp 1", *(f"global_batch {batch}" for batch in near)]
    return case.line("layout.vpp", rule, f"{count} micro-batches", offers)


def schedule(case: Case) -> str:
    """Which of a schedule's own rules on chunks, ranks and micro-batches is broken."""
    row, word = case.row, case.row["schedule"]
    if row["pp"] == 1:
        return case.line("layout.schedule", "needs pp > 1", repr(word))
    named = SCHEDULES[word]
    least, most = named.fewest_chunks, named.most_chunks
    if not least <= row["vpp"] <= most:
        many = str(least) if least == most else f"at least {least}"
        return case.line("layout.vpp", f"must be {many} with {word}", near=[least])
    if named.even and row["pp"] % 2:
        return case.line("layout.pp", f"must be even with {word}", near=around(row["pp"], 2))
    few = named.fewest_micro_batches(row["pp"])
    step = row["dp"] * row["micro_batch"] * (2 if named.even else 1)
    even = " and an even number of them" if named.even else ""
    count = row["global_batch"] // (row["dp"] * row["micro_batch"])
    batch = max(few * row["dp"] * row["micro_batch"], around(row["global_batch"], step)[0])
    rule = f"{word} needs at least {few} micro-batches{even}"
    return case.line("layout.schedule", rule, count, [f"global_batch {batch}"])


def post_validation(case: Case) -> str:
    """A barrier that the schedule or the software cannot do without."""
    software, word = case.scenario.software, case.row["schedule"]
    if not software.supports.post_validation:
        rule = f"must be false: {software.name} waits for the norm of all gradients"
        return case.line("training.optimizer_post_validation", rule, True)
    able = ", ".join(word for word, schedule in SCHEDULES.items() if schedule.post_validated)
    rule = f"must be one of {able} with training.optimizer_post_validation"
    return case.line("layout.schedule", rule, repr(word))
