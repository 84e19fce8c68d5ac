"""The closed form of goodput against Daly, Young, Erlang and hand-worked cases."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.reliability.reliability_profile import Reliability, load_reliability, read_run
from simulator.reliability.run_outlook import Outlook, outlook, relief
from simulator.reliability.run_terms import Machine, run_terms
from simulator.reliability.spare_pool import pool_use

DAY = 86_400.0
SETS = ("mature", "new", "first-weeks", "bad")
Quiet = Callable[..., Reliability]


def machine(gpus: float = 1024, days: float = 30.0, **changes: float) -> Machine:
    """1 TB of checkpoints, a step of a second, servers of eight."""
    terms = {"step_s": 1.0, "checkpoint_bytes": 1e12, "replicas": 4.0, **changes}
    return Machine(gpus=gpus, node_gpus=8, work_s=days * DAY, writer_nodes=gpus / 8,
                   writer_gpus=gpus, **terms)  # fmt: skip


def look(run: Reliability, gpus: float = 1024, days: float = 30.0, **changes: float) -> Outlook:
    return outlook(run_terms(run, machine(gpus, days, **changes)))


def test_without_failures_a_run_is_ideal_but_for_its_checkpoints(quiet: Quiet) -> None:
    found = look(quiet(checkpoints={"interval_s": 1000.0}))
    # 1 TB at 128 servers x 5 GB/s but no more than 250 GB/s: 4 s for every 1,000 s
    assert found.goodput[0] == pytest.approx(1000.0 / 1004.0, rel=1e-12)
    assert look(quiet(), days=1.0).goodput[0] > 0.9999  # the best interval: one checkpoint


def test_memoryless_failures_match_daly(quiet: Quiet) -> None:
    """Daly 2006, equation 13: T = M exp(R/M) (exp((t + d)/M) - 1) W/t, restarts that can fail."""
    restart = {"schedule_s": 300.0, "communicators_s": 0.0}
    run = quiet(1e-2, checkpoints={"interval_s": 1800.0}, restart=restart)
    found = look(run)
    mean, load, delta = DAY / (1024 * 1e-2), 1e12 / 640e9, 4.0
    wall = mean * math.exp((300.0 + load) / mean) * math.expm1((1800.0 + delta) / mean) / 1800.0
    assert found.wall_s[0] == pytest.approx(wall * 30.0 * DAY, rel=1e-9)


def test_the_best_interval_is_dalys(quiet: Quiet) -> None:
    """Daly 2006, equation 37: sqrt(2 d M)(1 + sqrt(d/2M)/3 + d/18M) - d."""
    found = look(quiet(1e-3))
    mean, delta = DAY / (1024 * 1e-3), 4.0
    root = math.sqrt(delta / (2.0 * mean))
    daly = math.sqrt(2.0 * delta * mean) * (1.0 + root / 3.0 + root**2 / 9.0) - delta
    assert found.interval_s[0] == pytest.approx(daly, rel=2e-3)
    assert found.daly_s[0] == pytest.approx(math.sqrt(2.0 * delta * mean) - delta, rel=1e-12)


def test_a_background_that_takes_b_loses_b_more(quiet: Quiet) -> None:
    """First order: half an interval and the time of writing are lost at each failure."""
    slow = {"write_bytes_per_s": 1e10, "node_write_bytes_per_s": 1e10}
    checkpoints = {"mode": "async", "interval_s": 600.0, "copy_bytes_per_s": 1e15}
    found = look(quiet(1e-4, storage=slow, checkpoints=checkpoints))
    mean = DAY / (1024 * 1e-4)
    assert found.phases["lost work"][0] == pytest.approx((300.0 + 100.0) / mean, rel=2e-3)


def test_silent_corruption_costs_the_time_until_it_is_found(quiet: Quiet) -> None:
    causes = {"silent_corruption": {"per_device_day": 1e-5, "detection_s": 7200.0}}
    found = look(quiet(causes=causes, checkpoints={"interval_s": 600.0}))
    mean = DAY / (1024 * 1e-5)
    first_order = (7200.0 + 302.0) / mean
    assert found.phases["lost work"][0] == pytest.approx(first_order, rel=0.02)


def test_spares_run_out_as_erlang_says() -> None:
    """Erlang B with four servers and an offered load of 3: 0.2061 (tables of Erlang's formula)."""
    one = np.ones((1, 1))
    use = pool_use(3.0 * one, one[0], 0.0 * one, 3.0 * one, shrinks=False)
    # the run stops in state 4; what a failure finds is the chain of the states below it
    states = [3.0**n / math.factorial(n) for n in range(5)]
    assert states[4] / sum(states) == pytest.approx(0.2061, abs=5e-5)
    assert float(use.none[0, 0]) == pytest.approx(states[3] / sum(states[:4]), rel=1e-12)


def test_who_waits_is_let_go_by_the_first_repair_of_any_kind() -> None:
    """One spare, in repair for 1 h or 4 h with equal chance: the least of two exponentials."""
    one = np.ones((1, 1))
    waits = pool_use(np.ones((1, 2)), np.array([1.0, 4.0]), 0 * one, one, shrinks=False).waits_s
    least = {(a, b): 1.0 / (1.0 / a + 1.0 / b) for a in (1.0, 4.0) for b in (1.0, 4.0)}
    hand = [(least[1.0, own] + least[4.0, own]) / 2.0 for own in (1.0, 4.0)]
    assert waits[0] == pytest.approx(hand, rel=1e-3)


def test_the_time_lost_to_a_full_pool_varies_as_an_on_off_process() -> None:
    """No spares: on for 1/a, off for r: the variance is 2 (1/a)^2 r^2 / (1/a + r)^3 a second."""
    one = np.ones((1, 1))
    rate, repair = 0.5, 3.0
    use = pool_use(rate * repair * one, repair * one[0], 0 * one, 0 * one, shrinks=False)
    on = 1.0 / rate
    exact = 2.0 * on**2 * repair**2 / (on + repair) ** 3
    assert use.unsure_s[0, 0] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("keeps", "speed"), [(True, 1.0 / (0.2 + 0.8 * 5 / 4)), (False, 7 / 8)])
