"""Training between two interruptions: progress, stalls, and from where it would be repeated."""

from __future__ import annotations

from simulator.compiled import compiled
from simulator.events.run.run_state import (
    AGE_1,
    AGE_2,
    AT_1,
    AT_2,
    BEFORE_1,
    BEFORE_2,
    CHECKPOINTS,
    CLOCK,
    COUNT,
    DONE,
    LINES,
    MISSING,
    SINCE,
    SLOW,
    STALL,
)

TRAINING, STALLED, LOST, DOWN, STOPPED = range(5)
"""Kinds of stretches in a strip."""


@compiled
def line(run, since, kind):  # type: ignore[no-untyped-def]
    """Note a stretch that ends now, where a strip is asked for; joined to one of its kind."""
    state, strip = run.state, run.strip
    count = int(state[LINES])
    if len(strip) == 0 or state[CLOCK] <= since:
        return
    if count and strip[count - 1, 2] == kind and strip[count - 1, 1] >= since - 1e-9:
        strip[count - 1, 1] = state[CLOCK]
    elif count < len(strip):
        strip[count, 0], strip[count, 1], strip[count, 2] = since, state[CLOCK], kind
        state[LINES] = count + 1


@compiled
def undone(run, lost_s):  # type: ignore[no-untyped-def]
    """Call the last `lost_s` seconds of a strip lost: a failure undoes them."""
    state, strip = run.state, run.strip
    count, since = int(state[LINES]), state[CLOCK] - lost_s
    if len(strip) == 0 or lost_s <= 0.0 or count == 0:
        return
    while count > 1 and strip[count - 1, 0] >= since:
        count -= 1
    since = max(since, strip[count - 1, 0])
    strip[count - 1, 1] = since
    if count < len(strip):
        strip[count, 0], strip[count, 1], strip[count, 2] = since, state[CLOCK], LOST
        state[LINES] = count + 1


@compiled
def speed(rules, run):  # type: ignore[no-untyped-def]
    """Ideal seconds done in a second of training."""
    state = run.state
    factor = rules.slow_factor if state[SLOW] > 0.0 else 1.0
    missing = min(int(state[MISSING]), len(run.speed_lost) - 1)
    return max(1.0 - run.speed_lost[missing], 1e-9) / (factor * rules.stretch)


@compiled
def taken(rules, run):  # type: ignore[no-untyped-def]
    """Take a copy: it counts `after_s` later; each `copies`-th is a checkpoint to storage."""
    state = run.state
    state[BEFORE_1], state[AT_1], state[AGE_1] = state[AT_1], state[DONE], 0.0
    state[COUNT] += 1.0
    if state[COUNT] >= rules.copies:
        state[COUNT] = 0.0
        state[BEFORE_2], state[AT_2], state[AGE_2] = state[AT_2], state[DONE], 0.0


@compiled
def stall_of(rules, run):  # type: ignore[no-untyped-def]
    """Return the seconds that the next checkpoint holds training up."""
    last = run.state[COUNT] + 1.0 >= rules.copies
    return rules.stall_s + (rules.store_stall_s if last else 0.0)


@compiled
def whole_cycles(rules, run, left, fast):  # type: ignore[no-untyped-def]
    """Pass as many whole cycles as fit in `left` seconds at once; return the seconds they took."""
    state = run.state
    todo = (rules.work_s - state[DONE]) / fast
    each = rules.interval_s / fast + rules.stall_s
    if state[COUNT] == 0.0:  # whole checkpoints to storage
        length = rules.copies * each + rules.store_stall_s
        many = int(min(left, todo) / length) - 1
        if many > 0:
            work = many * rules.copies * rules.interval_s
            stalls = many * (rules.copies * rules.stall_s + rules.store_stall_s)
            state[DONE] += work
            state[AT_1], state[BEFORE_1] = state[DONE], state[DONE] - rules.interval_s
            state[AT_2] = state[DONE]
            state[BEFORE_2] = state[DONE] - rules.copies * rules.interval_s
            state[AGE_1], state[AGE_2] = 0.0, 0.0
            state[CLOCK] += many * length
            run.spent[rules.causes + 2, CHECKPOINTS] += stalls
            return many * length
    many = min(int(min(left, todo) / each) - 1, rules.copies - 2 - int(state[COUNT]))
    if many > 0:
        state[DONE] += many * rules.interval_s
        state[AT_1], state[BEFORE_1] = state[DONE], state[DONE] - rules.interval_s
        state[COUNT] += many
        state[AGE_1] = 0.0
        state[AGE_2] += many * each
        state[CLOCK] += many * each
        run.spent[rules.causes + 2, CHECKPOINTS] += many * rules.stall_s
        return many * each
    return 0.0


