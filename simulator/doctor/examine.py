"""The self-check: every combination that fits together is predicted, and held against identities.

Identities are what must hold whatever the figures behind an answer are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from simulator import catalogue
from simulator.answers import Encoded
from simulator.cost.operators.block_operators import model_parts
from simulator.cost.operators.model_flop import step_flop
from simulator.cost.operators.operations import Ranks
from simulator.cost.rank_memory import rank_memory
from simulator.cost.uncertainty import traits
from simulator.errors import InputError
from simulator.evidence.likeness import nearness
from simulator.hardware.accelerator import Platform
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.planner.prediction import Prediction, predict
from simulator.records import dataclass
from simulator.scenario import make_scenario
from simulator.software.software_section import running_on
from simulator.units import HOUR_S, KWH_J
from simulator.workload import presets
from simulator.workload.presets import load

_EQUAL = 1e-9
"""Relative difference of two sums of the same numbers in another order."""
_FORMULA = 0.02
"""What Chowdhery's formula leaves out at most: routers, latent attention's small projections,
norms; it counts no bias."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """An identity that does not hold."""

    identity: str
    """Its name in IDENTITIES."""
    said: str
    """Both sides, in words."""


def broken(prediction: Prediction) -> list[Broken]:
    """Return the identities that a prediction breaks; none: it is sound."""
    return [
        Broken(identity=name, said=said)
        for name, rule in IDENTITIES.items()
        for said in rule(prediction)
    ]


def _close(one: float, other: float, within: float = _EQUAL) -> bool:
    return math.isclose(one, other, rel_tol=within, abs_tol=1e-12)


def _terms(prediction: Prediction) -> Iterator[str]:
    terms = {name: float(x[0]) for name, x in prediction.estimate.terms_s.items()}
    whole, step_s = sum(terms.values()), prediction.step_time_s
    if not (math.isfinite(step_s) and step_s > 0.0 and _close(whole, step_s)):
        yield f"terms add up to {whole:.6g} s, the step takes {step_s:.6g} s"
    for name, seconds in terms.items():
        if seconds < -_EQUAL * step_s:
            yield f"the term {name} is {seconds:.6g} s"


def _interval(prediction: Prediction) -> Iterator[str]:
    low, high = prediction.interval_s
    if not low <= prediction.step_time_s <= high:
        yield f"P10 {low:.6g} s, median {prediction.step_time_s:.6g} s, P90 {high:.6g} s"


def _plausible(prediction: Prediction) -> Iterator[str]:
    """Where no run of a device was as fast, the interval reaches the fastest that was measured."""
    found, whole = prediction.estimate, prediction.scenario
    known = traits(found, whole.workload, whole.cluster, whole.software).take(0)
    best = float(nearness(known).best_mfu[0])
    slowest = float(known.numbers["mfu"][0]) * prediction.step_time_s / prediction.interval_s[1]
    if slowest > best * (1.0 + _EQUAL):
        yield f"MFU {slowest:.4g} at P90, {best:.4g} is the best that was measured"


def _flop(prediction: Prediction) -> Iterator[str]:
    """Three roads: the weights, the operators of a block, parameters and attention's formula."""
    workload = prediction.scenario.workload
    by_weights, said = step_flop(workload), float(prediction.estimate.model_flop)
    if not _close(by_weights, said):
        yield f"{by_weights:.9g} FLOPs a step by the weights, {said:.9g} in the estimate"
    if float(prediction.estimate.executed_flop[0]) < said * (1.0 - _EQUAL):
        yield f"{prediction.estimate.executed_flop[0]:.9g} FLOPs executed of {said:.9g}"
    if not _plain(prediction):
        return
    by_operators = _forward_by_operators(prediction) * 3.0
    if not _close(by_operators, said):
        yield f"{by_operators:.9g} FLOPs a step by the operators, {said:.9g} in the estimate"
    by_formula = _by_formula(prediction)
    if not _close(by_formula, said, _FORMULA):
        yield f"{by_formula:.6g} FLOPs a step by 6 N T and attention, {said:.6g} in the estimate"


