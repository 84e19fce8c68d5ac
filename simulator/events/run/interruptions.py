"""From a failure to training again: what failed, who takes its place, restarts that fail."""

from __future__ import annotations

from simulator.compiled import compiled
from simulator.events.run.random_counter import exponential, uniform
from simulator.events.run.run_state import (
    AGE_2,
    AT_2,
    BEFORE_2,
    CLOCK,
    DETECTION,
    DIAGNOSIS,
    DONE,
    FAILED,
    FOUND_AT,
    FOUND_BY,
    GOOD,
    LOADING,
    LOST,
    MISSING,
    NEVER_S,
    OUT,
    REPLACEMENT,
    SLOW,
    SLOW_AT,
    START,
    WARMUP,
)
from simulator.events.run.training_time import (
    DOWN,
    STOPPED,
    fresh,
    line,
    rolled_back,
    speed,
    undone,
)
from simulator.reliability.run_terms import HARDWARE, PREEMPTION, SILENT


@compiled
def aged(rules, clock):  # type: ignore[no-untyped-def]
    """Multiplier of hardware rates at the fleet's age."""
    if rules.shape == 1.0:
        return 1.0
    return (max(rules.age_s + clock, 86400.0) / rules.reference_s) ** (rules.shape - 1.0)


@compiled
def total_rate(rules, clock):  # type: ignore[no-untyped-def]
    """Rate of all causes at a moment, lemons that are sorted out counted in."""
    factor, total = aged(rules, clock), 0.0
    for cause in range(rules.causes):
        total += rules.rate[cause] * (factor if rules.kind[cause] == HARDWARE else 1.0)
    return total


@compiled
def drawn_cause(rules, run, most):  # type: ignore[no-untyped-def]
    """Draw what fails now among rates that add up to `most` at most; -1 where nothing does."""
    factor = aged(rules, run.state[CLOCK])
    left = uniform(run.random) * most
    for cause in range(rules.causes):
        left -= rules.rate[cause] * (factor if rules.kind[cause] == HARDWARE else 1.0)
        if left <= 0.0:
            has_lemons = rules.strikes and rules.kind[cause] == HARDWARE and rules.single[cause]
            if has_lemons and uniform(run.random) <= rules.lemon_share:
                which = min(int(uniform(run.random) * rules.lemons), rules.lemons - 1)
                if run.strikes[which] >= rules.strikes:
                    return -1
                run.strikes[which] += 1
            return cause
    return -1


@compiled
def spend(run, cause, phase, seconds):  # type: ignore[no-untyped-def]
    """Let time pass for a phase of an interruption."""
    run.state[CLOCK] += seconds
    run.spent[cause, phase] += seconds


@compiled
def returned(run):  # type: ignore[no-untyped-def]
    """Take repaired servers back among the spares."""
    state, back = run.state, run.back
    place, count = 0, int(state[OUT])
    while place < count:
        if back[place] <= state[CLOCK]:
            count -= 1
            back[place] = back[count]
        else:
            place += 1
    state[OUT] = count


@compiled
def first_back(run):  # type: ignore[no-untyped-def]
    """When the first server is repaired."""
    first = NEVER_S
    for place in range(int(run.state[OUT])):
        first = min(first, run.back[place])
    return first


@compiled
def repairing(run, until):  # type: ignore[no-untyped-def]
    """Send a server to repair; beyond the room for them the last one gives way."""
    count = min(int(run.state[OUT]), len(run.back) - 1)
    run.back[count] = until
    run.state[OUT] = count + 1


@compiled
def replaced(rules, run, cause, repair_s):  # type: ignore[no-untyped-def]
    """Put a spare in the place of one server, or wait for one, or shrink."""
    state = run.state
    returned(run)
    free = int(state[OUT])
    repairing(run, state[CLOCK] + exponential(run.random, repair_s))
    if free < rules.hot:
        spend(run, cause, REPLACEMENT, rules.hot_s)
    elif free < rules.pool:
        spend(run, cause, REPLACEMENT, rules.cold_s)
    elif rules.shrinks:
        state[MISSING] = int(state[OUT]) - rules.pool
    else:
        spend(run, cause, REPLACEMENT, max(first_back(run) - state[CLOCK], 0.0))
        returned(run)


@compiled
def replaced_together(rules, run, cause):  # type: ignore[no-untyped-def]
    """The same for all servers below a switch: others take over, or the switch is waited for."""
    repair_s = exponential(run.random, rules.repair_s[cause])
    if rules.taken[cause] <= rules.hot:
        repair_s = rules.hot_s
    elif rules.taken[cause] <= rules.pool:
        repair_s = rules.cold_s
    spend(run, cause, REPLACEMENT, repair_s)


@compiled
def handled(rules, run, cause):  # type: ignore[no-untyped-def]
    """Notice, diagnose and replace."""
    run.counts[cause] += 1
    if rules.kind[cause] != SILENT:
        spend(run, cause, DETECTION, rules.detection_s[cause])
    if rules.kind[cause] != PREEMPTION:
        spend(run, cause, DIAGNOSIS, exponential(run.random, rules.diagnosis_s[cause]))
        if uniform(run.random) <= rules.manual:
            spend(run, cause, DIAGNOSIS, exponential(run.random, rules.manual_s))
    if uniform(run.random) <= rules.replaced[cause]:
        if rules.single[cause]:
            replaced(rules, run, cause, rules.repair_s[cause])
        else:
            replaced_together(rules, run, cause)


