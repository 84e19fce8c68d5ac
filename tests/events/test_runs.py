"""Whole runs: what is played adds up, repeats itself, and agrees with the closed form."""

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.events.run.played_runs import STRETCHES, play_runs, strip_of
from simulator.reliability.reliability_profile import read_run
from simulator.reliability.run_outlook import Outlook, outlook
from simulator.reliability.run_terms import Machine, run_terms

DAY = 86_400.0


def look(gpus: float, raw: dict[str, object], days: float = 30.0, size: float = 5e12) -> Outlook:
    machine = Machine(
        gpus=gpus,
        node_gpus=8,
        step_s=5.0,
        work_s=days * DAY,
        checkpoint_bytes=size,
        writer_nodes=gpus / 8,
        writer_gpus=gpus,
        replicas=max(gpus // 64, 1),
    )
    return outlook(run_terms(read_run(raw, where="test"), machine))


@pytest.fixture(scope="module")
def usual() -> Outlook:
    return look(4096, {})


def test_same_seeds_same_bytes_whatever_the_workers(usual: Outlook) -> None:
    one, many = (play_runs(usual, seeds=37, workers=workers) for workers in (1, 5))
    assert one.wall_s.tobytes() == many.wall_s.tobytes()
    assert one.spent_s.tobytes() == many.spent_s.tobytes()
    later = play_runs(usual, seeds=7, first_seed=30)
    assert later.wall_s.tobytes() == one.wall_s[30:].tobytes()
    assert len(set(one.wall_s)) == 37


def test_what_is_lost_adds_up(usual: Outlook) -> None:
    played = play_runs(usual, seeds=20)
    whole = played.ideal_s + played.spent_s.sum(axis=(1, 2)) + sum(played.extras_s.values())
    assert whole == pytest.approx(played.wall_s, rel=1e-9)
    shares = played.lost_shares()
    goodput = played.ideal_s / played.wall_s.mean()
    assert goodput + sum(shares.values()) == pytest.approx(1.0, rel=1e-9)
    assert (played.spent_s >= -1e-6).all()


def test_without_failures_a_run_takes_what_the_closed_form_says() -> None:
    raw = {"rate_factor": 0.0, "slow": {"per_node_day": 0.0}, "maintenance": {"every_s": 0.0},
           "checkpoints": {"mode": "sync", "interval_s": 3600.0}}  # fmt: skip
    found = look(64, raw)
    played = play_runs(found, seeds=3)
    assert played.goodput == pytest.approx(np.full(3, found.goodput[0]), rel=1e-4)


def test_interruptions_come_as_often_as_their_rates_say(usual: Outlook) -> None:
    """Failures of GPUs: rate x GPU-days in which the run trains or restarts."""
    played = play_runs(usual, seeds=300)
    expected = played.interruptions()["gpu"]
    days = played.wall_s.mean() / DAY
    most = 4096 * 2.148e-4 * days
    assert 0.88 * most < expected < most
    share = expected / played.interruptions()["gpu_memory"]
    assert share == pytest.approx(2.148e-4 / 8.138e-5, rel=0.05)  # counts of Llama 3


def test_a_strip_covers_the_run(usual: Outlook) -> None:
    strip = strip_of(usual, seed=3)
    assert strip[0, 0] == 0.0
    assert (strip[1:, 0] == strip[:-1, 1]).all()
    assert strip[-1, 1] == pytest.approx(play_runs(usual, seeds=1, first_seed=3).wall_s[0])
    assert set(strip[:, 2].astype(int)) <= set(range(len(STRETCHES)))


GRID = [
    (64, {"set": "mature"}),
    (4096, {"set": "new", "checkpoints": {"mode": "memory"}}),
    (1024, {"set": "bad"}),
    (16384, {"set": "first-weeks"}),
    (16384, {"set": "new", "checkpoints": {"mode": "sync", "interval_s": 3000.0}}),
    (2048, {"set": "new", "spares": {"pool": 8, "hot": 2}}),
    (8192, {"set": "new", "lemon_strikes": 2, "slow": {"per_node_day": 1e-3}}),
    (512, {"causes": {"preemption": {"per_device_day": 0.02, "notice_s": 300.0}}}),
]


@pytest.mark.parametrize(("gpus", "raw"), GRID)
def test_closed_form_agrees_with_what_is_played(gpus: int, raw: dict[str, object]) -> None:
    found = look(gpus, raw)
    played = play_runs(found, seeds=200)
    mean = played.ideal_s / played.wall_s.mean()
    noise = 2.0 * played.goodput.std() / np.sqrt(200)
    assert abs(found.goodput[0] - mean) < 0.005 + noise
    assert found.deviation_s[0] == pytest.approx(played.wall_s.std(), rel=0.6)


def test_a_run_of_unknown_length_is_refused() -> None:
    with pytest.raises(InputError, match=r"training\.tokens"):
        play_runs(look(64, {}, days=float("nan")), seeds=1)


def test_a_hopeless_run_is_given_up() -> None:
    found = look(16384, {"rate_factor": 400.0, "checkpoints": {"interval_s": 1e4}})
    assert np.isinf(play_runs(found, seeds=1).wall_s).all()


def drawn(rng: np.random.Generator) -> tuple[float, dict[str, object]]:
    """A machine and a [run]: spares for all of what fails, for some, for none."""
    name = str(rng.choice(["mature", "new", "first-weeks", "bad"]))
    raw: dict[str, object] = {
        "set": name,
        "rate_factor": float(10 ** rng.uniform(-1.0, 0.7)),
        "restart": {
            "schedule_s": float(10 ** rng.uniform(1.0, 3.0)),
            "failing_fraction": float(rng.choice([0.0, 0.1, 0.4])),
            "manual_fraction": float(rng.choice([0.0, 0.05])),
        },
        "checkpoints": {"mode": str(rng.choice(["sync", "async", "memory"]))},
        "spares": {
            "hot_fraction": float(rng.choice([0.0, 0.01, 0.03])),
            "pool_fraction": float(rng.choice([0.0, 0.01, 0.03, 0.05, 0.1])),
            "when_none": str(rng.choice(["wait", "shrink"])),
            "keep_batch": bool(rng.choice([True, False])),
        },
        "slow": {
            "per_node_day": float(10 ** rng.uniform(-5.0, -3.0)),
            "time_factor": float(rng.choice([1.0, 1.06, 1.3])),
        },
        "early_shape": float(rng.choice([1.0, 0.6])),
        "age_s": 30 * DAY,
        "lemon_strikes": int(rng.choice([0, 3])),
        "causes": {
            "silent_corruption": {"detection_s": float(10 ** rng.uniform(2.0, 4.3))},
            "preemption": {"per_device_day": float(rng.choice([0.0, 0.01]))},
        },
        "maintenance": {"every_s": float(rng.choice([0.0, 3 * DAY, 14 * DAY]))},
    }
    return float(8 * 2 ** rng.integers(0, 14)), raw


@pytest.mark.evidence
@pytest.mark.parametrize("seed", range(4))
def test_closed_form_agrees_over_a_wide_grid(seed: int) -> None:
    """Within half a point of the mean where half of the time is kept, whatever the spares; one
    of a hundred may lie further off, none by a point."""
    rng = np.random.default_rng(seed)
    off = []
    for _ in range(60):
        gpus, raw = drawn(rng)
        found = look(gpus, raw, float(rng.choice([20.0, 60.0, 120.0])), 10 ** rng.uniform(10, 13.2))
        if found.goodput[0] < 0.4:
            continue
        played = play_runs(found, seeds=300)
        noise = 3.0 * played.goodput.std() / np.sqrt(300)
        mean = played.ideal_s / played.wall_s.mean()
        if mean > 0.5:
            off.append((abs(found.goodput[0] - mean) - noise, float(found.goodput[0]), gpus, raw))
    assert len(off) > 40
    assert [one for one in off if one[0] > 0.01] == []
    assert len([one for one in off if one[0] > 0.005]) <= 1
    assert np.median([one[0] for one in off]) < 0.001