def _plain(prediction: Prediction) -> bool:
    """Whether every token passes every block once, trained whole: a decoder of plain blocks."""
    arch, recipe = prediction.scenario.workload.architecture, prediction.scenario.workload.recipe
    once = not (arch.is_encoder_decoder or arch.traced or arch.tasks or arch.extra_embeddings)
    blocks = all(
        kind.attention is not None
        and not (kind.tokens or kind.width or kind.traced or kind.mixer or kind.predicts_ahead)
        and not kind.attention.disentangled
        for kind in arch.blocks
    )
    return once and blocks and not recipe.freezes and len(recipe.sequences) == 1


def _forward_by_operators(prediction: Prediction) -> float:
    """Products of every operator on one rank alone, a sequence, times the sequences of a step."""
    workload = prediction.scenario.workload
    kernels = prediction.scenario.software.kernels
    # Unfused scores are computed whole, padded vocabularies and experts too: more than the model
    # asks for.
    kernels = replace(kernels, attention="flash", pads_vocabulary_to=1, pads_to_busiest=False)
    layout = Layouts.of(global_batch=1)
    ones = np.ones(1)
    ranks = Ranks(
        tp=ones,
        cp=ones,
        ep=ones,
        etp=ones,
        micro_batch=ones,
        sequence_parallel=np.zeros(1, dtype=bool),
        groups=place(layout, 1),
    )
    parts = model_parts(workload, ranks, kernels)
    arch = workload.architecture
    counts = [arch.layer_kinds.count(i) for i in range(len(arch.blocks))] + [1, 1]
    flop = 0.0
    for part, count in zip(parts, counts, strict=True):
        products = sum(float(np.sum(g.flop)) for g in part.gemms)
        flop += count * (products + sum(float(np.sum(call.flop)) for call in part.flash))
    return flop * workload.recipe.global_batch


def _by_formula(prediction: Prediction) -> float:
    """Return ``T (6 N + 6 L H Q S)`` with attention's causal half (Chowdhery et al. 2022, app. B).

    N: parameters that a token passes, the input embedding left out.
    """
    workload = prediction.scenario.workload
    arch, recipe = workload.architecture, workload.recipe
    table = arch.vocabulary * arch.hidden
    positions = arch.max_positions * arch.hidden if arch.position == "learned" else 0
    passed = arch.active_parameters - positions - (0 if arch.tied_embeddings else table)
    attention = 0.0
    for index in arch.layer_kinds:
        att = arch.blocks[index].attention
        if att is None:
            continue
        span = min(att.window or recipe.sequence_length, recipe.sequence_length)
        seen = span - span * span / (2.0 * recipe.sequence_length) if att.causal else span
        attention += 6.0 * seen * att.heads * (att.head_dim + att.value_dim)
    return float(recipe.tokens_per_step) * (6.0 * passed + attention)


def _bytes(prediction: Prediction) -> Iterator[str]:
    """Two roads: the folded table of the search, and every rank on its own."""
    estimate, scenario = prediction.estimate, prediction.scenario
    kinds = {name: float(x[0]) for name, x in estimate.memory_bytes.items()}
    whole = float(estimate.memory_total_bytes[0])
    if not _close(sum(kinds.values()), whole):
        yield f"kinds add up to {sum(kinds.values()):.9g} bytes, the fullest rank holds {whole:.9g}"
    parts = (scenario.workload, scenario.cluster, scenario.software)
    alone = float(rank_memory(estimate.layouts, *parts).total_bytes.max())
    if not _close(alone, whole):
        yield f"{alone:.9g} bytes rank by rank, {whole:.9g} in the table"
    for name, size in kinds.items():
        if not (math.isfinite(size) and size >= 0.0):
            yield f"{name} are {size:.6g} bytes"


def _utilisation(prediction: Prediction) -> Iterator[str]:
    scenario, estimate = prediction.scenario, prediction.estimate
    device = scenario.cluster.accelerator
    peak = float(device.matrix_flop_per_s[scenario.workload.recipe.matrix_type])
    peak = max(peak, float(device.matrix_flop_per_s.get("bf16", peak)))
    rate = float(estimate.executed_flop[0]) / prediction.step_time_s / scenario.cluster.gpus
    if rate >= peak:
        yield f"{rate:.4g} FLOP/s a device, its peak is {peak:.4g}"


