"""What breaks the symmetry of a step: slow GPUs, weaker links, other servers, loaded experts.

Equal replicas are simulated once. A deviation unfolds as little as it must: one more replica beside
the folded ones, joined where gradients are reduced; where ranks of several replicas keep step in
every layer (an expert group, gathered parameters) those replicas together. What differs is priced
by the same closed form, with the cluster or the workload that the deviation describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.cost.collectives.calls import send_share
from simulator.cost.pricing import price
from simulator.cost.tables import Priced, Selection, select
from simulator.cost.terms import HIDDEN, TERMS
from simulator.errors import InputError, problem
from simulator.events.deviations.servers import alike_replicas
from simulator.events.step.pass_costs import AHEAD, BACK, CAUSE, Passes
from simulator.events.step.play import Replica, after_every_pass, replica_of
from simulator.events.step.step_end import StepEndWork
from simulator.events.step.streams import COMPUTE_TERMS
from simulator.hardware.cluster import Cluster, weakened
from simulator.layout.layouts import Layouts
from simulator.records import dataclass
from simulator.schedules.registry import SCHEDULES
from simulator.schedules.schedule import BACKWARD, BACKWARD_INPUT, FORWARD
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

# --- sends between unlike servers --------------------------------------------------------

_SENDS, _SLOWDOWN, _HIDDEN = CAUSE["pp"], CAUSE["slowdown"], HIDDEN.index("pp")


def partners(schedule: str, pp: int, chunks: int) -> Ints:
    """The rank with which each chunk exchanges what it is charged for, (2, ranks, chunks).

    A forward pass sends to the next piece of the model and a backward pass to the one before; where
    that is on the same rank, or there is none, it is charged what it receives.

    Examples
    --------
    >>> partners("1f1b", 3, 1)[:, :, 0].tolist()
    [[1, 2, 1], [1, 0, 1]]
    """
    rank, chunk = np.indices((pp, chunks))
    held = SCHEDULES[schedule].piece(pp, rank, chunk)
    empty = np.empty((2, pp, chunks), np.int64)
    for way, step in ((AHEAD, 1), (BACK, -1)):
        before, after = _holder(schedule, held, -step), _holder(schedule, held, step)
        where = np.where((before < 0) | (before == rank), rank, before)
        empty[way] = np.where((after < 0) | (after == rank), where, after)
    return empty


def _holder(schedule: str, held: Ints, step: int) -> Ints:
    """The rank of the piece so many further on; -1: there is none."""
    full_like = np.full_like(held, -1)
    for rank, chunk in np.ndindex(*held.shape):
        there = held == held[rank, chunk] + step
        if SCHEDULES[schedule].copies > 1:  # each way through the model has a chunk of its own
            there &= np.arange(held.shape[1]) == chunk
        if there.any():
            full_like[rank, chunk] = np.argwhere(there)[0, 0]
    return full_like


def slower_hops(passes: Passes, kinds: list[str], schedule: str, shares: list[float]) -> Passes:
    """Let what passes between unlike servers take as long as over the slower adapters.

    Parameters
    ----------
    passes : Passes
        Of one replica, every rank priced on its own servers.
    kinds : list of str
        Kind of servers of each rank.
    schedule : str
    shares : list of float
        Compute that a second of communication beside it costs, on each rank.
    """
    other = partners(schedule, *passes.shown_s.shape[:2])
    unlike = np.array(kinds)[other] != np.array(kinds)[:, None]
    if not unlike.any():
        return passes
    if passes.send_s.any():
        return _beside(passes, other, unlike, np.array(shares))
    shown = passes.shown_s.copy()
    sent = shown[:, 0, FORWARD, _SENDS]
    for kind, way in ((FORWARD, AHEAD), (BACKWARD, BACK), (BACKWARD_INPUT, BACK)):
        slower = np.where(unlike[way], sent[other[way]], 0.0)
        shown[:, :, kind, _SENDS] = np.maximum(shown[:, :, kind, _SENDS], slower)
    return replace(passes, shown_s=shown)


def _beside(passes: Passes, other: Ints, unlike: NDArray[np.bool_], shares: Floats) -> Passes:
    """The same of sends beside compute: a rank's sends have one speed, that of its slowest."""
    slowest = np.where(unlike, passes.send_s[other], 0.0).max(axis=(0, 2))
    send_s = np.maximum(passes.send_s, slowest)
    shown, hidden = passes.shown_s.copy(), passes.hidden_s.copy()
    window = shown[:, :, [FORWARD, BACKWARD]].sum(axis=(2, 3))
    covered = np.minimum(2.0 * send_s[:, None], window)[:, :, None] / 2.0
    kinds = [FORWARD, BACKWARD, BACKWARD_INPUT]
    more = np.maximum(covered - hidden[:, :, kinds, _HIDDEN], 0.0)
    hidden[:, :, kinds, _HIDDEN] += more
    shown[:, :, kinds, _SLOWDOWN] += more * shares[:, None, None]
    return replace(passes, send_s=send_s, shown_s=shown, hidden_s=hidden)


