"""Laws that hold whatever the figures: units of time, causes told apart or not, rows of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.files import Figure
from simulator.reliability.reliability_profile import Reliability, read_run
from simulator.reliability.run_outlook import Outlook, outlook
from simulator.reliability.run_terms import Machine, device_counts, run_terms

Quiet = Callable[..., Reliability]
AGED = 900 * 86_400.0
"""Beyond the first day of a fleet, over which its rates are constant, in either unit."""

RUN: dict[str, Any] = {
    "set": "bad", "early_shape": 0.7, "age_s": AGED, "lemon_strikes": 2, "lemon_fraction": 0.013,
    "lemon_failure_fraction": 0.31, "rate_factor": 0.57,
    "causes": {"silent_corruption": {"per_device_day": 3e-6},
               "preemption": {"per_device_day": 7e-5, "notice_s": 45.0}},
    "slow": {"per_node_day": 2.3e-3, "noticed_s": 1300.0, "repair_s": 41_000.0,
             "data_fraction": 0.017, "tail_fraction": 0.011, "collect_every": 37,
             "collect_steps": 0.9, "evaluate_every": 170, "evaluate_steps": 2.9},
    "maintenance": {"every_s": 910_000.0, "stop_s": 5_300.0},
    "restart": {"manual_fraction": 0.07, "manual_s": 2_900.0, "failing_fraction": 0.13,
                "retry_s": 190.0},
}  # fmt: skip


def over(under: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    both = {name: {**under[name], **table[name]} for name in under if name in table}
    return {**under, **table, **{k: v for k, v in both.items() if isinstance(v, dict)}}


def in_units(part: Any, unit: float) -> Any:
    """Figures of a record with a second that is `1 / unit` as long."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if dataclasses.is_dataclass(value):
            changed[field.name] = in_units(value, unit)
        elif isinstance(value, dict):
            changed[field.name] = {name: in_units(one, unit) for name, one in value.items()}
        elif isinstance(value, float):
            rate = field.name.endswith(("_bytes_per_s", "_day"))
            times = 1.0 / unit if rate else unit if field.name.endswith("_s") else 1.0
            more = float(value) * times
            changed[field.name] = Figure(more) if isinstance(value, Figure) else more
    return replace(part, **changed)


def machine(unit: float = 1.0, **changes: Any) -> Machine:
    """Servers of four, three replicas of odd sizes, a step of 11 s."""
    given: dict[str, Any] = {
        "gpus": np.array([12.0, 156.0, 1740.0, 4092.0]), "node_gpus": 4, "node_adapters": 3,
        "leaf_nodes": 7, "replicas": np.array([3.0, 13.0, 29.0, 93.0]), "micro_batches": 19.0,
        "once_share": 0.17, "step_s": 11.0 * unit, "work_s": 47 * 86_400.0 * unit,
        "checkpoint_bytes": 0.9e12, "writer_nodes": np.array([1.0, 3.0, 15.0, 41.0]),
        "writer_gpus": np.array([4.0, 12.0, 60.0, 164.0]),
    }  # fmt: skip
    return Machine(**{**given, **changes})


def look(run: Reliability, **changes: Any) -> Outlook:
    return outlook(run_terms(run, machine(**changes)))


@pytest.mark.parametrize(
    ("mode", "spares"),
    [("sync", {"hot": 1, "pool": 5}), ("async", {"when_none": "shrink"}), ("memory", {})],
)
def test_shares_do_not_hang_on_the_unit_of_time(mode: str, spares: dict[str, Any]) -> None:
    """All seconds twice as many and all rates half as large: the same shares, twice the seconds."""
    raw = over(RUN, {"checkpoints": {"mode": mode}, "spares": spares})
    plain = read_run(raw, where="test")
    one, two = look(plain), look(in_units(plain, 2.0), unit=2.0)
    assert one.finishes[:3].all()
    for shares in ("goodput", "by_cause", "training_share", "relative_deviation", "hot_spares"):
        assert getattr(two, shares) == pytest.approx(getattr(one, shares), rel=1e-6), shares
    for name, share in one.phases.items():
        assert two.phases[name] == pytest.approx(share, rel=1e-6, abs=1e-12), name
    for seconds in ("wall_s", "deviation_s", "daly_s"):
        assert getattr(two, seconds) == pytest.approx(2.0 * getattr(one, seconds), rel=1e-6)
    assert two.interval_s == pytest.approx(2.0 * one.interval_s, rel=1e-3)
    assert two.failures == pytest.approx(one.failures / 2.0, rel=1e-6)


