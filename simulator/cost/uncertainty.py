"""How far predicted step times may be off, and what that leaves of a ranking.

An error belongs to what a term is priced by: the rate of a library on this device, a fabric, this
software's host work. Layouts that use the term share the error, so that it hardly matters between
two layouts whose time goes to the same places, and much between two that split it differently. The
logarithm of a step time is off by the sum, over errors, of the error and the share of the step that
it bears on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Floats
from simulator.cost.estimate import Estimate
from simulator.evidence.likeness import P90_T4, STOOD_IN, TUNED, Nearness, Traits, nearness
from simulator.files import Figure, read_profile, record
from simulator.hardware.cluster import Cluster
from simulator.layout.keys import unique_rows
from simulator.layout.layouts import Layouts
from simulator.records import dataclass
from simulator.software.profile import Software
from simulator.software.releases import parsed
from simulator.units import P90
from simulator.workload.recipe import Recipe, Workload

BEARS_ON = {
    "compute": ("gemm", "recompute", "stragglers"),
    "attention": ("attention",),
    "memory_bound": ("memory_bound", "optimizer"),
    "launch": ("launch",),
    "links": (
        *("tp", "cp", "ep", "pp", "fsdp", "dp", "offload", "input", "small_reductions"),
        "slowdown",
    ),
}
"""Which terms of a step time an error bears on. Fill and drain of a pipeline are passes of the same
work and bear the errors of the steady terms in proportion."""

_IDLE = ("bubble_warmup", "bubble_drain")

SHARED = (*BEARS_ON, "scale", "experts", "software", "kernels", "layout")
"""Errors that two step times may share: ``experts`` only if they are of one model, ``kernels`` if
their ranks compute with the same shapes, ``layout`` if they are of one layout, on other sizes of a
cluster."""

_KERNELS, _LAYOUT = SHARED.index("kernels"), SHARED.index("layout")

ERRORS = (*SHARED, "run")
"""All errors, each with a standard deviation in ``hardware_profiles/uncertainty/step.toml``."""

_USUAL = 0.1 * P90_T4 / P90
"""Largest spread of a step that counts as measured (``evidence/card.py``)."""

_FULL = 1.3
"""Predicted memory over the usable beyond which it counts as so much."""

DRAWS = 4000
_DRAWN = 64
"""Draws of all layouts that are added up at once: they stay in a cache, BLAS in one thread."""
_SOME = 1 << 18
"""Numbers drawn at once, as many times as it takes: tables of about one size share them."""
SEED = 20261121


@record
class StepErrors:
    """Standard deviations of the logarithm, beyond the spread that a term's own figures state."""

    name: str
    compute: Figure
    """Of the time of GEMMs under training load."""
    attention: Figure
    memory_bound: Figure
    """Of memory-bound kernels and the optimizer."""
    launch: Figure
    """Of the host time that shows."""
    links: Figure
    """Of the communication that shows."""
    scale: Figure
    """Of a whole step for every doubling of the number of accelerators: jitter, stragglers and
    shared fabrics, which no term stands for."""
    experts: Figure
    """Of a step with experts, for what routing, permutation and uneven loads add; apart for every
    model."""
    software: Figure
    """Of a whole step, shared by everything that one release of a software runs on a device."""
    kernels: Figure
    """Of a whole step, shared by layouts whose ranks compute with the same shapes."""
    layout: Figure
    """Of a whole step, apart for every layout: what no term explains."""
    run: Figure
    """Of a whole step, apart for every run: how far two runs alike are apart."""
    tail: Figure
    """Factor on the deviations above, but for `run` and `links`, with which left-out calibration
    runs have the best interval score: errors are not quite normally distributed."""
    links_tail: Figure
    """The same of `links`: most runs hide their communication, and say little of its error."""
    shared: Figure
    """Part of what the terms do not explain (as variance) that runs of one software, device, kind
    and precision have in common."""
    gain: Figure
    """By how much layouts that people would run of one job differ: what a gain is shrunk by."""
    covered: dict[str, tuple[str, ...]]
    """By accelerator, the types of GEMMs that calibration runs had: the deviations above
    hold what figures of these may be off; of others, the spread that they state comes on top."""