# --- ranks on unlike servers -------------------------------------------------------------

_OWN = np.isin([term.name for term in TERMS], [*COMPUTE_TERMS, "launch"])
"""What each rank does by itself; the rest is calls."""


def in_step_passes(passes: Sequence[Passes]) -> Passes:
    """Join passes of the same ranks, each priced on one kind of servers."""
    shown = np.stack([rank_passes.shown_s for rank_passes in passes])
    slowest = np.argmax(shown[..., _OWN].sum(axis=-1), axis=0)

    def of_slowest(name: str) -> Floats:
        columns = np.stack([getattr(rank_passes, name) for rank_passes in passes])
        return np.asarray(np.take_along_axis(columns, slowest[None, ..., None], axis=0)[0])

    calls = np.where(_OWN, 0.0, shown)
    for i, name in enumerate(HIDDEN):
        calls[..., CAUSE[name]] += np.stack(
            [rank_passes.hidden_s[..., i] for rank_passes in passes]
        )
    slowest_calls = np.take_along_axis(calls, slowest[None, ..., None], axis=0)[0]
    longest = {
        field.name: np.max([getattr(rank_passes, field.name) for rank_passes in passes], axis=0)
        for field in fields(Passes)
        if field.name not in ("shown_s", "hidden_s", "alone_s")
    }
    return Passes(
        shown_s=of_slowest("shown_s") + (calls.max(axis=0) - slowest_calls),
        hidden_s=of_slowest("hidden_s"),
        alone_s=of_slowest("alone_s"),
        **longest,
    )


_LEAST, _MOST = 1e-6, 1e6
"""Times and shares of links beyond these factors are no deviation of a GPU that still runs."""

_COMPUTE = [CAUSE[name] for name in COMPUTE_TERMS]


@dataclass(frozen=True, kw_only=True, slots=True)
class Deviation:
    """One stage, of one replica or of all, that is not like the others.

    A stage stands for its tensor- and context-parallel ranks, which wait for their slowest.
    """

    stage: int | None = None
    """Pipeline rank, from 0; None: every one."""
    replica: int | None = None
    """Data-parallel replica, from 0; None: every one, so that nothing is unfolded."""
    compute: float = 1.0
    """Time of its compute over that of the others: 1.2 is a GPU that takes 20 % longer."""
    scale_up: float = 1.0
    """Share of the links inside its scale-up domain that is left, above 0 and at most 1."""
    scale_out: float = 1.0
    """Share of its network adapters that is left, above 0 and at most 1; what it sends, its
    collectives, and the reductions that wait for it."""
    expert_load: float | None = None
    """Tokens that its fullest expert rank gets over the mean of all, at least 1; None: what the
    recipe says (moe_imbalance)."""
    cluster: Cluster | None = None
    """Other servers, on which it is priced; None: the same. Of several kinds: it computes as long
    as on the slowest and calls as long as over the slowest links. What passes between unlike
    servers is as long as over the slower adapters."""


