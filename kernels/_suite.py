"""The list of cases that train_step goes through, section by section within its minutes."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import _timing
from _cases import Case
from _worker import Lost, Worker

RECOMPUTE = ("none", "selective", "full")
SECTIONS = ("eager", "options", "compiled", "ranks")
LIMIT_S = {False: 180.0, True: 240.0}
"""Seconds that one case may take: eager, compiled."""
MOST_TIMING_S = 2.5
"""Seconds that the timed steps of one case take, unless three steps take longer."""


@dataclass(frozen=True)
class Section:
    """Cases that belong together, and the part of the time that they may take."""

    name: str
    weight: float
    cases: list[Case]


# --- the list -------------------------------------------------------------------------------


def gpu_sections() -> list[Section]:
    """Return the cases for one GPU of 80 GB or more; what does not fit is skipped when tried."""
    return [
        Section("eager", 3.0, eager()),
        Section("options", 1.0, variants()),
        Section("compiled", 3.0, compiled()),
        Section("ranks", 4.0, single_ranks()),
    ]


def _each_recompute(*cases: Case, **more) -> list[Case]:
    return [replace(case, recompute=how, **more) for case in cases for how in RECOMPUTE]


LLAMA_8B = Case(model="llama-3.1-8b", sequence=8192, states="bf16")
LLAMA_1B = Case(model="llama-3.2-1b", sequence=4096, micro_batch=2, sharding="zero3")
GPT_XL = Case(model="gpt3-xl", sequence=2048, micro_batch=4)
OLMOE = Case(model="olmoe-1b-7b", sequence=4096, states="bf16")
GPT_SMALL = Case(model="gpt3-small", sequence=2048, micro_batch=8)


def eager() -> list[Case]:
    """From 125 million to 8 billion parameters, of each family; states in bf16 where large."""
    small = {"sequence": 2048, "micro_batch": 8}
    return _each_recompute(
        LLAMA_8B,
        GPT_XL,
        OLMOE,
        LLAMA_1B,
        GPT_SMALL,
        Case(model="gpt3-6.7b", sequence=2048, states="bf16"),
        Case(model="llama-3.2-3b", sequence=4096),
        Case(model="mixtral-8x7b", layers=4, sequence=4096, states="bf16"),
        Case(model="moe-small", **small),
        Case(model="llama-small", **small),
    )


def variants() -> list[Case]:
    """Each differs in one thing from a case of `eager`."""
    return [
        replace(LLAMA_1B, sharding="ddp"),
        replace(LLAMA_1B, sharding="ddp", states="bf16"),
        replace(LLAMA_1B, loss_chunks=8),
        replace(LLAMA_8B, loss_chunks=8, recompute="full"),
        replace(LLAMA_8B, frozen=24),
        replace(LLAMA_8B, layers=16, states="fp32", sharding="zero3"),
        replace(LLAMA_1B, accumulate=4),
        replace(LLAMA_1B, adamw="foreach"),
        replace(LLAMA_1B, micro_batch=1),
        replace(OLMOE, routing="learned"),
    ]


def compiled() -> list[Case]:
    """The blocks compiled."""
    few = _each_recompute(LLAMA_8B, GPT_XL, LLAMA_1B, compile=True)
    return [*few, replace(OLMOE, compile=True), *_each_recompute(GPT_SMALL, compile=True)]


def single_ranks() -> list[Case]:
    """Ranks of 70B on tp 8, pp 4 and of FSDP2 over 64, and of 8B on FSDP2 over 8."""
    rank = Case(
        model="llama-3.1-70b",
        sequence=8192,
        accumulate=8,
        fake_world=32,
        tp=8,
        pp=4,
        sequence_parallel=True,
        states="bf16",
    )
    sharded = Case(
        model="llama-3.1-70b", sequence=8192, fake_world=64, sharding="zero3", recompute="full"
    )
    few = replace(LLAMA_8B, fake_world=8, sharding="zero3", states="fp32")
    found = [replace(rank, rank=place) for place in ("first", "middle", "last")]
    found += [replace(sharded, layers=20), replace(sharded, layers=20, recompute="none")]
    found += [*_each_recompute(few), replace(few, compile=True), sharded]
    for place in ("first", "last", "middle"):
        found += [replace(rank, rank=place, recompute=how) for how in ("full", "selective")]
        found += [replace(rank, rank=place, states="fp32")]
    return found


def small_sections(quick: bool) -> list[Section]:
    """Return tiny cases of each kind, for a CPU and for trying the program."""
    models = [Case(model=f"{name}-tiny", micro_batch=2) for name in ("llama", "gpt", "moe")]
    rank = replace(models[0], accumulate=4, fake_world=8, tp=2, pp=4, sequence_parallel=True)
    cases = [
        *(models if quick else _each_recompute(*models)),
        replace(models[0], recompute="selective", frozen=2, loss_chunks=4),
        replace(models[0], fake_world=64, sharding="zero3", recompute="full"),
        *(replace(rank, rank=place) for place in ("first", "middle", "last")),
    ]
    if not quick:
        cases += [replace(models[0], sequence=512), replace(models[0], compile=True)]
    return [Section("small", 1.0, [replace(case, precision="fp32") for case in cases])]


# --- going through the list -----------------------------------------------------------------


def run_suite(arguments, run: _timing.Run) -> None:
    """Measure section by section; what a section had no time for comes again at the end."""
    on_gpu = run.device.kind == "cuda"
    sections = gpu_sections() if on_gpu and not run.quick else small_sections(run.quick)
    chosen = [part for part in arguments.sections.split(",") if part]
    sections = [one for one in sections if one.name in chosen] or sections
    weight, late, end = sum(one.weight for one in sections), [], time.monotonic()
    total_s, last = run.budget.left_s, run.budget.end
    worker = Worker(arguments.device, arguments.seed)
    try:
        for section in sections:
            end += total_s * section.weight / weight
            cases = [replace(case, seed=arguments.seed) for case in section.cases]
            wanted = [case for case in cases if case.dtype in run.dtypes("bf16", "fp32")]
            late += _go(wanted, run, worker, end)
        _skip_each(_go(late, run, worker, last), run)
    finally:
        worker.end()


def _go(cases: list[Case], run: _timing.Run, worker: Worker, end: float) -> list[Case]:
    """Measure the cases until `end` and return those that are left."""
    for at, case in enumerate(cases):
        left_s = end - time.monotonic()
        if left_s <= 0:
            return cases[at:]
        run._show(at, len(cases), case)
        most_s = min(LIMIT_S[case.compile], max(10.0, run.budget.left_s))
        try:
            found = worker.ask(case, min(MOST_TIMING_S, left_s / 4), most_s)
        except Lost as lost:
            found = {"reason": str(lost)}
        _note(case, found, run)
    return []


def _note(case: Case, found: dict, run: _timing.Run) -> None:
    if "reason" in found:
        run.skip(case.kernel, case.shape(), case.dtype, found["reason"])
        return
    more = found.pop("more")
    run.record(case.kernel, case.dtype, **found, **more)
    run.flush()


def _skip_each(cases: list[Case], run: _timing.Run) -> None:
    for case in cases:
        reason = f"time: {run.budget.minutes:g} min spent before"
        run.skip(case.kernel, case.shape(), case.dtype, reason)
