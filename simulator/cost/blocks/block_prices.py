"""Price the operators of every part of the model once per distinct layout key.

The result, `BlockCosts`, holds per key and part (block kinds, then embedding, then head) the
seconds of one micro-batch by term and direction, and the bytes it keeps. Exposed and
hidden communication are told apart here, by the window that each collective may hide in.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.blocks.block_costs import PASS_TERMS, BlockCosts
from simulator.cost.blocks.input_copies import input_s
from simulator.cost.blocks.launches import launches_s
from simulator.cost.blocks.products import Products, figures_for, per_key, product_type
from simulator.cost.blocks.tensor_overlap import held_units, hidden_s, moved_bytes, usable
from simulator.cost.collectives import calls as collectives
from simulator.cost.collectives.dispatch import dispatch_s
from simulator.cost.kernels.flash_attention import attention_figures, attention_s
from simulator.cost.kernels.memory_bound import stream_figures, stream_s
from simulator.cost.kernels.stragglers import slowest_of
from simulator.cost.operators.block_operators import model_parts
from simulator.cost.operators.context import attention_window_s
from simulator.cost.operators.operations import (
    Collective,
    Flash,
    Operators,
    Ranks,
    element_bytes,
    recomputes,
)
from simulator.cost.operators.recomputed import left_out
from simulator.cost.operators.selective import saved_by_mode, share_again, shorter, spared_s
from simulator.cost.operators.split_work import copies_over_tp
from simulator.hardware.cluster import Cluster
from simulator.layout.placement import Group
from simulator.software.profile import Software
from simulator.workload.recipe import Recipe, Workload

__all__ = ["block_costs"]


_COMPUTE = ("gemm", "attention", "memory_bound")

_TERM = {"etp": "tp", "experts": "ep", "cp_a2a": "cp", "cp_ring": "cp"}
"""Term of groups that have another name."""

_FLASH_FIELDS = tuple(field.name for field in fields(Flash))


def block_costs(
    workload: Workload, cluster: Cluster, software: Software, ranks: Ranks
) -> BlockCosts:
    """Price every part of the model for the distinct keys in `ranks`."""
    arch, recipe = workload.architecture, workload.recipe
    either = cluster.accelerator.fp8_either_layout
    parts = model_parts(workload, ranks, software.kernels, either_layout=either)
    pricer = _Pricer(cluster, software, recipe, ranks)
    gemms = Products(cluster.accelerator, software, recipe, ranks, pricer.overlap).times(parts)
    priced = [pricer.part(ops, times) for ops, times in zip(parts, gemms, strict=True)]
    stacked = {name: np.stack([p[name] for p in priced], axis=-1) for name in priced[0]}
    own = ranks.own_tokens(recipe) * arch.hidden * element_bytes(recipe)
    if arch.is_encoder_decoder:  # the encoder's output travels beside the decoder's stream
        length = recipe.sequence_length
        own = own * (1.0 + (recipe.decoder_length or length) / length)
    fetched = input_s(workload, cluster, software, ranks)
    return BlockCosts(boundary_bytes=own, input_s=fetched, **stacked)


class _Pricer:
    """The device, library and software that price operators; one use per evaluation."""

    def __init__(self, cluster: Cluster, software: Software, recipe: Recipe, ranks: Ranks) -> None:
        self.cluster, self.software, self.recipe, self.ranks = cluster, software, recipe, ranks
        self.device = cluster.accelerator
        self.size = element_bytes(recipe)
        self.keys = len(ranks.tp)
        self.overlap = usable(software.overlap, recipe.precision)
        self.units = float(self.device.compute_units)
        self.library_units = collectives.library_units(cluster)
        self.late, self.late_host = (
            float(kind.time_variation) * self._wide(slowest_of(ranks.world))
            for kind in (self.device, software.host)
        )

    def _wide(self, value: Any) -> Floats:
        return per_key(value, self.keys)

    def part(self, ops: Operators, gemm: dict[str, Floats]) -> dict[str, Floats]:
        """All costs of one part as arrays over the keys."""
        zero = np.zeros(self.keys)
        forward, backward, weight_gradients = self._compute(ops, gemm)
        alone_s = np.zeros((2, len(PASS_TERMS), self.keys))
        alone = forward | {}, backward | {}
        hidden, exchange, again_s = self._traffic(ops, gemm, forward, backward, beside=True)
        gaps = self._launch(ops, forward, backward)
        if self.software.overlap.expert and any(c.moe is not None for c in ops.collectives):
            self._traffic(ops, gemm, *alone, beside=False)
            self._launch(ops, *alone)
            for i, (apart, paired) in enumerate(zip(alone, (forward, backward), strict=True)):
                alone_s[i] = np.stack([apart[term] - paired[term] for term in PASS_TERMS])
        else:
            alone = forward, backward
        if not ops.has_backward:
            backward = dict.fromkeys(PASS_TERMS, zero)
            alone_s[1] = 0.0
        rest = left_out(ops, self.software.kernels, quantised=self.recipe.is_quantised)
        work_s, again_flop, flop = self._selective(ops, rest, gemm, forward)
        full_s = sum((alone[0][term] for term in PASS_TERMS), zero) if ops.is_block else zero
        hides = not self.software.host.waits_for_kernels
        unspent_s, gap = shorter(self._forward_s(rest, gemm), gaps[0], hides=hides)
        full_s = full_s - unspent_s
        if any(s.stashes is not None for s in ops.streams) and ops.is_block:
            # what is recomputed is neither encoded, in either forward pass, nor decoded
            modules = self.software.kernels.selective_modules
            work_s = work_s - sum(spared_s(ops, self._stream, gaps, modules, hides=hides))
            left = (gap, gaps[1])
            encode_s, decode_s = spared_s(ops, self._stream, left, None, hides=hides)
            full_s = full_s - 2.0 * encode_s - decode_s
        saved = saved_by_mode(ops, self.software.kernels, self.keys)
        return {
            "forward_s": np.stack([forward[term] for term in PASS_TERMS]),
            "backward_s": np.stack([backward[term] for term in PASS_TERMS]),
            "wgrad_s": weight_gradients,
            "recompute_s": np.stack([zero, work_s * (1.0 + self.late) + again_s, full_s]),
            "hidden_s": np.array([list(way.values()) for way in hidden]),
            "alone_s": alone_s,
            "exchange_s": np.stack(exchange),
            "saved_bytes": saved,
            "rebuilt_bytes": np.maximum(saved[0] - saved, 0.0),
            "transient_bytes": self._wide(ops.transient_bytes),
            "passing_bytes": self._wide(ops.passing_bytes),
            "full_flop": flop - sum((g.flop for g in rest.gemms), zero),
            "selective_flop": again_flop,
        }

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
            moved_s = self._stream(s.kind, s.forward_bytes, s.calls)
            forward["memory_bound"] = forward["memory_bound"] + moved_s
            moved_s = self._stream(s.kind, s.backward_bytes, s.calls_back)
            backward["memory_bound"] = backward["memory_bound"] + moved_s
        for way in (forward, backward):
            way["stragglers"] = self.late * sum((way[term] for term in _COMPUTE), zero)
        return forward, backward, weight_gradients

    def _forward_s(self, ops: Operators, gemm: dict[str, Floats]) -> Floats:
        """Seconds of a forward pass through some operators of a part, host and attention apart."""
        busy = [gemm[f"{g.name}:forward"] for g in ops.gemms]
        busy += [self._stream(s.kind, s.forward_bytes, s.calls) for s in ops.streams]
        terms, hidden = (dict.fromkeys(PASS_TERMS, np.zeros(self.keys)) for _ in range(2))
        for c in ops.collectives:
            self._collective(c, gemm, terms, hidden, None)
        return np.asarray((1.0 + self.late) * sum(busy) + sum(terms.values()))

    def _traffic(
        self,
        ops: Operators,
        gemm: dict[str, Floats],
        forward: dict[str, Floats],
        backward: dict[str, Floats],
        *,
        beside: bool,
    ) -> tuple[tuple[dict[str, Floats], ...], list[Floats], Floats]:
        """Add all collectives; `beside` another micro-batch that may hide expert traffic.

        Returns what is hidden either way, the rows of `exchange_s`, and what selective
        recomputation shows of its repeated collectives: expert traffic in full, for no other
        micro-batch waits for it.
        """
        zero = np.zeros(self.keys)
        hidden, exchange, again_s = (
            dict.fromkeys(("tp", "cp", "ep"), zero),
            [zero, zero, zero],
            zero,
        )
        behind = (hidden | {}, hidden | {})
        compute_s = sum((way[term] for way in (forward, backward) for term in _COMPUTE), zero)
        offered = compute_s if beside and self.software.overlap.expert else None
        modules = self.software.kernels.selective_modules if ops.is_block else ()
        for c in ops.collectives:
            terms = backward if c.backward else forward
            seconds, covered = self._collective(c, gemm, terms, hidden, offered)
            way, term = behind[int(c.backward)], _TERM.get(c.group, c.group)
            way[term] = way[term] + covered
            repeats = not c.backward and recomputes(c.module, modules)
            if term in ("cp", "ep"):
                exchange[int(c.backward)] = exchange[int(c.backward)] + seconds
                exchange[2] = exchange[2] + repeats * seconds
                again_s = again_s + repeats * seconds
            else:
                again_s = again_s + repeats * (seconds - covered)
        return behind, exchange, again_s

    def _flash(self, ops: Operators) -> tuple[Floats, Floats]:
        forward, backward = np.zeros(self.keys), np.zeros(self.keys)
        if not ops.flash:
            return forward, backward
        library = figures_for(
            self.device.attention,
            self.software.kernels.attention_library,
            "attention library",
            "flash",
        )
        rates = attention_figures(self.device, library, product_type(self.recipe, "attention"))
        for call in ops.flash:
            size = {name: getattr(call, name) for name in _FLASH_FIELDS}
            calls = size.pop("calls")
            forward = forward + calls * attention_s(**size, **rates)
            backward = backward + calls * attention_s(**size, **rates, backward=True)
        return forward, backward

    def _stream(self, kind: str, moved: Any, calls: Any) -> Floats:
        name = figures_for(self.device.stream, kind, "stream class", "elementwise")
        figures = stream_figures(self.device, name)
        return self._wide(stream_s(moved_bytes=moved, calls=calls, **figures))

    def _collective(
        self,
        c: Collective,
        gemm: dict[str, Floats],
        terms: dict[str, Floats],
        hidden: dict[str, Floats],
        compute_s: Floats | None,
    ) -> tuple[Floats, Floats]:
        """Add one collective: exposed time, hidden time, and what hiding it costs the compute.

        `compute_s` is the part's compute in both directions, what another micro-batch offers its
        expert traffic, if there is one. Returns the collective's seconds, and the hidden of them.
        """
        group, cluster = getattr(self.ranks.groups, c.group), self.cluster.links_of(c.group)
        bytes_ = self._wide(c.size_bytes)
        if c.operation in ("ring", "send"):
            steps = np.maximum(group.size - 1, 1) if c.operation == "ring" else 1
            crosses = group.local < group.size
            seconds = steps * collectives.send_s(cluster, bytes_ / steps, crosses)
            seconds = np.where(group.size > 1, seconds, 0.0)
        elif c.operation in ("dispatch", "combine"):
            assert c.moe is not None
            seconds = dispatch_s(
                cluster,
                bytes_,
                c.moe.top_k,
                group,
                experts=c.moe.experts,
                groups=c.moe.groups,
                top_groups=c.moe.top_groups,
                load=c.load,
                way=c.operation,
                library=self.software.kernels.expert_library,
                row_bytes=c.row_bytes,
            )
        else:
            function = {
                "all_gather": collectives.all_gather_s,
                "reduce_scatter": collectives.reduce_scatter_s,
                "all_reduce": collectives.all_reduce_s,
                "all_to_all": collectives.all_to_all_s,
            }[c.operation]
            seconds = function(cluster, bytes_, group)
        seconds = np.where(bytes_ > 0, seconds, 0.0)
        term = _TERM.get(c.group, c.group)
        if c.group == "tp":
            covered = self._beside_product(c, seconds, bytes_, group, gemm, terms)
        else:
            window = attention_window_s(c, self.overlap, group.size, terms["attention"])
            if term == "ep" and compute_s is not None:
                window = np.maximum(compute_s - hidden["ep"], 0.0)
            covered = np.minimum(seconds, window)
        if copies := copies_over_tp(c, self.software.kernels):
            copied = np.where(group.size > 1, copies * bytes_, 0.0)
            terms["memory_bound"] = terms["memory_bound"] + self._stream("copy", copied, 0.0)
        terms[term] = terms[term] + seconds - covered
        share = held_units(c, self.overlap, self.library_units, group) / self.units
        terms["slowdown"] = terms["slowdown"] + covered * share
        hidden[term] = hidden[term] + covered
        return seconds, covered

    def _beside_product(
        self,
        c: Collective,
        seconds: Floats,
        bytes_: Floats,
        group: Group,
        gemm: dict[str, Floats],
        terms: dict[str, Floats],
    ) -> Floats:
        """Seconds of a collective over tp that its product hides; adds what it copies and sums."""
        overlap, quantised = self.overlap, self.recipe.is_quantised
        moved = moved_bytes(c, overlap, bytes_, group, quantised=quantised)
        if moved.any():
            kind = "copy" if c.operation == "all_gather" else "elementwise"
            terms["memory_bound"] = terms["memory_bound"] + self._stream(kind, moved, moved > 0.0)
        trained = not c.window.endswith(":wgrad")  # a frozen linear has no such product
        product_s = gemm[c.window] if c.window and trained else gemm.get(c.window, 0.0 * seconds)
        return hidden_s(c, overlap, seconds, product_s, group, quantised=quantised)

    def _launch(
        self, ops: Operators, forward: dict[str, Floats], backward: dict[str, Floats]
    ) -> tuple[Floats, Floats]:
        """A block takes no less than the host needs to enqueue its kernels.

        Returns what the host takes longer than the device in either pass; below zero: less.
        """
        quantised = self.recipe.is_quantised
        whole_s = launches_s(self.software, ops, self.ranks, quantised=quantised)
        hides = 0.0 if self.software.host.waits_for_kernels else 1.0
        gaps = []
        for terms, seconds in zip((forward, backward), whole_s, strict=True):
            busy = sum((terms[term] for term in PASS_TERMS), np.zeros(self.keys))
            gaps.append(self._wide(seconds * (1.0 + self.late_host) - hides * busy))
            terms["launch"] = np.maximum(gaps[-1], 0.0)
        return gaps[0], gaps[1]

    def _selective(
        self, ops: Operators, rest: Operators, gemm: dict[str, Floats], forward: dict[str, Floats]
    ) -> tuple[Floats, Floats, Floats]:
        """Seconds and FLOPs of what selective recomputation runs again, and all forward FLOPs.

        `rest` is what comes after the last tensor that it has to rebuild.
        """
        modules = self.software.kernels.selective_modules if ops.is_block else ()
        again_s, again_flop, flop = np.zeros(self.keys), np.zeros(self.keys), np.zeros(self.keys)
        for g in ops.gemms:
            share, work = share_again(g, ops, modules), g.flop
            flop = flop + work
            again_s = again_s + share * gemm[f"{g.name}:forward"]
            again_flop = again_flop + share * work
        for call in ops.flash:
            flop = flop + call.flop
        if "core_attn" in modules and ops.flash:
            again_s = again_s + forward["attention"]
            again_flop = again_flop + sum(call.flop for call in ops.flash)
        for s in ops.streams:
            again = recomputes(s.module, modules) or "half_matmul" in modules
            unread = s.rerun or any(s is left for left in rest.streams)
            if again and s.stashes is None and not unread:
                again_s = again_s + self._stream(s.kind, s.forward_bytes, s.calls)
        return again_s, again_flop, flop