def replicas_of(
    layouts_row: Layouts,
    workload: Workload,
    cluster: Cluster,
    software: Software,
    deviations: Sequence[Deviation] = (),
) -> list[Replica]:
    """Price the pipelines that must be simulated for one layout: equal ones once.

    Raises
    ------
    InputError
        If a deviation names a stage or replica that is not there, or a number out of range.
    """
    check_deviations(deviations, workload, layouts_row)
    whole = _Whole(layouts_row, workload, software, int(layouts_row.dp[0]))
    base = cluster.each[0]
    plain = whole.on(base)
    if not deviations and not cluster.kinds:
        return [plain]
    span = min(in_step(layouts_row, plain.priced, plain.rows), int(layouts_row.dp[0]))
    replicas = []
    for alike in alike_replicas(
        layouts_row, cluster, span, [deviation.replica for deviation in deviations]
    ):
        everywhere = [deviation for deviation in deviations if deviation.replica is None]
        given = everywhere + [deviations[i] for i in alike.named]
        replica = replace(plain, count=len(alike.numbers), numbers=alike.numbers)
        replicas.append(_changed(replica, _on_servers(given, alike.servers, base), whole))
    return _joined(replicas)


def _on_servers(
    deviations: Sequence[Deviation], servers: tuple[Cluster, ...], base: Cluster
) -> list[Deviation]:
    """Deviations of one replica that put every stage on its servers, and those given over them."""
    if all(cluster is base for cluster in servers):
        return list(deviations)
    made = [
        Deviation(stage=s, cluster=cluster)
        for s, cluster in enumerate(servers)
        if cluster is not base
    ]
    for deviation in deviations:
        stages = range(len(servers)) if deviation.stage is None else (deviation.stage,)
        made += [
            replace(deviation, stage=s, cluster=deviation.cluster or servers[s]) for s in stages
        ]
    return made


def check_deviations(
    deviations: Sequence[Deviation], workload: Workload, layouts_row: Layouts
) -> None:
    """Refuse what is out of range, all at once."""
    row, wrong = layouts_row.row(), []
    dp, pp, moes = row["dp"], row["pp"], workload.architecture.moes
    most_load = min((float(moe.largest_load(row["ep"])) for moe in moes), default=1.0)
    for i, deviation in enumerate(deviations):
        where = f"deviations[{i}]"
        for name, value, most in (
            ("stage", deviation.stage, pp),
            ("replica", deviation.replica, dp),
        ):
            if value is not None and not 0 <= value < most:
                near = f" (nearest: {0 if value < 0 else most - 1})"
                rule = f"must be from 0 to {most - 1}"
                wrong.append(problem("simulate", f"{where}.{name}", rule, value) + near)
        if not 0.0 < deviation.compute < np.inf:
            rule = "must be above 0 (1.2: takes 20 % longer)"
            wrong.append(problem("simulate", f"{where}.compute", rule, deviation.compute))
        elif not _LEAST <= deviation.compute <= _MOST:
            rule = f"must be from {_LEAST:g} to {_MOST:g}"
            wrong.append(problem("simulate", f"{where}.compute", rule, deviation.compute))
        for name in ("scale_up", "scale_out"):
            if not 0.0 < (value := getattr(deviation, name)) <= 1.0:
                rule = "must be above 0 and at most 1 (a dead link carries nothing: give what the"
                rule += " traffic that goes around it has left)"
                wrong.append(problem("simulate", f"{where}.{name}", rule, value))
            elif value < _LEAST:
                rule = f"must be at least {_LEAST:g}"
                wrong.append(problem("simulate", f"{where}.{name}", rule, value))
        if deviation.expert_load is not None:
            if not workload.architecture.is_moe:
                rule = "must be left out of a model without experts"
                wrong.append(
                    problem("simulate", f"{where}.expert_load", rule, deviation.expert_load)
                )
            elif not 1.0 <= deviation.expert_load < np.inf:
                rule = "must be at least 1, the mean"
                wrong.append(
                    problem("simulate", f"{where}.expert_load", rule, deviation.expert_load)
                )
            elif deviation.expert_load > most_load:
                rule = f"must be at most {most_load:g} (ep): one rank then has all that it can"
                wrong.append(
                    problem("simulate", f"{where}.expert_load", rule, deviation.expert_load)
                )
    if wrong:
        raise InputError(wrong)