@pytest.mark.parametrize(
    ("mode", "cause"),
    [("sync", "gpu"), ("async", "preemption"), ("memory", "silent_corruption"),
     ("memory", "leaf_switch"), ("memory", "gpu")],
)  # fmt: skip
def test_a_cause_told_apart_in_two_takes_what_it_took_as_one(mode: str, cause: str) -> None:
    """Failures of one kind under two names, three to one: nothing else of a run changes."""
    run = read_run(over(RUN, {"checkpoints": {"mode": mode}}), where="test")
    known = run.causes[cause]
    parts = {
        name: replace(known, per_device_day=Figure(share * float(known.per_device_day)))
        for name, share in ((cause, 0.75), ("another", 0.25))
    }
    one, two = look(run), look(replace(run, causes={**run.causes, **parts}))
    assert two.goodput == pytest.approx(one.goodput, rel=1e-9)
    assert two.deviation_s == pytest.approx(one.deviation_s, rel=1e-6)
    for name, share in one.phases.items():
        assert two.phases[name] == pytest.approx(share, rel=1e-9, abs=1e-12), name
    place = list(run.causes).index(cause)
    for of_cause in ("by_cause", "failures"):
        whole, split = getattr(one, of_cause)[:, place], getattr(two, of_cause)
        assert split[:, -1] == pytest.approx(whole / 4.0, rel=1e-9)
        assert split[:, place] == pytest.approx(whole * 0.75, rel=1e-9)


@pytest.mark.parametrize(("mode", "spares"), [("async", {}), ("memory", {"when_none": "shrink"})])
def test_a_row_of_a_table_is_what_it_is_alone(mode: str, spares: dict[str, Any]) -> None:
    run = read_run(over(RUN, {"checkpoints": {"mode": mode}, "spares": spares}), where="test")
    table = run_terms(run, machine())
    whole = outlook(table)
    for row in range(4):
        alone = outlook(table.take(row))
        assert alone.goodput[0] == pytest.approx(whole.goodput[row], rel=1e-6)
        assert alone.by_cause[0] == pytest.approx(whole.by_cause[row], rel=1e-6, abs=1e-12)
        assert alone.deviation_s[0] == pytest.approx(whole.deviation_s[row], rel=1e-6)
        assert whole.take([row]).wall_s[0] == whole.wall_s[row]


def test_terms_of_a_run_by_hand() -> None:
    """Two layouts of servers of four on leaves of seven: 3 servers, and 435 on 63 leaves."""
    raw = over(RUN, {
        "checkpoints": {"mode": "async", "copy_bytes_per_s": 3e9, "background_fraction": 0.07},
        "storage": {"queue_nodes": 0, "write_bytes_per_s": 9e9, "node_write_bytes_per_s": 2e9,
                    "read_bytes_per_s": 70e9, "node_read_bytes_per_s": 5e9},
        "restart": {"schedule_s": 83.0, "communicators_s": 17.0, "communicators_per_rank_s": 0.03,
                    "warmup_s": 29.0},
        "spares": {"pool_fraction": 0.021, "hot_fraction": 0.0121},
    })  # fmt: skip
    terms = run_terms(read_run(raw, where="test"), machine()).take([0, 2])
    assert terms.nodes[:, 0].tolist() == [3.0, 435.0]
    # 1 server writes 2 GB/s, 15 all 9; 3 servers read 15 GB/s, 435 all 70
    assert terms.write_s[:, 0] == pytest.approx([900 / 2, 900 / 9])
    assert terms.load_s[:, 0] == pytest.approx([900 / 15, 900 / 70])
    assert terms.copy_s[:, 0] == pytest.approx([900 / 4 / 3, 900 / 60 / 3])
    assert terms.stall_s[:, 0] == pytest.approx([75 + 0.07 * 450, 5 + 0.07 * 100])
    assert terms.background_s[:, 0] == pytest.approx([450, 100])
    assert terms.start_s[:, 0] == pytest.approx([100 + 0.03 * 12, 100 + 0.03 * 1740])
    assert terms.restart_s == pytest.approx(terms.start_s + terms.load_s + 29.0)
    assert terms.copy_restart_s == pytest.approx(terms.start_s + terms.copy_s + 29.0)
    assert terms.pool[:, 0].tolist() == [1.0, 10.0]  # 0.021 x 435 = 9.1
    assert terms.hot[:, 0].tolist() == [0.0, 5.0]  # 0.0121 x 435 = 5.3
    assert terms.lemons[:, 0].tolist() == [1.0, 6.0]  # 0.013 x 435 = 5.7
    assert terms.stretch[:, 0] == pytest.approx(1 + 0.011 + 0.017 + 0.9 / 37 + 2.9 / 170)
    row = machine(gpus=1740.0, replicas=29.0, writer_nodes=15.0, writer_gpus=60.0)
    assert device_counts(row) == {
        "gpu": 1740.0, "node": 435.0, "adapter": 3 * 435.0, "leaf": 63.0, "spine": 32.0,
    }  # fmt: skip
    one = machine(gpus=4.0, writer_gpus=4.0, replicas=1.0, writer_nodes=1.0)
    assert device_counts(one) == {"gpu": 4.0, "node": 1.0, "adapter": 0, "leaf": 0, "spine": 0}


@pytest.mark.parametrize(
    ("servers", "seconds"),
    # up to five servers 3 GB/s each; six and more share a tenth of 400, but no less than five reach
    [(1.0, 300 / 3), (5.0, 300 / 15), (6.0, 300 / 18), (13.0, 300 / 39), (14.0, 300 / 40)],
)
def test_servers_that_queue_share_what_is_left(servers: float, seconds: float) -> None:
    storage = {"queue_nodes": 5, "write_bytes_per_s": 400e9, "node_write_bytes_per_s": 3e9,
               "queued_write_fraction": 0.1}  # fmt: skip
    run = read_run(over(RUN, {"storage": storage}), where="test")
    terms = run_terms(run, machine(writer_nodes=servers, checkpoint_bytes=300e9))
    assert terms.write_s[0, 0] == pytest.approx(seconds)


