"""Campaigns on a calendar: order, idle time and growth by hand, files that cannot be."""

from __future__ import annotations

import json
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.api import schedule
from simulator.cli.main import app
from simulator.errors import InputError
from simulator.questions.job_schedule.answer import JobSchedule
from simulator.questions.job_schedule.list_scheduling import (
    Option,
    Queued,
    best_schedule,
    least_makespan,
    placed,
)

RUNNER = CliRunner()
HEAD = 'start = 2027-01-04\n[[parts]]\nname = "hall"\ncluster = "dgx-h100"\ngpus = {}\n{}'


def job(name: str, days: dict[int, float], more: str = "") -> str:
    takes = ", ".join(f"{gpus} = {value}" for gpus, value in days.items())
    return f'[[jobs]]\nname = "{name}"\ntakes = {{ {takes} }}\n{more}\n'


def scheduled(folder: Path, *jobs: str, gpus: int = 8, head: str = "", **more: Any) -> JobSchedule:
    path = folder / "campaign.toml"
    path.write_text(HEAD.format(gpus, head + "\n") + "".join(jobs))
    return schedule(path, processes=1, **more)


def queued(name: str, days: float, gpus: int = 8, after: tuple[int, ...] = ()) -> Queued:
    return Queued(name=name, options=(Option(part=0, gpus=gpus, days=days),), after=after)


def test_a_job_waits_for_those_before_it_whatever_the_order() -> None:
    """a (2 days) and b (3 days) side by side on 16, c (1 day) after both: from day 3."""
    jobs = [queued("a", 2.0), queued("b", 3.0), queued("c", 1.0, after=(0, 1))]
    for order in permutations(range(3)):
        assert placed(jobs, [16], order, [0, 0, 0]).rows[2].start == 3.0
    best = best_schedule(jobs, [16])
    assert best.makespan == 4.0 == least_makespan(jobs, [16])
    assert best.slowdowns == (1.0, 1.0, 1.0)  # c could not start sooner


def test_chains_of_many_jobs_keep_their_order() -> None:
    """Too many to try all: three chains of four on 16, each job 8 wide; 4 x (1 + ... ) by width."""
    jobs = []
    for chain in range(3):
        for link in range(4):
            after = () if link == 0 else (4 * chain + link - 1,)
            jobs.append(queued(f"{chain}.{link}", 1.0 + 0.1 * chain, after=after))
    best = best_schedule(jobs, [16])
    for chain, link in product(range(3), range(1, 4)):
        i = 4 * chain + link
        assert best.rows[i].start >= best.rows[i - 1].end
    assert best.makespan >= least_makespan(jobs, [16]) == pytest.approx(13.2 / 2)


def test_ablations_come_several_times_and_their_heir_waits_for_all(tmp_path: Path) -> None:
    """Four ablations of 8 for a day on 16: two days; the training then takes all for five."""
    answer = scheduled(
        tmp_path,
        job("ablation", {8: 1.0}, "times = 4"),
        job("training", {8: 10.0, 16: 5.0}, 'after = ["ablation"]\ndue_days = 6'),
        gpus=16,
        head="until_days = 10",
    )
    assert [j.name for j in answer.list.jobs][:2] == ["ablation 1", "ablation 2"]
    assert answer.schedule.rows[-1].start == 2.0 and answer.schedule.makespan == 7.0
    assert answer.date_of(7.0) == "2027-01-11"
    assert answer.late == ("training ends 1.00 days after day 6 (due)",)
    (idle,) = answer.idle
    assert (idle.gpus, idle.start_days, idle.end_days) == (16, 7.0, 10.0)


def test_what_is_used_and_what_is_idle_are_all_there_is(tmp_path: Path) -> None:
    jobs = [job(f"j{i}", {8: 1.0 + i / 3, 16: 0.6 + i / 5}) for i in range(5)]
    answer = scheduled(tmp_path, *jobs, gpus=32, head="until_days = 9")
    used = sum(row.option.gpus * row.option.days for row in answer.schedule.rows)
    idle = sum(x.gpus * (x.end_days - x.start_days) for x in answer.idle)
    assert used + idle == pytest.approx(32 * 9.0)


