"""Tokens of the answers of a step: drawn by quantiles, the same for the same section."""

from __future__ import annotations

from math import erf
from pathlib import Path

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.errors import InputError, problem
from simulator.plain_files import read_text
from simulator.rollouts.rl_section import RL

_SEED = 20_261_126
_BISECTIONS = 60
_GRAINS = 1024.0
"""Steps of a bin to which lengths are rounded."""


def normal_quantiles(count: int) -> Floats:
    """Quantiles of the normal distribution at the middles of `count` equal shares.

    Examples
    --------
    >>> (normal_quantiles(3).round(3) + 0.0).tolist()
    [-0.967, 0.0, 0.967]
    """
    share = (np.arange(count) + 0.5) / count
    low, high = np.full(count, -9.0), np.full(count, 9.0)
    cumulated = np.vectorize(lambda x: 0.5 * (1.0 + erf(x / 2.0**0.5)), otypes=[float])
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        below = cumulated(middle) < share
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2.0)


def answer_lengths(rl: RL, longest: int, *, where: str = "scenario") -> Floats:
    """Tokens of every answer, (prompts, samples), those of dropped groups included.

    Lengths are lognormal, cut at `longest`, with the location at which the cut ones have the mean
    that is given. Prompts and the answers to each are placed at equal quantiles and shuffled, so
    that a small step has the same shape as a large one. A list or file of lengths is spread over
    the answers instead, longer ones with the prompts that draw long answers.

    Raises
    ------
    InputError
        If a file has no lengths, or the mean lies above what the cut allows.
    """
    prompts = max(round(rl.written / rl.samples), 1)
    score = _scores(prompts, rl.samples, rl.between_prompts)
    cut = min(rl.longest_answer or longest, longest)
    given = _given(rl, where)
    if given is not None:
        ranks = np.argsort(np.argsort(score, axis=None, kind="stable"), kind="stable")
        shares = (ranks + 0.5) / score.size
        lengths = np.quantile(given, shares, method="inverted_cdf").reshape(score.shape)
        return np.asarray(np.clip(lengths, 1.0, cut))
    mean = float(rl.answer_tokens or cut)
    if rl.spread == 0.0 or mean >= cut:
        return np.full(score.shape, min(mean, cut))
    shape = rl.spread * score
    low, high = -40.0, np.log(cut) + 40.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if np.minimum(np.exp(middle + shape), cut).mean() < mean:
            low = middle
        else:
            high = middle
    return np.asarray(np.maximum(np.minimum(np.exp((low + high) / 2.0 + shape), cut), 1.0))


def _scores(prompts: int, samples: int, between: float) -> Floats:
    """Standard normal scores whose variance lies between prompts to the share that is given."""
    random = np.random.default_rng(_SEED)
    prompt = random.permutation(normal_quantiles(prompts))[:, None]
    inside = normal_quantiles(samples) if samples > 1 else np.zeros(1)
    within = np.stack([random.permutation(inside) for _ in range(prompts)])
    if samples == 1:
        between = 1.0
    return np.asarray(np.sqrt(between) * prompt + np.sqrt(1.0 - between) * within)


def _given(rl: RL, where: str) -> Floats | None:
    """Lengths of a list or a file."""
    if rl.answer_lengths is not None:
        return np.array(rl.answer_lengths, float)
    if rl.answer_file is None:
        return None
    try:
        text = read_text(Path(rl.answer_file))
        lengths = np.array([float(line) for line in text.split()])
    except ValueError as error:
        rule = "must hold the tokens of an answer in each line"
        raise InputError(problem(where, "rl.answer_file", rule, str(error))) from None
    if not len(lengths) or not np.isfinite(lengths).all() or lengths.min() <= 0:
        rule = "must hold numbers above 0, one in each line"
        raise InputError(problem(where, "rl.answer_file", rule, rl.answer_file))
    return lengths


def sequence_lengths(rl: RL, answers: Floats) -> Floats:
    """Tokens of prompt, answer and tools' results of every sequence."""
    tools = (rl.turns - 1) * rl.tool_tokens
    return np.asarray(answers + rl.prompt_tokens + tools)


def packed_bins(lengths: Floats, size: float) -> int:
    """Bins of `size` that hold sequences whole, filled longest first, the fullest that takes it.

    Lengths are rounded up to a thousandth of a bin.

    Examples
    --------
    >>> packed_bins(np.array([3.0, 3.0, 2.0, 2.0, 2.0]), 6.0)
    2
    """
    grain = max(size / _GRAINS, 1.0)
    whole = int(size / grain)
    steps = np.minimum(np.ceil(lengths / grain), whole).astype(int).ravel()
    counts = np.bincount(steps, minlength=2)
    room = np.zeros(whole + 1, int)
    bins = 0
    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        for free in (np.flatnonzero(room[length:]) + length).tolist():
            left = _fill(room, free, length, left)
            if not left:
                break
        more = -(-left // (whole // length))
        room[whole] += more
        bins += more
        while left:
            left = _fill(room, whole, length, left)
    return bins


def _fill(room: Ints, free: int, length: int, left: int) -> int:
    """Put sequences into bins with so much room; returns how many are left."""
    fitting = free // length
    full = min(int(room[free]), left // fitting)
    room[free] -= full
    room[free - fitting * length] += full
    left -= full * fitting
    if left < fitting and left and room[free]:
        room[free] -= 1
        room[free - left * length] += 1
        return 0
    return left