def _money(prediction: Prediction) -> Iterator[str]:
    outcome = prediction.outcome
    if not math.isfinite(float(outcome.usd[0])) or outcome.price.usd_per_gpu_hour is None:
        return
    spares, cluster = 0.0, prediction.scenario.cluster
    if outcome.real is not None:
        spares = float(outcome.real.hot_spares[0])
    held = float(cluster.rented(cluster.gpus + spares * cluster.node.accelerators))
    hours = float(outcome.days[0]) * 24.0 * held
    if not _close(hours, float(outcome.gpu_hours[0])):
        yield f"{held:,.0f} GPUs are held for {hours:.6g} hours, not {outcome.gpu_hours[0]:.6g}"
    due = hours * float(outcome.price.usd_per_gpu_hour)
    if not outcome.price.included_power:
        due += float(outcome.kwh[0]) * float(outcome.site.electricity_usd_per_kwh)
    if not _close(due, float(outcome.usd[0])):
        yield f"{hours:.6g} GPU-hours at their price are {due:.6g} USD, not {outcome.usd[0]:.6g}"


def _energy(prediction: Prediction) -> Iterator[str]:
    """At least all machines idle, at most all of them busy, for the whole time."""
    found, cluster = prediction.outcome, prediction.scenario.cluster
    if not math.isfinite(float(found.kwh[0])):
        return
    servers = {"idle": 0.0, "busy": 0.0}
    for group in cluster.groups:
        count = group.gpus / group.node.accelerators
        hosts, power = count * float(group.node.host_watt), group.accelerator.power
        held = count * group.node.accelerators
        servers["idle"] += hosts + held * float(power.idle_watt)
        servers["busy"] += hosts + held * float(power.busy_watt)
    seconds = float(found.days[0]) * 24.0 * HOUR_S
    meter = float(found.site.power_usage_effectiveness)
    meter /= 1.0 - float(found.site.network_watt_fraction)
    low, high = (watt * meter * seconds / KWH_J for watt in servers.values())
    if not low * (1.0 - _EQUAL) <= float(found.kwh[0]) <= high * (1.0 + _EQUAL):
        yield f"{found.kwh[0]:.6g} kWh, of {low:.6g} idle to {high:.6g} busy"


IDENTITIES: dict[str, Callable[[Prediction], Iterator[str]]] = {
    "terms add up": _terms,
    "median inside its interval": _interval,
    "FLOPs by three roads": _flop,
    "bytes by two roads": _bytes,
    "no device beyond its peak": _utilisation,
    "no device beyond what was measured": _plausible,
    "money is hours by price": _money,
    "energy between idle and busy": _energy,
}
"""What is checked, by name."""


@dataclass(frozen=True, slots=True)
class Combination:
    """Names of one scenario."""

    model: str
    cluster: str
    software: str


def every_pair() -> list[Combination]:
    """Every model on every cluster, software taken in turn.

    The turn moves by one with every model and every cluster on which the same software runs,
    so that every one of these meets every model and every such cluster: all pairs of the three are
    there, where there are as many such clusters as software.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for cluster in catalogue.names("clusters"):
        alike.setdefault(_software_for(cluster), []).append(cluster)
    return [
        Combination(model, cluster, runs[(i + j) % len(runs)])
        for i, model in enumerate(presets.names())
        for runs, clusters in alike.items()
        for j, cluster in enumerate(clusters)
        if runs
    ]


def one_of_each() -> list[Combination]:
    """Every model, every cluster and every software once at least: as many as the longest list."""
    models, clusters = presets.names(), catalogue.names("clusters")
    left = set(catalogue.names("software"))
    found = []
    for i in range(max(len(models), len(clusters))):
        cluster = clusters[i % len(clusters)]
        runs = _software_for(cluster)
        if not runs:
            continue
        new = [name for name in runs if name in left]
        software = (new or runs)[i % len(new or runs)]
        left.discard(software)
        found.append(Combination(models[i % len(models)], cluster, software))
    return found


def own_profiles() -> list[Combination]:
    """Every pair in which a cluster or software of the user's own takes part."""
    own = {kind: _own(kind) for kind in ("clusters", "software")}
    return [
        one
        for one in every_pair()
        if one.cluster in own["clusters"] or one.software in own["software"]
    ]