@lru_cache(maxsize=1)
def load_step_errors() -> StepErrors:
    """Read ``hardware_profiles/uncertainty/step.toml``."""
    return read_profile(StepErrors, catalogue.find("uncertainty", "step"))


def stated_spreads(cluster: Cluster, software: Software, recipe: Recipe) -> dict[str, float]:
    """Return the spreads that the figures behind a term state themselves, by error."""
    device = cluster.accelerator
    kernels = software.on(device.generation).kernels
    product = device.gemm.get(kernels.gemm_library, {}).get(recipe.matrix_type)
    fused = device.attention.get(kernels.attention_library) or device.attention.get("flash")
    return {
        "compute": _spread(product, "training_fraction"),
        "attention": _spread(fused, "peak_fraction", "backward_fraction"),
        "memory_bound": _spread(device.stream.get("elementwise"), "memory_fraction"),
        "launch": float(
            np.hypot(
                _spread(software.host, "seconds_per_kernel"), _spread(cluster.node, "host_time")
            )
        ),
    }


def _spread(holder: Any, *names: str) -> float:
    """Spreads of some figures of a record as one; 0 for what is missing or states none."""
    spreads = [getattr(getattr(holder, name, None), "spread", None) or 0.0 for name in names]
    return float(np.sqrt(sum(value**2 for value in spreads)))


def bearing(estimate: Estimate, *, experts: bool) -> Floats:
    """Return the share of each layout's step that every shared error bears on.

    Parameters
    ----------
    estimate : Estimate
        Its terms.
    experts : bool
        Whether the model has experts.

    Returns
    -------
    ndarray, shape (layouts, errors)
        Columns in the order of SHARED; those of ``kernels`` and ``layout`` are zero: one where
        they are the same as those of a measured run.
    """
    step_s = estimate.step_time_s
    idle_s = sum((estimate.terms_s[name] for name in _IDLE), np.zeros_like(step_s))
    whole = step_s / np.maximum(step_s - idle_s, 1e-30)
    columns = []
    for terms in BEARS_ON.values():
        term_s = sum((estimate.terms_s[term] for term in terms), np.zeros_like(step_s))
        columns.append(term_s / step_s * whole)
    columns.append(np.log2(estimate.layouts.world.astype(float)))
    columns += [np.full_like(step_s, float(experts)), np.ones_like(step_s)]
    columns += [np.zeros_like(step_s), np.zeros_like(step_s)]
    return np.stack(columns, axis=-1)


