"""Price the operators of every part of the model once per distinct layout key.

The result, `BlockCosts`, holds per key and part (block kinds, then embedding, then head) the
seconds of one micro-batch by term and direction, and the bytes it keeps. Exposed and
hidden communication are told apart here, by the window that each collective may hide in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.blocks.block_costs import PASS_TERMS, BlockCosts, slowest_of
from simulator.cost.blocks.launches import input_s, launches_s, posted_by_host, replays_s
from simulator.cost.blocks.products import Products, figures_for, per_key, product_type
from simulator.cost.blocks.tensor_overlap import held_units, hidden_s, moved_bytes, usable
from simulator.cost.collectives import calls as collectives
from simulator.cost.collectives.dispatch import dispatch_s
from simulator.cost.kernels.flash_attention import attention_s
from simulator.cost.kernels.gemm import device_rates
from simulator.cost.kernels.memory_bound import stream_figures, stream_s
from simulator.cost.operators.block_operators import model_parts
from simulator.cost.operators.context import attention_window_s
from simulator.cost.operators.operations import (
    Collective,
    Flash,
    Operators,
    Ranks,
    Stream,
    element_bytes,
    recomputes,
)
from simulator.cost.operators.selective import (
    left_out,
    saved_by_mode,
    share_again,
    shorter,
    spared_s,
)
from simulator.cost.operators.split_work import copies_over_tp
from simulator.cost.states.state_bytes import kernels_of
from simulator.hardware.cluster import Cluster
from simulator.layout.placement import Group
from simulator.records import dataclass
from simulator.software.kernels import Kernels
from simulator.software.profile import Software
from simulator.workload.recipe import Recipe, Workload

_COMPUTE = ("gemm", "attention", "memory_bound")

_TERM = {"etp": "tp", "experts": "ep", "cp_a2a": "cp", "cp_ring": "cp"}
"""Term of groups that have another name."""

_FLASH_FIELDS = tuple(field.name for field in fields(Flash))


def block_costs(
    workload: Workload, cluster: Cluster, software: Software, ranks: Ranks
) -> BlockCosts:
    """Price every part of the model for the distinct keys in `ranks`."""
    return block_costs_of_each(workload, cluster, software, ranks, [software.kernels])[0]


def block_costs_of_each(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    ranks: Ranks,
    kernel_sets: list[Kernels],
) -> list[BlockCosts]:
    """The same with each of some kernels that differ in what selective recomputation names."""
    arch, recipe = workload.architecture, workload.recipe
    either = cluster.accelerator.fp8_either_layout
    software = software.on(cluster.accelerator.generation)
    parts = model_parts(workload, ranks, kernels_of(software, recipe), either_layout=either)
    pricer = _Pricer(cluster, software, recipe, ranks)
    gemms = Products(cluster.accelerator, software, recipe, ranks, pricer.overlap).times(parts)
    if pricer.slower != 1.0:
        gemms = [{name: pricer.slower * s for name, s in times.items()} for times in gemms]
    priced = [pricer.part(ops, times, kernel_sets) for ops, times in zip(parts, gemms, strict=True)]
    boundary_bytes = ranks.own_tokens(recipe) * arch.hidden * element_bytes(recipe)
    if arch.is_encoder_decoder:  # the encoder's output travels beside the decoder's stream
        length = recipe.sequence_length
        boundary_bytes = boundary_bytes * (1.0 + (recipe.decoder_length or length) / length)
    fetched = input_s(workload, cluster, software, ranks)
    costs = []
    for of_parts in zip(*priced, strict=True):
        by_part = {name: np.array([p[name] for p in of_parts]) for name in of_parts[0]}
        parts_last = {name: x.transpose(*range(1, x.ndim), 0).copy() for name, x in by_part.items()}
        costs.append(BlockCosts(boundary_bytes=boundary_bytes, input_s=fetched, **parts_last))
    return costs


_BothWays = tuple[dict[str, Floats], dict[str, Floats]]
"""Seconds by term, forward and backward."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A collective of the forward pass."""

    module: str
    seconds: Floats
    hidden_s: Floats
    moves_tokens: bool
    """Context or expert traffic, which selective recomputation shows in full when it repeats it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _CallCost:
    """What a collective adds to the terms of a pass."""

    term: str
    seconds: Floats
    hidden_s: Floats
    moved_s: tuple[Floats, ...]
    """Copies and sums around it."""
    slowdown_s: Floats
    """What hiding it costs the compute."""

    def added_to(self, terms: dict[str, Floats]) -> dict[str, Floats]:
        """The terms with this call."""
        memory_bound = terms["memory_bound"]
        for moved_s in self.moved_s:
            memory_bound = memory_bound + moved_s
        return terms | {
            "memory_bound": memory_bound,
            self.term: terms[self.term] + self.seconds - self.hidden_s,
            "slowdown": terms["slowdown"] + self.slowdown_s,
        }


def _repeated(
    ops: Operators, calls: list[_Call], kernels: Kernels, zero: Floats
) -> tuple[Floats, Floats]:
    """What selective recomputation shows of the collectives that it repeats, and their traffic.

    Expert traffic shows in full, for no other micro-batch waits for it; of the rest what is not
    hidden. The second is what of it is context and expert traffic.
    """
    modules = kernels.selective_modules if ops.is_block else ()
    again_s = traffic_s = zero
    for call in calls:
        repeats = recomputes(call.module, modules)
        if call.moves_tokens:
            traffic_s = traffic_s + repeats * call.seconds
            again_s = again_s + repeats * call.seconds
        else:
            again_s = again_s + repeats * (call.seconds - call.hidden_s)
    return again_s, traffic_s


def _has_stashes(ops: Operators) -> bool:
    return ops.is_block and any(s.stashes is not None for s in ops.streams)


class _Pricer:
    """The device, library and software that price operators; one use per evaluation."""

    def __init__(self, cluster: Cluster, software: Software, recipe: Recipe, ranks: Ranks) -> None:
        self.cluster, self.software, self.recipe, self.ranks = cluster, software, recipe, ranks
        self.device = cluster.accelerator
        self.size = element_bytes(recipe)
        self.keys = len(ranks.tp)
        self.overlap = usable(software.overlap, recipe.precision)
        self.units = float(self.device.compute_units)
        tuned = software.is_tuned_by(self.device.vendor)
        self.slower = 1.0 if tuned else 1.0 / float(self.device.untuned_fraction)
        self.library_units = collectives.library_units(cluster)
        hybrid = software.kernels.expert_library == "hybridep"
        named = software.overlap.hybridep_units if hybrid else software.overlap.deepep_units
        # that the recipe gives what takes tokens to experts
        self.given_units = float(named) or None
        self.exchange_units = self.given_units or self.library_units
        slowest = self._wide(slowest_of(ranks.world))
        self.late = float(self.device.time_variation) * slowest
        late_host = float(software.host.time_variation) * slowest
        self.slower_host = float(cluster.node.host_time) * (1.0 + late_host)
        self._figures: dict[str, Mapping[str, Any]] = {}
        self._forward: dict[int, tuple[Stream, Floats]] = {}

    def _wide(self, value: Any) -> Floats:
        return per_key(value, self.keys)

    def part(
        self, ops: Operators, gemm: dict[str, Floats], kernel_sets: list[Kernels]
    ) -> list[dict[str, Floats]]:
        """All costs of one part as arrays over the keys, with each of some kernels."""
        zero = np.zeros(self.keys)
        forward, backward, weight_gradients = self._compute(ops, gemm)
        alone_s = np.zeros((2, len(PASS_TERMS), self.keys))
        alone = computed = forward, backward
        paired_terms, hidden, exchange, calls = self._traffic(ops, gemm, computed, beside=True)
        as_one = self.software.overlap.expert and any(c.moe is not None for c in ops.collectives)
        (forward, backward), gaps = self._launch(ops, paired_terms, paired=as_one)
        if as_one:
            alone, *_ = self._traffic(ops, gemm, computed, beside=False)
            alone, _ = self._launch(ops, alone)
            for i, (apart, paired) in enumerate(zip(alone, (forward, backward), strict=True)):
                alone_s[i] = [apart[term] - paired[term] for term in PASS_TERMS]
        else:
            alone = forward, backward
        if not ops.has_backward:
            backward = dict.fromkeys(PASS_TERMS, zero)
            alone_s[1] = 0.0
        rest = left_out(ops, self.software.kernels, quantised=self.recipe.is_quantised)
        whole_s = sum((alone[0][term] for term in PASS_TERMS), zero) if ops.is_block else zero
        full_s = self._full_s(ops, rest, gemm, whole_s, gaps)
        flop = sum((g.flop for g in ops.gemms), zero)
        flop = sum((call.flop for call in ops.flash), flop)
        shared = {
            "forward_s": np.array([forward[term] for term in PASS_TERMS]),
            "backward_s": np.array([backward[term] for term in PASS_TERMS]),
            "wgrad_s": weight_gradients,
            "hidden_s": np.array([list(way.values()) for way in hidden]),
            "alone_s": alone_s,
            "transient_bytes": self._wide(ops.transient_bytes),
            "passing_bytes": self._wide(ops.passing_bytes),
            "full_flop": flop - sum((g.flop for g in rest.gemms), zero),
        }
        return [
            shared
            | self._named(
                ops,
                rest,
                gemm,
                kernels,
                calls=calls,
                forward=forward,
                gaps=gaps,
                full_s=full_s,
                exchange=exchange,
            )
            for kernels in kernel_sets
        ]

    def _full_s(
        self,
        ops: Operators,
        rest: Operators,
        gemm: dict[str, Floats],
        whole_s: Floats,
        gaps: tuple[Floats, Floats],
    ) -> Floats:
        """Seconds of full recomputation: a forward pass, `whole_s`, without the rest behind it."""
        hides = not self.software.host.waits_for_kernels
        unspent_s, gap = shorter(self._forward_s(rest, gemm), gaps[0], hides=hides)
        full_s = whole_s - unspent_s
        if _has_stashes(ops):  # what is recomputed is neither encoded, in either pass, nor decoded
            spared, _ = spared_s(ops, self._stream, (gap, gaps[1]), None, hides=hides)
            encode_s, decode_s = spared
            full_s = full_s - 2.0 * encode_s - decode_s
        return full_s

    def _named(
        self,
        ops: Operators,
        rest: Operators,
        gemm: dict[str, Floats],
        kernels: Kernels,
        *,
        calls: list[_Call],
        forward: dict[str, Floats],
        gaps: tuple[Floats, Floats],
        full_s: Floats,
        exchange: list[Floats],
    ) -> dict[str, Floats]:
        """Costs of a part that hang on what selective recomputation names."""
        zero = np.zeros(self.keys)
        work_s, again_flop = self._selective(ops, rest, gemm, forward, kernels)
        again_s, repeated_s = _repeated(ops, calls, kernels, zero)
        spared: tuple[Floats, Floats] = (zero, zero)
        if _has_stashes(ops):
            hides = not self.software.host.waits_for_kernels
            modules = kernels.selective_modules
            spared, gaps = spared_s(ops, self._stream, gaps, modules, hides=hides)
        saved = saved_by_mode(ops, kernels, self.keys)
        work_s = work_s * (1.0 + self.late) + again_s
        longer_s = self._replays(ops, kernels, work_s, gaps)
        selective_s = work_s + longer_s - sum(spared) * (1.0 + self.late)
        return {
            "recompute_s": np.array([zero, selective_s, full_s]),
            "exchange_s": np.array([*exchange, repeated_s]),
            "saved_bytes": saved,
            "rebuilt_bytes": np.maximum(saved[0] - saved, 0.0),
            "selective_flop": again_flop,
        }

    def _replays(
        self, ops: Operators, kernels: Kernels, device_s: Floats, gaps: tuple[Floats, Floats]
    ) -> Floats:
        """Seconds that the host makes selective recomputation longer than the device's `device_s`.

        Where the device waits for the host, its work hides there, and the host's does not.
        """
        modules = kernels.selective_modules if ops.is_block else ()
        forward_s, backward_s = replays_s(self.software, ops, self.ranks, self.recipe, modules)
        if not np.any(backward_s):
            return np.zeros(self.keys)
        hides = 0.0 if self.software.host.waits_for_kernels else 1.0
        longer_s = np.zeros(self.keys)
        for gap, host_s, work_s in ((gaps[0], forward_s, 0.0), (gaps[1], backward_s, device_s)):
            left = gap + host_s * self.slower_host - hides * work_s
            longer_s = longer_s + np.maximum(left, 0.0) - np.maximum(gap, 0.0)
        return longer_s

    def _compute(
        self, ops: Operators, gemm: dict[str, Floats]
    ) -> tuple[dict[str, Floats], dict[str, Floats], Floats]:
        """Seconds by term of what a part computes in either pass, and of its weight gradients."""
        zero = np.zeros(self.keys)
        forward, backward = (dict.fromkeys(PASS_TERMS, zero) for _ in range(2))
        weight_gradients = zero
        for g in ops.gemms:
            forward["gemm"] = forward["gemm"] + gemm[f"{g.name}:forward"]
            wgrad = gemm.get(f"{g.name}:wgrad", zero)
            backward["gemm"] = backward["gemm"] + gemm[f"{g.name}:dgrad"] + wgrad
            if g.kind != "attention":
                weight_gradients = weight_gradients + wgrad
        forward["attention"], backward["attention"] = self._flash(ops)
        for s in ops.streams:
            forward["memory_bound"] = forward["memory_bound"] + self._stream_forward(s)
            moved_s = self._stream(s.kind, s.backward_bytes, s.calls_back)
            backward["memory_bound"] = backward["memory_bound"] + moved_s
        for way in (forward, backward):
            way["stragglers"] = self.late * sum((way[term] for term in _COMPUTE), zero)
        return forward, backward, weight_gradients

    def _forward_s(self, ops: Operators, gemm: dict[str, Floats]) -> Floats:
        """Seconds of a forward pass through some operators of a part, host and attention apart."""
        busy = [gemm[f"{g.name}:forward"] for g in ops.gemms]
        busy += map(self._stream_forward, ops.streams)
        terms = dict.fromkeys(PASS_TERMS, np.zeros(self.keys))
        for c in filter(self._is_run, ops.collectives):
            terms = self._collective(c, gemm, terms["attention"], None).added_to(terms)
        return np.asarray((1.0 + self.late) * sum(busy) + sum(terms.values()))

    def _traffic(
        self,
        ops: Operators,
        gemm: dict[str, Floats],
        computed: _BothWays,
        *,
        beside: bool,
    ) -> tuple[_BothWays, _BothWays, list[Floats], list[_Call]]:
        """Terms with all collectives; `beside` another micro-batch that may hide expert traffic.

        Also what is hidden either way, the rows of `exchange_s` forward and backward, and the calls
        of the forward pass.
        """
        zero, terms = np.zeros(self.keys), list(computed)
        hidden = [dict.fromkeys(("tp", "cp", "ep"), zero) for _ in terms]
        exchange, experts_hidden_s, calls = [zero, zero], zero, list[_Call]()
        compute_s = sum((way[term] for way in computed for term in _COMPUTE), zero)
        offers = beside and self.software.overlap.expert
        for c in filter(self._is_run, ops.collectives):
            back = int(c.backward)
            offered_s = np.maximum(compute_s - experts_hidden_s, 0.0) if offers else None
            cost = self._collective(c, gemm, terms[back]["attention"], offered_s)
            terms[back] = cost.added_to(terms[back])
            hidden[back][cost.term] = hidden[back][cost.term] + cost.hidden_s
            if cost.term == "ep":
                experts_hidden_s = experts_hidden_s + cost.hidden_s
            moves = cost.term in ("cp", "ep")
            if moves:
                exchange[back] = exchange[back] + cost.seconds
            if not c.backward:
                calls.append(_Call(c.module, cost.seconds, cost.hidden_s, moves))
        return (terms[0], terms[1]), (hidden[0], hidden[1]), exchange, calls

    def _flash(self, ops: Operators) -> tuple[Floats, Floats]:
        forward, backward = np.zeros(self.keys), np.zeros(self.keys)
        if not ops.flash:
            return forward, backward
        dtype, kernels = product_type(self.recipe, "attention"), self.software.kernels
        for call in ops.flash:
            wanted = kernels.attention_library_for(call.score_size, call.value_size)
            table, what = self.device.attention, "attention library"
            library = figures_for(self.device, table, wanted, what, "flash")
            precision = self.recipe.precision
            if precision in kernels.transformer_engine.quantised_attention:
                library = figures_for(self.device, table, f"{library}_{precision}", what)
                dtype = precision
            rates, kernel = device_rates(self.device, dtype), table[library]
            size = {name: getattr(call, name) for name in _FLASH_FIELDS}
            calls = size.pop("calls")
            if library != "sdpa":  # torch's own is as it was timed, whoever tunes the rest
                calls = calls * self.slower
            forward = forward + calls * attention_s(rates, kernel, **size)
            backward = backward + calls * attention_s(rates, kernel, **size, backward=True)
        return forward, backward

    def _stream(self, kind: str, moved: Any, calls: Any) -> Floats:
        if (figures := self._figures.get(kind)) is None:
            name = figures_for(self.device, self.device.stream, kind, "stream class", "elementwise")
            figures = self._figures[kind] = stream_figures(self.device, name)
        return self._wide(stream_s(moved_bytes=moved, calls=calls, **figures))

    def _stream_forward(self, stream: Stream) -> Floats:
        """Seconds of a stream's forward pass, asked for again by whatever runs it again."""
        if (known := self._forward.get(id(stream))) is None:
            seconds = self._stream(stream.kind, stream.forward_bytes, stream.calls)
            known = self._forward[id(stream)] = stream, seconds
        return known[1]

    def _is_run(self, c: Collective) -> bool:
        """Whether any layout has more than one rank in a collective's group."""
        several = getattr(self.ranks.groups, c.group).size > 1
        return c.moe is not None or bool(np.count_nonzero(several))

    def _collective(
        self,
        c: Collective,
        gemm: dict[str, Floats],
        core_attention_s: Floats,
        offered_s: Floats | None,
    ) -> _CallCost:
        """Price one collective: its time, what of it is hidden, and what that costs the compute.

        `core_attention_s` is the attention of its pass, `offered_s` what of the compute of another
        micro-batch is left to hide expert traffic behind, if there is one.
        """
        group, cluster = getattr(self.ranks.groups, c.group), self.cluster.links_of(c.group)
        bytes_ = self._wide(c.size_bytes)
        if c.operation in ("ring", "send"):
            steps = np.maximum(group.size - 1, 1) if c.operation == "ring" else 1
            crosses = group.local < group.size
            seconds = steps * collectives.send_s(cluster, bytes_ / steps, crosses)
            seconds = np.where(group.size > 1, seconds, 0.0)
        elif c.operation in ("dispatch", "combine"):
            seconds = self._exchange(c, bytes_, group)
        else:
            function = {
                "all_gather": collectives.all_gather_s,
                "reduce_scatter": collectives.reduce_scatter_s,
                "all_reduce": collectives.all_reduce_s,
                "all_to_all": collectives.all_to_all_s,
            }[c.operation]
            seconds = function(cluster, bytes_, group)
        seconds = np.where(bytes_ > 0, seconds, 0.0)
        term, moved_s = _TERM.get(c.group, c.group), list[Floats]()
        if c.group == "tp":
            covered, moved_s = self._beside_product(c, seconds, bytes_, group, gemm)
        else:
            window = attention_window_s(c, self.overlap, group.size, core_attention_s)
            if term == "ep" and offered_s is not None:
                window = offered_s
            covered = np.minimum(seconds, window)
        if copies := copies_over_tp(c, self.software.kernels):
            copied = np.where(group.size > 1, copies * bytes_, 0.0)
            moved_s = [*moved_s, self._stream("copy", copied, 0.0)]
        usual: Any = self.exchange_units if c.moe is not None else self.library_units
        if c.operation in ("ring", "send"):
            usual = collectives.send_units(cluster, group.local < group.size)
        share = held_units(c, self.overlap, usual, group) / self.units
        return _CallCost(
            term=term,
            seconds=seconds,
            hidden_s=covered,
            moved_s=tuple(moved_s),
            slowdown_s=covered * share,
        )

    def _exchange(self, c: Collective, bytes_: Floats, group: Group) -> Floats:
        """Seconds of a dispatch to experts or of a combine."""
        assert c.moe is not None
        return dispatch_s(
            self.cluster.links_of(c.group),
            bytes_,
            c.moe.top_k,
            group,
            experts=c.moe.experts,
            groups=c.moe.groups,
            top_groups=c.moe.top_groups,
            load=c.load,
            in_turn=self.software.kernels.in_turn(self.recipe.moe_routing),
            way=c.operation,
            library=self.software.kernels.expert_library,
            row_bytes=c.row_bytes,
            units=self.given_units,
        )

    def _beside_product(
        self,
        c: Collective,
        seconds: Floats,
        bytes_: Floats,
        group: Group,
        gemm: dict[str, Floats],
    ) -> tuple[Floats, list[Floats]]:
        """Seconds of a collective over tp that its product hides, and of its copies and sums."""
        overlap, quantised, moved_s = self.overlap, self.recipe.is_quantised, list[Floats]()
        moved = moved_bytes(c, overlap, bytes_, group, quantised=quantised)
        if np.count_nonzero(moved):
            kind = "copy" if c.operation == "all_gather" else "elementwise"
            moved_s = [self._stream(kind, moved, moved > 0.0)]
        trained = not c.window.endswith(":wgrad")  # a frozen linear has no such product
        product_s = gemm[c.window] if c.window and trained else gemm.get(c.window, 0.0 * seconds)
        covered = hidden_s(c, overlap, seconds, product_s, group, quantised=quantised)
        return covered, moved_s

    def _launch(
        self, ops: Operators, terms: _BothWays, *, paired: bool = False
    ) -> tuple[_BothWays, tuple[Floats, Floats]]:
        """A block takes no less than the host needs to enqueue its kernels.

        `paired`: the forward pass of a micro-batch and the backward pass of another run as one.

        Returns the terms with that, and what the host takes longer than the device in either pass;
        below zero: less.
        """
        whole_s = launches_s(self.software, ops, self.ranks, self.recipe)
        hides = 0.0 if self.software.host.waits_for_kernels else 1.0
        host_s = [self._wide(seconds * self.slower_host) for seconds in whole_s]
        busy_s = [sum(map(way.__getitem__, PASS_TERMS), np.zeros(self.keys)) for way in terms]
        if not paired and self.cluster.node.scale_out.through_host:
            posted = posted_by_host(self.ranks)
            busy_s = [busy - posted * way["ep"] for busy, way in zip(busy_s, terms, strict=True)]
        gaps = [late - hides * busy for late, busy in zip(host_s, busy_s, strict=True)]
        waits_s = [np.maximum(gap, 0.0) for gap in gaps]
        if paired:  # both passes are enqueued as one piece of work, where they have traffic to hide
            both_s = np.maximum(gaps[0] + gaps[1], 0.0)
            share = both_s / np.maximum(waits_s[0] + waits_s[1], 1e-30)
            waits_s = [np.where(self.ranks.ep > 1, wait * share, wait) for wait in waits_s]
        launched = [way | {"launch": wait} for way, wait in zip(terms, waits_s, strict=True)]
        return (launched[0], launched[1]), (gaps[0], gaps[1])

    def _selective(
        self,
        ops: Operators,
        rest: Operators,
        gemm: dict[str, Floats],
        forward: dict[str, Floats],
        kernels: Kernels,
    ) -> tuple[Floats, Floats]:
        """Seconds and FLOPs of what selective recomputation runs again.

        `rest` is what comes after the last tensor that it has to rebuild.
        """
        modules = kernels.selective_modules if ops.is_block else ()
        again_s, again_flop = np.zeros(self.keys), np.zeros(self.keys)
        for g in ops.gemms:
            read = not any(g is left for left in rest.gemms)
            share, work = read * share_again(g, ops, modules), g.flop
            again_s = again_s + share * gemm[f"{g.name}:forward"]
            again_flop = again_flop + share * work
        if "core_attn" in modules and ops.flash:
            again_s = again_s + forward["attention"]
            again_flop = again_flop + sum(call.flop for call in ops.flash)
        for s in ops.streams:
            again = recomputes(s.module, modules) or "half_matmul" in modules
            unread = s.rerun or any(s is left for left in rest.streams)
            if again and s.stashes is None and not unread:
                again_s = again_s + self._stream_forward(s)
        return again_s, again_flop