def test_a_batch_is_kept_in_longer_steps_or_shrinks(keeps: bool, speed: float) -> None:
    """8 replicas of 4 micro-batches lose one: 32 over 7 are 5 each, or 28 of 32 in the same time.

    A fifth of a step is fill, drain and optimizer, which no micro-batch repeats.
    """
    raw = {"spares": {"when_none": "shrink", "keep_batch": keeps}}
    run = read_run(raw, where="test")
    given = {"replicas": 8.0, "micro_batches": 4.0, "once_share": 0.2}
    terms = run_terms(run, machine(64, **given))
    assert terms.speed_lost[0, 0] == 0.0
    assert terms.speed_lost[0, 1] == pytest.approx(1.0 - speed, rel=1e-12)
    assert terms.speed_lost[0, 8] == 1.0


def test_the_facts_example_of_first_order() -> None:
    """2,048 servers failing every 3.1 h, 30 s to save, 10 min to restart: 3.7 + 3.7 + 5.4 %."""
    base = read_run({}, where="test")
    quiet = {name: {"per_device_day": 0.0} for name in base.causes}
    each = {"detection_s": 0.0, "diagnosis_s": 0.0, "replaced_fraction": 0.0}
    raw = {
        "causes": {**quiet, "node": {"per_device_day": 24.0 / 3.1 / 2048.0, **each}},
        "restart": {"schedule_s": 600.0, "communicators_s": 0.0, "warmup_s": 0.0,
                    "communicators_per_rank_s": 0.0, "failing_fraction": 0.0,
                    "manual_fraction": 0.0},
        "storage": {"queue_nodes": 0, "write_bytes_per_s": 1e12 / 30.0, "read_bytes_per_s": 1e15,
                    "node_read_bytes_per_s": 1e15},
        "checkpoints": {"mode": "sync"},
        "slow": {"per_node_day": 0.0, "tail_fraction": 0.0, "evaluate_every": 0},
        "maintenance": {"every_s": 0.0},
    }  # fmt: skip
    found = look(read_run(raw, where="test"), gpus=16384)
    assert found.interval_s[0] == pytest.approx(14 * 60, rel=0.05)
    assert 1.0 - found.goodput[0] == pytest.approx(0.127, abs=0.01)  # higher orders left out there


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("mode", ["sync", "async", "memory"])
def test_losses_add_up(name: str, mode: str) -> None:
    run = read_run({"set": name, "checkpoints": {"mode": mode}}, where="test")
    found = look(run, gpus=np.array([8.0, 64.0, 1024.0, 4096.0]))  # type: ignore[arg-type]
    assert found.finishes.all()
    total = found.goodput + sum(found.phases.values())
    assert total == pytest.approx(np.ones(4), abs=1e-12)
    plain = ("checkpoints", "slow servers", "maintenance", *found.terms.extras)
    of_causes = found.by_cause.sum(axis=1) + sum(found.phases[name] for name in plain)
    assert found.goodput + of_causes == pytest.approx(np.ones(4), abs=1e-9)
    assert all((share >= -1e-12).all() for share in found.phases.values())


