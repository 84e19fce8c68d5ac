"""Checkpoints of a layout's run: bytes by what they hold and how, seconds, how many stay."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np

from simulator.answers import Encoded
from simulator.cost.states.state_bytes import SavedBytes, saved_bytes
from simulator.cost.step import Estimate
from simulator.records import dataclass
from simulator.reliability.run_outlook import Outlook, stated_interval
from simulator.reliability.run_terms import read_seconds, run_terms, write_seconds
from simulator.scenario import Scenario
from simulator.search.with_failures import machine_of
from simulator.units import show_bytes, show_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFile(Encoded):
    """A checkpoint of some content in some format, on the storage of the run."""

    holds: Literal["states", "weights", "adapters"]
    """states: weights, fp32 weights and moments."""
    format: Literal["sharded", "consolidated", "safetensors"]
    """sharded: every rank writes what it alone keeps. consolidated: one rank gathers all and
    writes it. safetensors: the same, in the type of the products, as Hugging Face loads it."""
    bytes: float
    servers: int
    """That write at once."""
    write_s: float
    """On the storage; without the gathering."""
    read_s: float
    """Sharded: all servers read. Otherwise one reads, and sends to the others."""
    fits_host: bool | None
    """Whether a server's memory holds it where one gathers all; None where that is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint(Encoded):
    """What a run writes to go on from, how often, and what of it stays."""

    mode: Literal["sync", "async", "memory"]
    bytes: float
    bytes_per_gpu: float
    """Of each that writes."""
    write_s: float
    read_s: float
    stall_s: float
    """What training waits at each."""
    stall_share: float | None
    """The same over the training time between two."""
    every_s: float | None
    """Ideal training time between two; None where nothing is said to fail (``--ideal``)."""
    every_steps: float | None
    asked_s: float | None
    """Training time between two that the run asks for, where writing takes longer than that."""
    written: int | None
    """Over the run; None where its length is not known."""
    kept: int | None
    """Of them, at the end."""
    kept_bytes: float | None
    files: tuple[CheckpointFile, ...]
    """What else can be written: by content and format."""

    def sentence(self) -> str:
        """Size, interval, seconds and what stays, in a line or two."""
        words = [
            f"a checkpoint is {show_bytes(self.bytes)} ({show_bytes(self.bytes_per_gpu)} a GPU that"
            " writes)"
        ]
        if self.every_s is not None and self.every_steps is not None:
            steps = f"{self.every_steps:,.0f} step{'s' * (round(self.every_steps) != 1)}"
            words.append(f"every {show_seconds(self.every_s)} of training ({steps})")
            if self.asked_s is not None:
                soonest = math.ceil(self.every_steps - 1e-9)
                words.append(
                    f"for writes take longer than the {show_seconds(self.asked_s)} asked for:"
                    f" every {soonest:,} steps at the soonest"
                )
        share = "" if self.stall_share is None else f", {100 * self.stall_share:.2g} % of it"
        words.append(
            f"written in {show_seconds(self.write_s)}, read in {show_seconds(self.read_s)}"
        )
        words.append(f"training waits {show_seconds(self.stall_s)} ({self.mode}{share})")
        if self.kept is None or self.kept_bytes is None:
            return ", ".join(words)
        if self.kept == self.written:
            words.append(f"{self.written:,} are written; run.checkpoints.keep bounds what stays")
        else:
            words.append(f"{self.kept:,} of {self.written:,} stay, {show_bytes(self.kept_bytes)}")
        return ", ".join(words)


def checkpoints(
    scenario: Scenario, estimate: Estimate, real: Outlook | None, places: Iterable[int] = (0,)
) -> tuple[Checkpoint, ...]:
    """Tell what checkpoints of some layouts of an estimate take, by their places from 0.

    Parameters
    ----------
    real : Outlook, optional
        The real run of each; without it nothing fails and no interval is known.
    """
    machine = machine_of(estimate, scenario)
    terms = run_terms(scenario.run, machine) if real is None else real.terms
    saved = saved_bytes(scenario.workload, scenario.software)
    gpus = np.broadcast_to(np.asarray(machine.writer_gpus, float), len(terms))
    writers = np.broadcast_to(np.asarray(machine.writer_nodes, float), len(terms))
    size = float(machine.checkpoint_bytes)
    rows = []
    for i in places:
        step_s, steps = float(terms.step_s[i, 0]), scenario.workload.recipe.steps
        every_s = None if real is None else float(real.interval_s[i])
        stall_s = float(terms.stall_s[i, 0])
        stated = stated_interval(terms)
        asked_s = (
            None if stated is None else float(np.broadcast_to(stated, terms.step_s.shape)[i, 0])
        )
        if asked_s is not None and (every_s is None or every_s <= asked_s * (1.0 + 1e-9)):
            asked_s = None
        written = None
        if every_s is not None and steps is not None and math.isfinite(every_s):
            written = math.ceil(steps * step_s / every_s - 1e-9)
        keep = scenario.run.checkpoints.keep
        kept = written if written is None or keep is None else min(written, keep)
        rows.append(
            Checkpoint(
                mode=scenario.run.checkpoints.mode,
                bytes=size,
                bytes_per_gpu=size / float(gpus[i]),
                write_s=float(terms.write_s[i, 0]),
                read_s=float(terms.load_s[i, 0]),
                stall_s=stall_s,
                stall_share=None if every_s is None else stall_s / every_s,
                every_s=every_s,
                every_steps=None if every_s is None else every_s / step_s,
                asked_s=asked_s,
                written=written,
                kept=kept,
                kept_bytes=None if kept is None else kept * size,
                files=_files(scenario, saved, float(writers[i]), float(terms.nodes[i, 0])),
            )
        )
    return tuple(rows)


def _files(
    scenario: Scenario, saved: SavedBytes, writers: float, servers: float
) -> tuple[CheckpointFile, ...]:
    """List what may be written of the model, and what each takes.

    `writers` of all `servers` keep a shard that no other has.
    """
    store = scenario.run.storage
    host = scenario.cluster.node.host_memory_bytes
    listed: tuple[tuple[str, str, float], ...] = (
        ("states", "sharded", saved.states),
        ("states", "consolidated", saved.states),
        ("weights", "sharded", saved.weights),
        ("weights", "consolidated", saved.weights),
        ("weights", "safetensors", saved.export),
        ("adapters", "safetensors", saved.adapters),
    )
    return tuple(
        CheckpointFile(
            holds=holds,  # type: ignore[arg-type]
            format=form,  # type: ignore[arg-type]
            bytes=size,
            servers=int(writers) if form == "sharded" else 1,
            write_s=float(write_seconds(store, size, writers if form == "sharded" else 1.0)),
            read_s=float(read_seconds(store, size, servers if form == "sharded" else 1.0)),
            fits_host=None if form == "sharded" or host is None else size <= float(host),
        )
        for holds, form, size in listed
        if size > 0.0
    )