def same_kernels(layouts: Layouts) -> NDArray[np.intp]:
    """Number layouts so that those whose ranks compute with the same shapes have one number."""
    keys = unique_rows(
        layouts.tp,
        layouts.sequence_parallel,
        layouts.cp,
        layouts.cp_kind,
        layouts.ep,
        layouts.etp,
        layouts.dispatcher,
        layouts.micro_batch,
        layouts.recompute,
        layouts.recompute_layers,
    )
    return keys.inverse


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is believed of the errors: jointly normal, zero on average until a run corrects them.

    `shares` of the methods are those that :func:`bearing` returns, one row per layout.
    """

    mean: Floats
    """Of the errors in SHARED."""
    covariance: Floats
    """Of the same."""
    kernels: float
    """Standard deviation of what layouts with the same kernels share, unless a run with the same
    was measured."""
    layout: float
    """Standard deviation of what is each layout's own, unless a run of the same was measured."""
    run: float
    """Standard deviation of what is each run's own."""

    def own_variance(self, shares: Floats) -> Floats:
        """Variance of what no measured run shares, by layout."""
        return np.asarray(self.run**2 + self._kernels(shares) + self._layout(shares))

    def _kernels(self, shares: Floats) -> Floats:
        return np.asarray((1.0 - shares[:, _KERNELS]) * self.kernels**2)

    def _layout(self, shares: Floats) -> Floats:
        return np.asarray((1.0 - shares[:, _LAYOUT]) * self.layout**2)

    def shift(self, shares: Floats) -> Floats:
        """Logarithm of the factor that each step time is expected to need."""
        return np.asarray(_times(shares, self.mean))

    def log_spread(self, shares: Floats) -> Floats:
        """Standard deviation of the logarithm of each step time."""
        variance = np.sum(_times(shares, self.covariance) * shares, axis=-1)
        return np.asarray(np.sqrt(np.maximum(variance + self.own_variance(shares), 0.0)))

    def interval(self, step_s: Floats, shares: Floats) -> tuple[Floats, Floats]:
        """P10 and P90 of step times that are corrected already."""
        reach = np.exp(P90 * self.log_spread(shares))
        return step_s / reach, step_s * reach

    def beats(
        self, step_s: Floats, shares: Floats, kernels: NDArray[np.intp], *, best: int = 0
    ) -> Floats:
        """Probability that each layout is faster than the layout `best`; one half for itself.

        The logarithm of the ratio of two step times is off by the shared errors times the
        differences of their shares, by the two errors of the layouts themselves, and by those of
        their kernels where these differ (`kernels`, see :func:`same_kernels`). Errors of runs do
        not count: the question is which is faster, not which run.
        """
        variance = self.apart(shares, kernels, best=best)
        behind = np.log(step_s / step_s[best]) / np.sqrt(2.0 * variance)
        chance = np.array([0.5 * (1.0 - erf(value)) for value in behind.tolist()])
        chance[best] = 0.5
        return chance

    def apart(
        self, shares: Floats, kernels: NDArray[np.intp], *, best: int = 0, same: bool = False
    ) -> Floats:
        """Variance of the logarithm of each step time over that of the layout `best`.

        With `same` all are one layout on several machines, whose own error they share.
        """
        away, shapes = shares - shares[best], self._kernels(shares)
        of_layouts = np.zeros(len(shares)) if same else self._layout(shares)
        variance = (
            np.sum(_times(away, self.covariance) * away, axis=-1) + of_layouts + of_layouts[best]
        )
        variance += np.where(kernels == kernels[best], 0.0, shapes + shapes[best])
        return np.asarray(np.maximum(variance, 1e-18))

    def fastest(self, step_s: Floats, shares: Floats, kernels: NDArray[np.intp]) -> Floats:
        """Probability that each layout is the fastest of the table.

        Errors are drawn `DRAWS` times from a fixed seed; shared ones are the same for all layouts
        of a draw, those of kernels for layouts that have the same, what is each layout's own is
        drawn for each.
        """
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        numbers, place = np.unique(kernels, return_inverse=True)
        shared, of_kernels, of_layouts = _drawn(len(self.mean), len(numbers), len(step_s))
        weights, log_s = (shares @ root).T, np.log(step_s)
        kernel, layout = np.sqrt(self._kernels(shares)), np.sqrt(self._layout(shares))
        wins = np.zeros(len(step_s), dtype=np.int64)
        for start in range(0, DRAWS, _DRAWN):
            some = slice(start, start + _DRAWN)
            error = shared[some] @ weights
            error += kernel * of_kernels[some][:, place]
            error += layout * of_layouts[some]
            error += log_s
            wins += np.bincount(np.argmin(error, 1), minlength=len(step_s))
        return np.asarray(wins / DRAWS)

    def corrected(self, shares: Floats, log_ratio: Floats, noise: Floats | float = 0.0) -> Belief:
        """Return the belief after runs were measured.

        Parameters
        ----------
        shares : ndarray, shape (runs, errors)
            Of the runs that were measured; one in the last two columns where their kernels and
            layouts are those of what is to be predicted.
        log_ratio : ndarray, shape (runs,)
            Logarithm of measured over predicted step time, the prediction as it was uncorrected.
        noise : ndarray, shape (runs,), or float
            Variance of each run's logarithm that does not concern what is to be predicted.

        Notes
        -----
        Conditioning of a normal distribution on linear observations, each with an error of its
        own. What the runs do not exercise stays as uncertain as it was.
        """
        variance = self.own_variance(shares) + noise
        heard = shares @ self.covariance @ shares.T + np.diag(variance)
        gain = np.linalg.solve(heard, shares @ self.covariance).T
        return Belief(
            mean=self.mean + gain @ (log_ratio - shares @ self.mean),
            covariance=self.covariance - gain @ shares @ self.covariance,
            kernels=self.kernels,
            layout=self.layout,
            run=self.run,
        )


