"""The figures of fused attention for every accelerator profile, and how well they predict.

``python -m workshop.fits.attention.profiles`` prints the errors on shapes left
out.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from simulator.calibration.profile_text import FigureText, Section
from workshop.facts import facts
from workshop.fits.attention.fit import (
    ONE_CALL_S,
    PUBLISHED,
    AttentionFit,
    Values,
    fit_published,
    fit_serving,
    fit_timed,
    fit_timed_on_each,
    pool_keys,
    serving_pools,
    training_pool,
)
from workshop.fits.attention.holdout import (
    attention_lines,
    joined,
    library_lines,
    unseen_attention,
)
from workshop.fits.attention.residual import residual_files
from workshop.fits.attention.rows import CACHE, attention_calls
from workshop.fits.fitting.devices import Device, devices, same_chip
from workshop.fits.fitting.holdout_errors import LeftOut, written
from workshop.fits.fitting.pooled import Pool

_DATE = "2026-11-21"
_FORM = (
    "fit of attention_s (cost/kernels/flash_attention.py) by workshop/fits/attention/profiles.py"
)
_FACTS = facts(__file__)
_TABLES: str = _FACTS["tables"]
_STALE = ("half_length",)

_SERVED_BY: dict[str, str] = _FACTS["served_by"]
"""Library whose kernels flash calls in training, where training calls were not timed alone."""

_SOFTMAX_OF: dict[str, str] = _FACTS["softmax_of"]
"""Library whose softmax stands for that of the training calls that were timed."""

_TRAINED = ("flash", "sdpa")
_OLD_KERNELS = ("triton", "flash1")
_CUDNN: dict[str, str] = _FACTS["cudnn"]["releases"]
_CUDNN_RUNS_ON: str = _FACTS["cudnn"]["runs_on"]
_WHOLE_BACK: dict[str, dict[str, float]] = _FACTS["cudnn"]["whole_back"]
_SAME_KERNELS_AS: dict[str, str] = _FACTS["same_kernels_as"]
"""Libraries whose kernels use none of a newer generation's instructions: tiles, tails and traffic
are those of the generation that they were written for."""
_GAIN = 1.65
"""H100 over A100 for kernels without Hopper's instructions: flash-attention 2, causal, head size
64, forward and backward, 257 and 156 TFLOP/s at 4k tokens, 284 and 171 at 16k (Dao 2023, arXiv
2307.08691, Figure 4 and the H100 figure)."""

_BACKWARD: dict[tuple[str, str], tuple[float, float, str]] = {
    (generation, library): (rate["share"], rate["spread"], rate["reason"])
    for generation, libraries in _FACTS["backward"].items()
    for library, rate in libraries.items()
}
"""Backward over forward rate, its spread and the reason, where no call of the table shows it."""

_SERVING: str = _FACTS["serving"]
_TIMED: str = _FACTS["timed"]
_PUBLISHED: str = _FACTS["published"]["generation"]
"""The library that tells what a sister device gains; generations whose calls of training were timed
in full, or published as rates."""

_BACKWARD_TAIL = 0.4
_WIDE_SPREAD = 0.15
"""Of a rate taken over from another device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Figures of one library on one device, and what to say of them."""

    values: Values
    text: str
    grade: str
    spread: float
    backward_spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fits:
    """Everything that the tables give."""

    known: Mapping[str, Device]
    pools: Mapping[tuple[str, str], Pool]
    serving: Mapping[tuple[str, str], AttentionFit]
    unseen: Mapping[tuple[str, str], LeftOut]
    """By device and library."""
    lines: tuple[LeftOut, ...]
    training: Mapping[tuple[str, str], Source]
    """By generation and library; on the device that was timed."""
    timed_on: Mapping[str, str]
    """Device whose training calls were timed, by generation."""
    cudnn: Mapping[str, Mapping[str, Source]]
    """cuDNN of 2026, by type and by device that it was timed on."""


@functools.cache
def _fits() -> _Fits:
    known = devices()
    calls = attention_calls(known)
    pools = serving_pools(calls, known)
    serving = {key: fit_serving(pool, key[1]) for key, pool in pools.items()}
    whole, seconds = unseen_attention(calls, known)
    training, timed_on = _training(calls, known, serving)
    return _Fits(
        known=known,
        pools=pools,
        serving=serving,
        unseen=library_lines(whole, seconds),
        lines=tuple(attention_lines(whole, seconds, serving, known)),
        training=training,
        timed_on=timed_on,
        cudnn={name: _cudnn(calls, known, serving, name) for name in _CUDNN},
    )


def left_out_lines() -> list[LeftOut]:
    """Errors on shapes, and on accelerators, that were left out of the fit."""
    return list(_fits().lines)


def attention_residuals() -> dict[str, str]:
    """Return the files of what the formula leaves over on serving calls, by path."""
    fits = _fits()
    pools = list(fits.pools.items())
    whole = joined([pool for _, pool in pools])
    seconds = np.concatenate([fits.serving[key].seconds(pool) for key, pool in pools])
    generation = np.array([key[0] for key in pool_keys(whole, fits.known)])
    return residual_files(whole, generation, np.log(whole.rows["seconds"] / seconds))


# --- training ----------------------------------------------------------------------------


def _training(
    calls: Pool, known: Mapping[str, Device], serving: Mapping[tuple[str, str], AttentionFit]
) -> tuple[dict[tuple[str, str], Source], dict[str, str]]:
    """Fit the libraries of training where their own calls were timed."""
    sources: dict[tuple[str, str], Source] = {}
    timed_on: dict[str, str] = {}
    for generation, library in _SOFTMAX_OF.items():
        softmax = serving[generation, library].values("", library)
        flash = training_pool(calls, "flash", known, generation)
        sdpa = training_pool(calls, "sdpa", known, generation)
        timed = fit_timed(_with_rows(flash, sdpa), softmax)
        timed_on[generation] = str(flash.device[0])
        sources[generation, "flash"] = _timed_source(
            timed.values, timed.score, f"{_FACTS['training_calls']} ({len(flash)} calls)"
        )
        for name in PUBLISHED:
            pool = training_pool(calls, name, known, generation)
            if len(pool):
                like = sources[_SAME_KERNELS_AS.get(name, generation), "flash"].values
                one = fit_published(pool, like, name)
                papers = f"{len(pool)} rates of validation/microbenchmarks/attention_training.csv"
                sources[generation, name] = _timed_source(one.values, one.score, papers)
    timed_on[_PUBLISHED] = _FACTS["published"]["device"]
    like = sources[_TIMED, "flash"].values  # the same kernels on Hopper
    one = fit_published(training_pool(calls, "sdpa", known, _PUBLISHED), like, "sdpa")
    papers = "Shah 2024 (arXiv 2407.08608) Figure 5, forward, 6 lengths"
    sources[_PUBLISHED, "sdpa"] = _timed_source(one.values, one.score, papers)
    return sources, timed_on


def _cudnn(
    calls: Pool,
    known: Mapping[str, Device],
    serving: Mapping[tuple[str, str], AttentionFit],
    library: str,
) -> dict[str, Source]:
    """Fit cuDNN 9.17 and newer, which its own benchmarks timed in both directions on Blackwell.

    Its kernels are a third faster than those that SimuMax timed, of cuDNN 9.13 at most.
    """
    pool = training_pool(calls, library, known, _CUDNN_RUNS_ON)
    served = _SOFTMAX_OF[_CUDNN_RUNS_ON]
    softmax = serving[_CUDNN_RUNS_ON, served].values("", served)
    return {
        device: _timed_source(
            timed.values | _WHOLE_BACK.get(library, {}),
            timed.score,
            f"{int((pool.device == device).sum())} calls of cuDNN {_CUDNN[library]} "
            "(NVIDIA/cudnn-frontend benchmark/sdpa_benchmark_training), shapes left out",
        )
        for device, timed in fit_timed_on_each(pool, softmax).items()
    }


def _with_rows(a: Pool, b: Pool) -> Pool:
    """Rows of two pools, as two variants of one kernel."""
    return Pool(
        rows={name: np.concatenate([a.rows[name], b.rows[name]]) for name in a.rows},
        device=np.concatenate([a.device, b.device]),
        variant=np.concatenate([a.variant, b.variant]),
    )


def _timed_source(values: Values, score: LeftOut, what: str) -> Source:
    text = f"{_FORM} to {what}: median error {_percent(score.median)}, p90 {_percent(score.p90)}"
    spread = max(score.spread, 0.08)
    return Source(values=values, text=text, grade="fitted", spread=spread, backward_spread=spread)


def _trained(fits: _Fits, device: Device, library: str) -> Source:
    """Figures of a training library on a device: its own, its generation's, or typical ones."""
    if library in _CUDNN:
        return _by_cudnn(fits.cudnn[library], fits, device)
    serving = fits.training.get((device.generation, library))
    timed = fits.timed_on.get(device.generation, "")
    if serving is not None and device.name != timed:
        serving = _scaled(fits, serving, device, timed)
    if serving is None and library in _OLD_KERNELS and device.generation == _PUBLISHED:
        return _older(fits, device, library)
    if serving is None and library != "flash":
        as_flash = _trained(fits, device, "flash")
        return replace(as_flash, grade="assumed", text=f"as flash: {as_flash.text}")
    if serving is None and device.generation in _SERVED_BY:
        serving = _from_serving(fits, device, _SERVED_BY[device.generation])
    if serving is None:
        return typical_attention(device.generation)
    if guess := _BACKWARD.get((device.generation, library)):
        values = serving.values | {"backward_fraction": guess[0]}
        text = f"{serving.text}. Backward not timed here: {guess[2]}"
        serving = replace(serving, values=values, text=text, backward_spread=guess[1])
    return serving