def test_losses_of_stops_that_are_announced_add_up() -> None:
    """A server in a hundred a day is taken, ten minutes after that is said: 4 s save all."""
    causes = {"preemption": {"per_device_day": 0.01, "notice_s": 600.0}}
    found, never = (look(read_run({"causes": x}, where="test")) for x in (causes, {}))
    assert found.goodput[0] < never.goodput[0]
    assert found.phases["replacement"][0] > never.phases["replacement"][0]
    assert found.goodput + sum(found.phases.values()) == pytest.approx(1.0, abs=1e-12)


WORSE = st.sampled_from(
    [
        ("rate_factor", None),
        ("restart", "schedule_s"),
        ("restart", "communicators_per_rank_s"),
        ("restart", "failing_fraction"),
        ("slow", "per_node_day"),
        ("slow", "tail_fraction"),
        ("spares", "cold_s"),
        ("maintenance", "stop_s"),
    ]
)


@settings(max_examples=settings.default.max_examples // 4)
@given(WORSE, st.sampled_from(SETS), st.floats(1.01, 3.0), st.integers(3, 12))
def test_what_gets_worse_never_raises_goodput(
    field: tuple[str, str | None], name: str, times: float, size: int
) -> None:
    base = load_reliability(name)
    section, inner = field
    if inner is None:
        raw = {section: times * float(getattr(base, section))}
    else:
        value = times * float(getattr(getattr(base, section), inner))
        raw = {section: {inner: min(value, 0.95) if inner == "failing_fraction" else value}}
    worse = read_run({"set": name, **raw}, where="test")
    before, after = (look(run, gpus=8.0 * 2**size).goodput[0] for run in (base, worse))
    assert after <= before + 1e-6


@pytest.mark.parametrize("mode", ["sync", "async", "memory"])
def test_slower_storage_never_raises_goodput(mode: str) -> None:
    rates = [250e9 / 2**n for n in range(8)]
    runs = [
        read_run(
            {"checkpoints": {"mode": mode}, "storage": {"write_bytes_per_s": rate}}, where="test"
        )
        for rate in rates
    ]
    goodput = [look(run, gpus=4096).goodput[0] for run in runs]
    assert all(a >= b - 1e-9 for a, b in pairwise(goodput))


def test_storage_queues_above_four_servers() -> None:
    """The 504-B200 site: 16 % of 250 GB/s is left to 63 servers, and four are not slowed."""
    run = load_reliability("new")
    nodes = np.array([1.0, 4.0, 5.0, 63.0, 2048.0])
    terms = run_terms(
        run,
        Machine(gpus=8 * nodes, node_gpus=8, step_s=1.0, work_s=1.0, checkpoint_bytes=1e12,
                writer_nodes=nodes, writer_gpus=8 * nodes),
    )  # fmt: skip
    assert 1e12 / terms.write_s[:, 0] == pytest.approx([5e9, 20e9, 25e9, 40e9, 40e9])


def test_a_run_that_never_finishes_says_so() -> None:
    run = read_run({"rate_factor": 400.0}, where="test")
    terms = run_terms(run, machine(16384.0))
    found = outlook(terms)
    assert found.goodput[0] == 0.0 and np.isinf(found.wall_s[0])
    less = relief(terms)
    assert 0.0 < less < 1.0
    assert outlook(terms, scale=0.99 * less).finishes[0]
    assert not outlook(terms, scale=1.01 * less).finishes[0]


def test_lemons_sorted_out_fail_no_more() -> None:
    stay = look(read_run({"lemon_strikes": 0}, where="test"), gpus=4096, days=120.0)
    gone = look(read_run({"lemon_strikes": 1}, where="test"), gpus=4096, days=120.0)
    assert gone.goodput[0] > stay.goodput[0] + 0.005
    # half of the failures of hardware are theirs: that is all that can be won
    none = look(read_run({"lemon_strikes": 1, "rate_factor": 0.5}, where="test"), gpus=4096,
                days=120.0)  # fmt: skip
    assert gone.goodput[0] < none.goodput[0] + 0.005


@pytest.mark.parametrize("age_days", [0.0, 0.4, 30.0])
@pytest.mark.parametrize("shape", [0.5, 0.8, 1.0])
def test_failures_of_a_fleet_add_up_over_its_age(shape: float, age_days: float) -> None:
    """The integral of a rate that falls with age, constant on the first day of the fleet."""
    run = replace(load_reliability(), early_shape=shape, age_s=age_days * DAY)
    terms = run_terms(run, machine())
    moments = 20.0 * DAY * (np.arange(200_000) + 0.5) / 200_000
    whole = 20.0 * DAY * float(terms.ages(moments).mean())
    assert float(terms.aged_s(20.0 * DAY)) == pytest.approx(whole, rel=1e-5)