def shrunk(log_gain: Floats, variance: Floats) -> Floats:
    """What is to be expected of predicted gains, as logarithms, each of a given error variance.

    The best of many is lucky: of what it is predicted to gain, part is error. Where gains of
    layouts that people would run have the standard deviation ``gain`` (``StepErrors``), and errors
    are normal, the mean of the gain after the prediction is it times gain^2 / (gain^2 + variance).

    Examples
    --------
    With an error as large as gains are, half of it:

    >>> float(shrunk(np.array([0.08]), np.array([0.1**2]))[0].round(3))
    0.04
    """
    usual = float(load_step_errors().gain) ** 2
    return np.asarray(log_gain * usual / (usual + variance))


def expected_order(value: Floats, error: Floats) -> NDArray[np.intp]:
    """Order layouts by what is to be expected of their step time, days or money.

    Parameters
    ----------
    value : ndarray
        As predicted; the least is the best.
    error : ndarray
        Standard deviation of the logarithm to expect of each, by measured runs near it.

    Notes
    -----
    A layout that nobody knows anything of is one that people would run, ``gain`` above the best:
    what each is predicted to take less than that is shrunk by its own error. Of two that are
    predicted alike the one nearer to measured runs comes first; what takes longer than that
    stays in its order behind.

    Examples
    --------
    The first is 1 % faster by prediction, and twice as unsure:

    >>> expected_order(np.array([1.0, 1.01, 1.2]), np.array([0.12, 0.06, 0.06])).tolist()
    [1, 0, 2]
    """
    log = np.log(value)
    usual = log.min() + float(load_step_errors().gain)
    expected = np.where(log < usual, usual - shrunk(usual - log, error**2), log)
    return np.lexsort((log, expected))