def _by_cudnn(timed: Mapping[str, Source], fits: _Fits, device: Device) -> Source:
    """Figures of cuDNN on a device, or those of the timed one that is most like it."""
    if device.name in timed:
        return timed[device.name]
    nearest = min(timed, key=lambda name: _apart(device, fits.known[name]))
    found = timed[nearest]
    return replace(
        found,
        text=f"as {nearest}: {found.text}",
        grade="assumed",
        spread=max(found.spread, _WIDE_SPREAD),
        backward_spread=max(found.backward_spread, _WIDE_SPREAD),
    )


def _apart(a: Device, b: Device) -> float:
    """How far two devices are apart in 4-bit over 16-bit peak, which tells Blackwell Ultra."""
    mine, theirs = (each.flop_per_s["nvfp4"] / each.flop_per_s["bf16"] for each in (a, b))
    return abs(float(np.log(mine / theirs)))


def _scaled(fits: _Fits, source: Source, device: Device, timed: str) -> Source:
    """Move a rate to a sister device by what serving kernels gain there."""
    twin = same_chip(device, [fits.known[timed]])
    fit = fits.serving.get((device.generation, _SERVING))
    gain = 1.0
    if fit is not None and not twin:
        rates = [fit.values(name, _SERVING)["peak_fraction"] for name in (device.name, timed)]
        gain = rates[0] / rates[1]
    values = source.values | {"peak_fraction": gain * source.values["peak_fraction"]}
    text = f"as {timed}" + (f", times {gain:.2f}, what TRT-LLM kernels gain" if gain != 1.0 else "")
    return Source(
        values=values,
        text=f"{text}: {source.text}",
        grade="assumed",
        spread=max(source.spread, _WIDE_SPREAD),
        backward_spread=max(source.backward_spread, _WIDE_SPREAD),
    )