def in_step(layouts: Layouts, priced: Priced, rows: Selection) -> int:
    """Replicas that wait for one another in every layer."""
    inside = int(layouts.tp[0] * layouts.cp[0])
    experts = -(-int(layouts.ep[0] * layouts.etp[0]) // inside)
    states, grid = priced.states, rows.state_key[0]
    sharded = states.part_gather_s[grid].any() and not states.keeps_gathered[grid]
    group = -(-int(layouts.shard_group[0]) // int(layouts.cp[0]))
    return max(experts, group if sharded else 1)


def _changed(replica: Replica, deviations: Sequence[Deviation], whole: _Whole) -> Replica:
    """A replica with the deviations put over it, one after the other."""
    passes, step_end, ranks = replica.passes, replica.step_end, len(replica.step_end.buckets)
    sources: list[tuple[Replica, ...]] = [(replica,)] * ranks
    for deviation in deviations:
        stage = slice(None) if deviation.stage is None else deviation.stage
        stage_sources = whole.apart(deviation, replica)
        other = _slowest(stage_sources)
        columns: dict[str, dict[str, Any]] = {}
        for name, mine, theirs in (
            ("passes", passes, other.passes),
            ("step_end", step_end, other.step_end),
        ):
            columns[name] = {
                field.name: _with_row(
                    getattr(mine, field.name),
                    getattr(theirs, field.name),
                    (slice(None), stage) if field.name == "overlap_slowdown_s" else stage,
                )
                for field in fields(mine)
                if field.name not in _WHOLE
            }
        slowed = columns["passes"]["shown_s"]
        slowed[stage, ..., _COMPUTE] *= deviation.compute
        columns["passes"]["alone_s"][stage, ..., _COMPUTE] *= deviation.compute
        columns["step_end"]["optimizer_s"][stage] *= deviation.compute
        passes = replace(passes, **columns["passes"])
        step_end = replace(step_end, **columns["step_end"])
        for rank in range(ranks)[stage] if isinstance(stage, slice) else (stage,):
            sources[rank] = stage_sources
    ends = _longest([x.step_end for stage_sources in sources for x in stage_sources])
    outer = [
        x.step_end.tied_embedding_sum_s
        for stage_sources in (sources[0], sources[-1])
        for x in stage_sources
    ]
    step_end = replace(step_end, **(ends | {"tied_embedding_sum_s": max(outer)}))
    return _with_hops(replace(replica, passes=passes, step_end=step_end, sources=tuple(sources)))


def _with_hops(replica: Replica) -> Replica:
    """The replica with sends between unlike servers over the slower adapters."""
    kinds = [
        " + ".join(x.priced.cluster.name for x in stage_sources)
        for stage_sources in replica.sources
    ]
    shares = [
        max(float(send_share(x.priced.cluster, True)) for x in stage_sources)
        for stage_sources in replica.sources
    ]
    schedule = replica.rows.layouts.row()["schedule"]
    return replace(replica, passes=slower_hops(replica.passes, kinds, schedule, shares))


_WHOLE = (
    "overlaps", "reductions", "tied_embedding_sum_s", "norm_s", "gradients_s", "hidden_gradients_s",
    "copies_each",
)  # fmt: skip
"""Fields that belong to the step, not to a stage."""


def _with_row(mine: Floats, theirs: Floats, at: Any) -> Floats:
    """A copy with some entries from the other."""
    column = mine.copy()
    column[at] = theirs[at]
    return column


_ENDS = ("tied_embedding_sum_s", "norm_s", "gradients_s", "hidden_gradients_s")
"""Those of them that end when the slowest of all ranks has ended them."""


def _longest(step_end: Sequence[StepEndWork]) -> dict[str, Any]:
    """What belongs to the step takes as long as on the slowest."""
    return {name: max(getattr(work, name) for work in step_end) for name in _ENDS}


def _slowest(replicas: Sequence[Replica]) -> Replica:
    """A replica that keeps step with all of these in every layer."""
    first = replicas[0]
    if len(replicas) == 1:
        return first
    longest = {
        field.name: np.max([getattr(replica.step_end, field.name) for replica in replicas], axis=0)
        for field in fields(StepEndWork)
        if field.name not in _WHOLE
    }
    passes = in_step_passes([replica.passes for replica in replicas])
    return replace(first, passes=passes, step_end=replace(first.step_end, **longest))


class _Whole:
    """Replicas of one layout as they would be if all of it were so; each is priced once."""

    def __init__(self, row: Layouts, workload: Workload, software: Software, replicas: int) -> None:
        self.given = row, workload, software, replicas
        self.known: dict[tuple[int, float, float, float | None], tuple[Cluster, Replica]] = {}

    def apart(self, deviation: Deviation, replica: Replica) -> tuple[Replica, ...]:
        """What a deviation describes; one for each kind of servers that it lies on."""
        links, load = (deviation.scale_up, deviation.scale_out), deviation.expert_load
        if links == (1.0, 1.0) and deviation.cluster is None and load is None:
            return (replica,)
        cluster = deviation.cluster or replica.priced.cluster
        return tuple(self.on(kind, *links, load) for kind in cluster.each)

    def on(
        self,
        cluster: Cluster,
        scale_up: float = 1.0,
        scale_out: float = 1.0,
        expert_load: float | None = None,
    ) -> Replica:
        """Price all of it on these servers."""
        key = (id(cluster), scale_up, scale_out, expert_load)
        if key not in self.known:
            row, workload, software, replicas = self.given
            if expert_load is not None:
                recipe = replace(workload.recipe, moe_imbalance=expert_load, moe_load=None)
                workload = replace(workload, recipe=recipe)
            worn = (scale_up, scale_out) != (1.0, 1.0)
            links = weakened(cluster, scale_up, scale_out) if worn else cluster
            priced = price(row, workload, links, software, every_rank=True)
            rows = select(row, priced, slice(0, 1))
            self.known[key] = cluster, replica_of(rows, priced, replicas)
        return self.known[key][1]


def _joined(replicas: list[Replica]) -> list[Replica]:
    """Collectives of all replicas take as long as on the slowest of them."""
    reduce_s = np.max([replica.step_end.reduce_s for replica in replicas], axis=0)
    gather_s = np.max([replica.step_end.gather_s for replica in replicas], axis=0)
    if int(replicas[0].rows.layouts.copies[0]) > 1:  # of the mirrored rank, too
        reduce_s = np.maximum(reduce_s, reduce_s[::-1, ::-1])
        gather_s = np.maximum(gather_s, gather_s[::-1, ::-1])
    exposed_reductions_s = np.max(
        [replica.step_end.exposed_reductions_s for replica in replicas], axis=0
    )
    ends = _longest([replica.step_end for replica in replicas])
    return [
        replace(
            replica,
            passes=after_every_pass(
                replica.passes, exposed_reductions_s - replica.step_end.exposed_reductions_s
            ),
            step_end=replace(
                replica.step_end,
                reduce_s=reduce_s,
                gather_s=gather_s,
                exposed_reductions_s=exposed_reductions_s,
                **ends,
            ),
        )
        for replica in replicas
    ]