@pytest.mark.parametrize("notice_s", [449.0, 450.0])
def test_a_notice_as_long_as_a_checkpoint_loses_no_work(notice_s: float) -> None:
    storage = {"queue_nodes": 0, "node_write_bytes_per_s": 2e9}
    causes = {"preemption": {"per_device_day": 1e-4, "notice_s": notice_s}}
    run = read_run(over(RUN, {"storage": storage, "causes": causes}), where="test")
    terms = run_terms(run, machine(writer_nodes=1.0))
    place = terms.causes.index("preemption")
    assert terms.lossless[:, place].tolist() == [notice_s >= 450.0] * 4
    assert not np.delete(terms.lossless, place, axis=1).any()


def test_planned_stops_take_their_checkpoint_and_their_restart(quiet: Quiet) -> None:
    """Every 10,000 s of a run: 700 s, a checkpoint of 4 s, a start of 300 s, loading."""
    times = {"schedule_s": 300.0}
    stops = {"every_s": 10_000.0, "stop_s": 700.0}
    run = quiet(maintenance=stops, restart=times, checkpoints={"interval_s": 1e9})
    given = {"gpus": 1024.0, "node_gpus": 8, "writer_nodes": 128.0, "writer_gpus": 1024.0}
    given |= {"step_s": 1.0, "work_s": 30 * 86_400.0, "checkpoint_bytes": 1e12, "replicas": 4.0}
    terms = run_terms(run, Machine(**given))
    found = outlook(terms)
    assert (terms.write_s[0, 0], terms.load_s[0, 0]) == (4.0, pytest.approx(1e12 / 640e9))
    pause = 700.0 + 4.0 + 300.0 + 1e12 / 640e9
    assert found.phases["maintenance"][0] == pytest.approx(pause / (10_000.0 + pause), rel=1e-6)
    assert found.goodput[0] == pytest.approx(10_000.0 / (10_000.0 + pause), rel=1e-6)


def test_servers_that_turn_slow_take_their_swap_and_slow_all_until_then(quiet: Quiet) -> None:
    """128 servers, each slow every 100 days: noticed after an hour, 9 minutes until another."""
    slow = {"per_node_day": 0.01, "noticed_s": 3600.0, "time_factor": 1.3, "repair_s": 1e3}
    run = quiet(slow=slow, spares={"hot": 1000, "hot_s": 540.0}, restart={"schedule_s": 60.0},
                checkpoints={"interval_s": 1e9})  # fmt: skip
    given = {"gpus": 1024.0, "node_gpus": 8, "writer_nodes": 128.0, "writer_gpus": 1024.0}
    given |= {"step_s": 1.0, "work_s": 30 * 86_400.0, "checkpoint_bytes": 1e12, "replicas": 4.0}
    found = outlook(run_terms(run, Machine(**given)))
    turned = 0.01 * 128 / 86_400
    swaps = turned / (1.0 + turned * 3600.0)
    swap = swaps * (540.0 + 4.0 + 60.0 + 1e12 / 640e9)
    share = turned * 3600.0 / (1.0 + turned * 3600.0)
    trains = (1.0 - swap) * (1.0 - share + share / 1.3)
    assert found.goodput[0] == pytest.approx(trains, rel=1e-4)


@pytest.mark.parametrize("load", [0.05, 0.4, 1.5])
def test_a_run_with_one_spare_waits_as_a_chain_of_three_states_does(
    load: float, quiet: Quiet
) -> None:
    """None, one or two servers in repair, the run standing still in the last: a, a and m, 2 m.

    Nothing else takes time, so that what is lost is the share of the last state.
    """
    repair_s, servers = 5_000.0, 128
    per_day = load / repair_s * 86_400.0 / servers
    causes = {"node": {"per_device_day": per_day, "replaced_fraction": 1.0, "repair_s": repair_s}}
    run = quiet(causes=causes, spares={"hot": 1, "pool": 1}, storage={"write_bytes_per_s": 1e15,
                "node_write_bytes_per_s": 1e15, "read_bytes_per_s": 1e15,
                "node_read_bytes_per_s": 1e15}, checkpoints={"interval_s": 0.5})  # fmt: skip
    given: dict[str, Any] = {
        "gpus": 1024.0, "node_gpus": 8, "writer_nodes": 128.0, "writer_gpus": 1024.0,
        "step_s": 0.1, "work_s": 900 * 86_400.0, "checkpoint_bytes": 1.0, "replicas": 4.0,
    }  # fmt: skip
    found = outlook(run_terms(run, Machine(**given)))
    waits = load**2 / 2 / (1.0 + load + load**2 / 2)
    assert found.phases["replacement"][0] == pytest.approx(waits, rel=0.01)
    assert found.goodput[0] == pytest.approx(1.0 - waits, rel=1e-3)