def test_twice_the_accelerators_halve_two_jobs_that_queue(tmp_path: Path) -> None:
    answer = scheduled(tmp_path, job("a", {8: 2.0}), job("b", {8: 2.0}), more=8)
    (growth,) = answer.growth
    assert answer.schedule.makespan == 4.0
    assert (growth.makespan_days, growth.saved_days, growth.utilisation) == (2.0, 2.0, 1.0)


def test_days_of_a_training_and_of_rl_are_the_planners(tmp_path: Path) -> None:
    from simulator.api import predict, rl

    small = '[[jobs]]\nname = "t"\nmodel = { name = "gpt2-small" }\ngpus = [8]\n'
    small += "training = { sequence_length = 1024, global_batch = 64, tokens = 1e9 }\n"
    small += "layout = { tp = 1, pp = 1, cp = 1, micro_batch = 8, sharding = 'zero1' }\n"
    learning = {"prompts": 16, "samples": 4, "answer_tokens": 200}
    words = ", ".join(f"{name} = {value}" for name, value in learning.items())
    learnt = '[[jobs]]\nname = "l"\nmodel = { name = "gpt2-small" }\ngpus = [8]\nrl_steps = 1000\n'
    learnt += "training = { sequence_length = 1024, global_batch = 64 }\n"
    learnt += f"layout = {{ tp = 1, pp = 1 }}\nrl = {{ {words} }}\n"
    answer = scheduled(tmp_path, small, learnt)
    train, learn = answer.schedule.rows
    alone = predict(
        model="gpt2-small", cluster="dgx-h100", gpus=8, sequence_length=1024, global_batch=64,
        tokens=1e9, tp=1, pp=1, cp=1, micro_batch=8, sharding="zero1",
    )  # fmt: skip
    assert train.option.days == pytest.approx(alone.days, rel=0.02)
    path = tmp_path / "rl.toml"
    path.write_text(
        '[model]\nname = "gpt2-small"\n[training]\nsequence_length = 1024\nglobal_batch = 64\n'
        '[cluster]\nname = "dgx-h100"\ngpus = 8\n[layout]\ntp = 1\npp = 1\n[rl]\n'
        + "\n".join(f"{name} = {value}" for name, value in learning.items())
    )
    step = rl(path, search=False).asked
    assert step is not None
    days = 1000 * step.step.step_time_s / 86_400.0
    assert days <= learn.option.days <= 1.1 * days


@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        (job("a", {8: 1.0}, 'after = ["b"]'), r"jobs\.0\.after: must name jobs of the file"),
        (job("a", {8: 1.0}, 'after = ["a"]'), r"jobs\.0\.after: must not wait for itself"),
        (
            job("a", {8: 1.0}, 'after = ["b"]') + job("b", {8: 1.0}, 'after = ["a"]'),
            "must not wait for itself",
        ),
        ('[[jobs]]\nname = "a"\ntakes = { many = 1.0 }\n', "must be days by number"),
        ('[[jobs]]\nname = "a"\n', r"jobs\.0\.model: required field"),
        (job("a", {8: 1.0}, 'model = { name = "gpt2-small" }'), "must stand without model"),
        (job("a", {8: 1.0}, "times = 0"), "times"),
    ],
)
def test_what_cannot_be_is_named(jobs: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        scheduled(tmp_path, jobs)


def test_screen_and_document(tmp_path: Path) -> None:
    path = tmp_path / "campaign.toml"
    jobs = job("a", {8: 2.0}) + job("b", {8: 2.0}, 'after = ["a"]\ndue_days = 3')
    path.write_text(HEAD.format(16, "") + jobs)
    result = RUNNER.invoke(app, ["schedule", str(path), "--more", "8", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "2027-01-06" in result.stdout and "What more would bring" in result.stdout
    result = RUNNER.invoke(app, ["schedule", str(path), "--json", "--jobs", "1"])
    document = json.loads(result.stdout)
    assert document["late"] and document["idle"][0]["part"] == "hall"
    assert document["jobs"][1]["after"] == ["a"] and document["growth"] == []