def _from_serving(fits: _Fits, device: Device, library: str) -> Source:
    """A kernel that was timed serving, without the cache that training does not keep."""
    fit = fits.serving[device.generation, library]
    owner = _owner(fits, device, library)
    flash = fits.training[_TIMED, "flash"].values
    values = fit.values(owner, library) | {"launch_s": ONE_CALL_S}
    values |= {
        "key_traffic": values["query_traffic"],
        "backward_fraction": flash["backward_fraction"],
        "backward_tail_fraction": _BACKWARD_TAIL,
    }
    text = (
        f"{library} as vLLM calls it ({_FORM}, {_TABLES}), without its cache: keys pass "
        "the memory as often as queries, and the start-up is that of a call without one"
    )
    return Source(
        values=values,
        text=text,
        grade="fitted" if owner == device.name else "assumed",
        spread=_WIDE_SPREAD,
        backward_spread=_WIDE_SPREAD,
    )


def _older(fits: _Fits, device: Device, library: str) -> Source:
    """Triton of 2023 and flash-attention 1 use none of Hopper's instructions."""
    found = fits.training[_TIMED, library]
    timed = fits.known[fits.timed_on[_TIMED]]
    gain = _GAIN * timed.flop_per_s["bf16"] / device.flop_per_s["bf16"]
    values = found.values | {"peak_fraction": gain * found.values["peak_fraction"]}
    text = (
        f"the figures of {timed.name} at 1.65 times its rate, what flash-attention 2 without "
        f"Hopper's instructions shows (Dao 2023, arXiv 2307.08691): {found.text}"
    )
    return Source(
        values=values, text=text, grade="assumed", spread=_WIDE_SPREAD, backward_spread=_WIDE_SPREAD
    )


def typical_attention(generation: str) -> Source:
    """Figures for a device of a generation that was never timed: medians of those that were.

    The spread is that of long calls on an accelerator that was left out of the fit.
    """
    fits = _fits()
    timed = [
        _trained(fits, device, "flash").values
        for device in fits.known.values()
        if device.generation in _FACTS["typical_of"]
    ]
    names = timed[0]
    values = {name: float(np.median([each[name] for each in timed])) for name in names}
    values["tile_rows"] = 128.0
    away = [line.spread for line in fits.lines if line.method == "one accelerator left out"]
    text = (
        f"no calls of {generation} timed: medians of flash over ampere, hopper, ada and blackwell; "
        "the spread is twice that of an accelerator left out of the fit of its generation"
    )
    return Source(
        values=values,
        text=text,
        grade="assumed",
        spread=2.0 * max(away),
        backward_spread=2.0 * max(away),
    )