@compiled
def stalled(rules, run, left):  # type: ignore[no-untyped-def]
    """Wait for a checkpoint, `left` seconds at most; return the seconds it took."""
    state = run.state
    begun = state[CLOCK]
    step = min(left, state[STALL])
    state[STALL] -= step
    state[CLOCK] += step
    state[AGE_1] += step
    state[AGE_2] += step
    run.spent[rules.causes + 2, CHECKPOINTS] += step
    line(run, begun, STALLED)
    if state[STALL] <= 0.0:
        state[STALL] = 0.0
        taken(rules, run)
    return step


@compiled
def advance(rules, run, left):  # type: ignore[no-untyped-def]
    """Train for `left` seconds or until the work is done; true where it is."""
    state = run.state
    fast = speed(rules, run)
    slower = 1.0 - fast * rules.stretch  # share of training that slow or missing servers take
    drawn = len(run.strip) > 0
    while left > 0.0:
        if state[STALL] > 0.0:
            left -= stalled(rules, run, left)
            continue
        if state[SINCE] == 0.0 and not drawn:
            stalls = run.spent[rules.causes + 2, CHECKPOINTS]
            passed = whole_cycles(rules, run, left, fast)
            if passed > 0.0:
                left -= passed
                trained = passed - (run.spent[rules.causes + 2, CHECKPOINTS] - stalls)
                run.spent[rules.causes, 0] += trained * slower
                continue
        begun = state[CLOCK]
        due, end = (rules.interval_s - state[SINCE]) / fast, (rules.work_s - state[DONE]) / fast
        step = min(left, due, end)
        left -= step
        state[DONE] += step * fast
        state[SINCE] += step * fast
        state[CLOCK] += step
        state[AGE_1] += step
        state[AGE_2] += step
        run.spent[rules.causes, 0] += step * slower
        line(run, begun, TRAINING)
        if end <= step:
            return True
        if due <= step:
            state[SINCE] = 0.0
            state[STALL] = stall_of(rules, run)
            if state[STALL] <= 0.0:
                taken(rules, run)
    return False


@compiled
def rolled_back(rules, run, from_copies):  # type: ignore[no-untyped-def]
    """Go back to the last checkpoint that counts; return the ideal seconds that are lost."""
    state = run.state
    if rules.copies == 1 or not from_copies:
        place = state[AT_2] if state[AGE_2] >= rules.store_after_s else state[BEFORE_2]
    else:
        place = state[AT_1] if state[AGE_1] >= rules.after_s else state[BEFORE_1]
    lost = state[DONE] - place
    state[DONE] = place
    if from_copies and rules.copies > 1:
        keep_1 = place
        state[AT_1], state[BEFORE_1], state[AGE_1] = keep_1, keep_1, rules.after_s
        if state[AGE_2] < rules.store_after_s:  # what was being written is gone
            state[AT_2] = state[BEFORE_2]
        state[BEFORE_2], state[AGE_2] = state[AT_2], rules.store_after_s
    else:
        fresh(rules, run)
    state[SINCE], state[STALL] = 0.0, 0.0
    return lost


@compiled
def fresh(rules, run):  # type: ignore[no-untyped-def]
    """All that is done is safe: a checkpoint was loaded, or a whole one taken."""
    state = run.state
    state[AT_1], state[BEFORE_1], state[AGE_1] = state[DONE], state[DONE], rules.after_s
    state[AT_2], state[BEFORE_2], state[AGE_2] = state[DONE], state[DONE], rules.store_after_s
    state[SINCE], state[STALL], state[COUNT] = 0.0, 0.0, 0.0