def _own(kind: str) -> set[str]:
    folders: Sequence[Path] = catalogue.user_folders()
    return {path.stem for place in folders for path in (place / kind).glob("*.toml")}


@lru_cache(maxsize=512)
def _software_for(cluster: str) -> tuple[str, ...]:
    """Software profiles that run on a cluster's devices; none where the profile is broken."""
    try:
        platform = load_cluster(cluster, 1).accelerator.platform
    except InputError:
        return ()
    return _running_on(platform)


@lru_cache(maxsize=8)
def _running_on(platform: Platform) -> tuple[str, ...]:
    return tuple(running_on(platform))


def whole_servers(cluster: str, servers: int = 2) -> int:
    """Accelerators of so many servers of a cluster."""
    found: Cluster = load_cluster(cluster, 1)
    return servers * found.node.accelerators


_TOKENS = 1e9
_SEQUENCE = 2048
_BATCH = 64
_LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"sharding": "zero3"},
    {"sharding": "ddp"},
    {"tp": 2},
    {"micro_batch": 4},
    {"pp": 2},
)
"""What is tried until a combination can run: not every software has every kind of sharding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One combination that breaks an identity, or ends in an error that is no answer."""

    KEYS: ClassVar[tuple[str, ...]] = ("*combination", "*broken")

    combination: Combination
    broken: Broken


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination(Encoded):
    """What a self-check found."""

    KEYS: ClassVar[tuple[str, ...]] = ("predicted", "identities", "refused", "findings")
    identities: ClassVar[tuple[str, ...]] = tuple(IDENTITIES)

    predicted: int
    refused: dict[str, int]
    """Combinations that do not fit together, by reason."""
    findings: tuple[Finding, ...]


def examine(
    combinations: Iterable[Combination], *, progress: Callable[[int, int], None] | None = None
) -> Examination:
    """Predict a training step of every combination on two servers, and check it.

    A combination that the software or arithmetic rules out is counted, not a finding; any error
    other than a refused input is one.
    """
    cases = list(combinations)
    refused: Counter[str] = Counter()
    findings: list[Finding] = []
    for done, case in enumerate(cases, start=1):
        try:
            prediction = _predicted(case)
            if isinstance(prediction, str):
                refused[prediction] += 1
            else:
                findings += [Finding(combination=case, broken=one) for one in broken(prediction)]
        except Exception as error:  # a crash is what this looks for
            said = Broken(identity="ends in an answer", said=f"{type(error).__name__}: {error}")
            findings.append(Finding(combination=case, broken=said))
        if progress is not None:
            progress(done, len(cases))
    return Examination(
        predicted=len(cases) - refused.total(), refused=dict(refused), findings=tuple(findings)
    )


def _predicted(case: Combination) -> Prediction | str:
    """The first layout that can run, or why none can."""
    reason = ""
    for layout in _LAYOUTS:
        try:
            return predict(make_scenario(_document(case, layout)))
        except InputError as error:
            reason = reason or str(error).partition("\n")[0].partition(", got")[0]
    return reason


def _document(case: Combination, layout: dict[str, Any]) -> dict[str, Any]:
    """A scenario of two servers: a sequence that every text model has; images have their own."""
    return {
        "model": {"name": case.model},
        "training": {"tokens": _TOKENS, "global_batch": _BATCH, **_training(case)},
        "cluster": {
            "name": case.cluster,
            "gpus": whole_servers(case.cluster),
            "software": case.software,
        },
        "layout": layout,
    }


def _training(case: Combination) -> dict[str, Any]:
    """A type that the device has, and tokens per sequence that the model takes."""
    arch, rates = load(case.model), load_cluster(case.cluster, 1).accelerator.matrix_flop_per_s
    precision = next((dtype for dtype in ("bf16", "fp16") if dtype in rates), "fp32")
    if arch.traced is not None and arch.traced.element_bytes == 4:
        precision = "fp32"
    most = arch.max_positions
    fixed, learned = arch.has_fixed_length, arch.position == "learned"
    length = most if fixed else min(_SEQUENCE, most) if learned else _SEQUENCE
    return {"precision": precision, "sequence_length": length}