@compiled
def stopping_cause(rules, run, most):  # type: ignore[no-untyped-def]
    """Draw a cause that ends a restart: all but corruption, which no restart notices."""
    cause = drawn_cause(rules, run, most)
    if cause >= 0 and (rules.kind[cause] == SILENT or rules.lossless[cause]):
        return -1
    return cause


@compiled
def restarted(rules, run, cause, load_s):  # type: ignore[no-untyped-def]
    """Start processes, load, warm up; again where a failure comes between or the restart fails."""
    state = run.state
    whole = rules.start_s + load_s + rules.warmup_s
    while state[CLOCK] < rules.longest_s:
        most, begun, other = total_rate(rules, state[CLOCK]), state[CLOCK], -1
        fails_at = NEVER_S
        while most > 0.0:
            gap = exponential(run.random, 1.0 / most)
            if state[CLOCK] + gap >= begun + whole:
                break
            state[CLOCK] += gap
            other = stopping_cause(rules, run, most)
            if other >= 0:
                fails_at = state[CLOCK]
                break
        state[CLOCK] = begun
        if fails_at < NEVER_S:
            spend(run, cause, FAILED, fails_at - begun)
            handled(rules, run, other)
            continue
        if uniform(run.random) <= rules.failing:
            spend(run, cause, FAILED, whole + rules.retry_s)
            continue
        spend(run, cause, START, rules.start_s)
        spend(run, cause, LOADING, load_s)
        spend(run, cause, WARMUP, rules.warmup_s)
        break
    if state[MISSING] > 0.0:  # a restart takes in what was repaired by then
        returned(run)
        state[MISSING] = max(state[OUT] - rules.pool, 0.0)


@compiled
def failed(rules, run, cause):  # type: ignore[no-untyped-def]
    """A failure: work since the last checkpoint is lost."""
    begun = run.state[CLOCK]
    from_copies = rules.from_copies[cause]
    fast = speed(rules, run)
    lost = rolled_back(rules, run, from_copies)
    run.spent[cause, LOST] += lost * rules.stretch
    undone(run, lost / fast)
    handled(rules, run, cause)
    restarted(rules, run, cause, rules.copy_load_s if from_copies else rules.load_s)
    line(run, begun, DOWN)


@compiled
def announced(rules, run, cause):  # type: ignore[no-untyped-def]
    """A preemption long enough before for a checkpoint."""
    begun = run.state[CLOCK]
    spend(run, cause, REPLACEMENT, rules.write_s)
    fresh(rules, run)
    handled(rules, run, cause)
    restarted(rules, run, cause, rules.load_s)
    line(run, begun, DOWN)


@compiled
def corrupted(rules, run, cause):  # type: ignore[no-untyped-def]
    """Corruption that nobody sees yet; the checkpoint before it is remembered."""
    state = run.state
    if state[FOUND_AT] >= NEVER_S:
        state[FOUND_AT] = state[CLOCK] + rules.detection_s[cause]
        state[FOUND_BY] = cause
        written = state[AGE_2] >= rules.store_after_s
        state[GOOD] = state[AT_2] if written else state[BEFORE_2]


@compiled
def found(rules, run):  # type: ignore[no-untyped-def]
    """Corruption is found: back to the checkpoint before it."""
    state = run.state
    cause = int(state[FOUND_BY])
    begun = state[CLOCK]
    lost = max(state[DONE] - state[GOOD], 0.0)
    run.spent[cause, LOST] += lost * rules.stretch
    undone(run, lost / speed(rules, run))
    state[DONE] = min(state[DONE], state[GOOD])
    state[FOUND_AT] = NEVER_S
    fresh(rules, run)
    handled(rules, run, cause)
    restarted(rules, run, cause, rules.load_s)
    line(run, begun, DOWN)


@compiled
def planned(rules, run):  # type: ignore[no-untyped-def]
    """Maintenance: a checkpoint, the pause, a restart."""
    begun, row = run.state[CLOCK], rules.causes + 1
    run.counts[row] += 1
    spend(run, row, REPLACEMENT, rules.write_s)
    fresh(rules, run)
    spend(run, row, REPLACEMENT, rules.stop_s)
    restarted(rules, run, row, rules.load_s)
    line(run, begun, STOPPED)


@compiled
def sorted_out(rules, run):  # type: ignore[no-untyped-def]
    """A slow server is replaced, or missing ones are put back: a checkpoint and a restart."""
    state = run.state
    begun, row = state[CLOCK], rules.causes
    run.counts[row] += 1
    spend(run, row, REPLACEMENT, rules.write_s)
    fresh(rules, run)
    returned(run)
    if state[SLOW] > 0.0 and state[SLOW_AT] <= begun:
        state[SLOW] = 0.0
        replaced(rules, run, row, rules.slow_repair_s)
        restarted(rules, run, row, rules.load_s)
        state[SLOW_AT] = state[CLOCK] + exponential(run.random, 1.0 / rules.slow_rate)
    else:
        restarted(rules, run, row, rules.load_s)
    state[MISSING] = max(state[OUT] - rules.pool, 0.0)
    line(run, begun, STOPPED)