# --- profiles ----------------------------------------------------------------------------


def attention_sections() -> dict[str, list[Section]]:
    """What every accelerator profile holds of fused attention, by profile.

    `training_fraction` is written where a profile has none: elsewhere it is that of training runs.
    """
    fits = _fits()
    return {name: _sections(fits, device) for name, device in fits.known.items()}


def _sections(fits: _Fits, device: Device) -> list[Section]:
    table = device.tables["attention"]
    wanted = {"flash", "sdpa"} | {name for name in _OLD_KERNELS if name in table}
    if device.generation == _CUDNN_RUNS_ON:
        wanted |= {*_CUDNN, *_SAME_KERNELS_AS}
    sources = {name: _trained(fits, device, name) for name in sorted(wanted)}
    sources |= _served(fits, device)
    sections = []
    for library, source in sources.items():
        path = ("attention", library)
        sections.append(
            Section(
                path=path,
                figures=_figures(source),
                source=f"attention_{library}",
                text=source.text,
                date=_DATE,
                stale=_STALE,
            )
        )
        if "training_fraction" not in table.get(library, {}):
            sections.append(_clock(fits, device, library, path))
    return sections


def _served(fits: _Fits, device: Device) -> dict[str, Source]:
    """Serving libraries: those that were timed on the device or on the same chip."""
    found = {}
    for (generation, library), pool in fits.pools.items():
        if generation != device.generation:
            continue
        owner = _owner(fits, device, library)
        for variant in np.unique(pool.variant[pool.device == owner]).tolist():
            line = fits.unseen.get((owner, variant))
            if line is None:
                continue
            cache = ", keys and values kept in fp8" if variant.endswith(CACHE) else ""
            own = "" if owner == device.name else f"as {owner}: "
            text = (
                f"{own}{_FORM} to {_TABLES}{cache}; {line.rows} calls of 1k tokens and more, "
                f"shapes left out: median error {_percent(line.median)}, p90 {_percent(line.p90)}; "
                "no backward pass was timed: rate and tail of flash on Ampere, never used to serve"
            )
            values = fits.serving[generation, library].values(owner, variant)
            values |= {"backward_fraction": 0.8, "backward_tail_fraction": _BACKWARD_TAIL}
            found[variant] = Source(
                values=values,
                text=text,
                grade="assumed" if own else "fitted",
                spread=line.spread,
                backward_spread=0.2,
            )
    return found


def _owner(fits: _Fits, device: Device, library: str) -> str:
    """Device whose calls of a library stand for this one's, "" if none."""
    pool = fits.pools.get((device.generation, library))
    timed = np.unique(pool.device).tolist() if pool is not None else []
    if device.name in timed:
        return device.name
    return same_chip(device, [fits.known[name] for name in timed])


def _figures(source: Source) -> dict[str, FigureText]:
    spreads = {"peak_fraction": source.spread, "backward_fraction": source.backward_spread}
    return {
        name: FigureText(value=value, grade=source.grade, spread=spreads.get(name))
        for name, value in sorted(source.values.items())
    }


def _clock(fits: _Fits, device: Device, library: str, path: tuple[str, ...]) -> Section:
    """Rate under training load before any training run is fitted.

    Where calls of training were timed, the clock of long ones; elsewhere that of products. A part
    whose products are held back more than those of the timed part is held back as much here.
    """
    value, text = device.training_fraction(), "as 16-bit products under training load: one clock"
    timed = fits.training.get((device.generation, library))
    if timed is None and library in _OLD_KERNELS:
        timed = fits.training.get((_TIMED, library))
    if timed is None and library in _TRAINED:
        timed = fits.training.get((device.generation, "flash"))
    if timed is not None:
        text = "clock of long calls where attention was timed; not fitted on training steps yet"
        twins = [one for one in fits.known.values() if one.generation == device.generation]
        best = max(
            twin.training_fraction()
            for twin in twins
            if same_chip(twin, [device]) or twin.name == device.name
        )
        value = timed.values["sustained_fraction"] * device.training_fraction() / best
    figure = FigureText(value=value, grade="assumed", spread=_WIDE_SPREAD)
    return Section(
        path=path,
        figures={"training_fraction": figure},
        source=f"attention_{library}_training",
        text=text,
        date=_DATE,
    )


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f} %"


if __name__ == "__main__":
    print(written(left_out_lines()), end="")