def _drawn(*columns: int) -> list[Floats]:
    """Normal draws from the fixed seed as tables of DRAWS rows, one after the other."""
    ends = np.cumsum(columns) * DRAWS
    stream = _stream(-int(-ends[-1] // _SOME))
    tables = np.split(stream[: ends[-1]], ends[:-1])
    return [table.reshape(DRAWS, -1) for table in tables]


@lru_cache(maxsize=2)
def _stream(times: int) -> Floats:
    """The first numbers of that seed, `_SOME` of them so many times: the same ones in any case."""
    return np.random.default_rng(SEED).standard_normal(times * _SOME)


def _times(rows: Floats, matrix: Floats) -> Floats:
    """``rows @ matrix`` in a fixed order of addition, whatever the number of rows."""
    columns = matrix[:, None] if matrix.ndim == 1 else matrix
    total = sum(rows[:, k, None] * columns[k] for k in range(len(columns)))
    product = np.asarray(total)
    return product[:, 0] if matrix.ndim == 1 else product


def traits(estimate: Estimate, workload: Workload, cluster: Cluster, software: Software) -> Traits:
    """Gather what sets the time of some layouts: what measured runs are compared by."""
    device, layouts, shape = cluster.accelerator, estimate.layouts, workload.architecture
    whole, step_s = np.ones(len(estimate)), estimate.step_time_s
    release = parsed(software.stands_for or software.name)
    peaks = device.matrix_flop_per_s
    flop = estimate.model_flop / workload.recipe.global_batch * layouts.global_batch
    rate = flop / step_s / layouts.world
    words = {
        "device": device.name,
        "generation": device.generation,
        "stack": software.stack,
        "software": software.framework or software.name,
        "kind": _kind(workload),
        "precision": workload.recipe.matrix_type,
        "routing": _routing(workload),
        "tuned": _tuned(software, device.vendor),
    }

    def share(*terms: str) -> Floats:
        return np.asarray(sum(estimate.terms_s[term] for term in terms) / step_s)

    length = workload.recipe.sequence_length
    active = shape.active_parameters
    degrees = np.stack([layouts.tp, layouts.cp, layouts.pp, layouts.ep], axis=-1)
    near = layouts.tp * layouts.cp
    groups = (layouts.tp, near, near * layouts.dp * layouts.pp, layouts.ep * layouts.etp)
    uses = degrees > 1
    return Traits(
        words=words,
        months=float(release.months or np.nan) if release else np.nan,
        known=not software.stands_for,
        numbers={
            "gpus": layouts.world.astype(float),
            "parameters": whole * active,
            "expert_share": whole * shape.parameters / active,
            "sequence": whole * length,
            "tokens": layouts.micro_batch * length / layouts.cp,
            "launch": share("launch"),
            "communication": share(*BEARS_ON["links"]),
            "attention": share("attention"),
            "memory_bound": share("memory_bound", "optimizer"),
            "mfu": rate / float(peaks.get("bf16", max(peaks.values()))),
            "fullness": np.minimum(estimate.memory_total_bytes / estimate.usable_bytes, _FULL),
        },
        axes={
            "uses": uses,
            "leaves": uses & (np.stack(groups, axis=-1) > cluster.domain),
        },
    )


def _kind(workload: Workload) -> str:
    """Kind of work; a model whose tokens see those behind them is an encoder."""
    sees_all = any(not mixer.causal for mixer in workload.architecture.attentions)
    return "encoder" if workload.kind == "dense" and sees_all else workload.kind


def _tuned(software: Software, vendor: str) -> str:
    """Whether the vendor of a device tunes a software for it, or its figures are another's."""
    if software.framework:
        return STOOD_IN
    return TUNED if software.is_tuned_by(vendor) else "plain"


def _routing(workload: Workload) -> str:
    """Whether tokens are forced to go to all experts alike."""
    if not workload.architecture.is_moe:
        return "none"
    return "forced" if workload.recipe.expert_load == 1.0 else "natural"


def evidence_spread(
    estimate: Estimate,
    workload: Workload,
    cluster: Cluster,
    software: Software,
    without: Sequence[str] | str = "",
) -> Floats:
    """Standard deviations of the logarithm of step times by how far off runs near them were."""
    return spread_near(nearness(traits(estimate, workload, cluster, software), without))


def spread_near(likened: Nearness) -> Floats:
    """The same of layouts that measured runs are set against.

    Those of the normal distribution that has the P10 and P90 of what errors are: Student's t with
    four degrees of freedom, whose mean size is the error that is to be expected.
    """
    return np.asarray(likened.expected * P90_T4 / P90)


def belief(
    cluster: Cluster,
    software: Software,
    workload: Workload,
    spread: float | None = None,
    *,
    wide: float = 0.0,
) -> Belief:
    """Return what is believed of the errors on this machine with this software, nothing measured.

    What steps of calibration runs show, scaled by `tail` and `links_tail`. On an accelerator, or
    with a type of GEMMs, that none of these runs had, the spreads that the figures of a
    term state themselves add as squares.

    Parameters
    ----------
    spread : float, optional
        Standard deviation of the logarithm of the step that the terms do not explain: most of it
        is shared by all that this software runs here, the rest is each run's own (`shared`).
    wide : float
        :func:`evidence_spread` of the step: where more is to be expected than of what was measured,
        the errors of terms, by which layouts are compared, grow in proportion.
    """
    recipe = workload.recipe
    steps = load_step_errors()
    deviation = {name: float(getattr(steps, name)) for name in ERRORS}
    if recipe.matrix_type not in steps.covered.get(cluster.accelerator.name, ()):
        for name, stated in stated_spreads(cluster, software, recipe).items():
            deviation[name] = float(np.hypot(deviation[name], stated))
    grown = max(1.0, wide / _USUAL)
    deviation |= {name: grown * deviation[name] for name in SHARED}
    scale = {"links": float(steps.links_tail), "run": 1.0}
    spreads = {name: scale.get(name, float(steps.tail)) * deviation[name] for name in ERRORS}
    if spread is not None:
        shared = float(steps.shared)
        spreads["software"] = float(np.hypot(spreads["software"], spread * np.sqrt(shared)))
        spreads["run"] = float(np.hypot(spreads["run"], spread * np.sqrt(1.0 - shared)))
    return Belief(
        mean=np.zeros(len(SHARED)),
        covariance=np.diag([spreads[name] ** 2 for name in SHARED]),
        kernels=spreads["kernels"],
        layout=spreads["layout"],
        run=spreads["run"],
    )
