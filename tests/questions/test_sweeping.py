"""Grids: every combination, bad points reported, interrupted sweeps go on, back ends agree."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli

from simulator.errors import InputError
from simulator.files import Figure, figures, with_figure
from simulator.questions.compare.answer import offer_row
from simulator.questions.compare.offer import Asked
from simulator.questions.compare.offers import offer
from simulator.questions.sweep import answer as sweeping
from simulator.questions.sweep.answer import Grid, read_grid, sweep_grid
from simulator.scenario import make_scenario
from simulator.search import fastest as fastest_module
from simulator.search.fastest import fastest

COMMON = """
[training]
sequence_length = 1024
global_batch = 64
tokens = 1e10
[layout]
tp = 1
pp = 1
cp = 1
micro_batch = 1
sharding = "zero1"
"""
GRID = """
[grid]
"model.name" = ["llama-3.2-1b", "gpt2-xl"]
"cluster.name" = ["dgx-h100", "dgx-a100"]
"cluster.gpus" = "8..16"
"""


def grid(folder: Path, text: str = COMMON + GRID) -> Grid:
    path = folder / "grid.toml"
    path.write_text(text)
    return read_grid(path)


def test_every_combination_once_and_as_alone(tmp_path: Path) -> None:
    found = sweep_grid(grid(tmp_path), jobs=1)
    assert [row["point"] for row in found.rows] == list(range(1, 9))
    values = [(row["model.name"], row["cluster.name"], row["cluster.gpus"]) for row in found.rows]
    assert len(set(values)) == 8 and values[1] == ("llama-3.2-1b", "dgx-h100", 16)
    document = {name: dict(v) for name, v in found.grid.common.items()}
    document |= {"model": {"name": "gpt2-xl"}, "cluster": {"name": "dgx-a100", "gpus": 8}}
    alone = offer_row(offer(make_scenario(document), Asked()))
    assert {name: found.rows[6][name] for name in alone} == alone
    assert len(found.to_frame()) == 8


def test_grids_and_their_scenarios_are_yaml_as_well(tmp_path: Path) -> None:
    """The same values, of JSON, which YAML holds."""
    common = tomli.loads(COMMON)
    (tmp_path / "run.yaml").write_text(json.dumps(common))
    path = tmp_path / "grid.yaml"
    path.write_text(json.dumps({"scenario": "run.yaml", **tomli.loads(GRID)}))
    found, alike = read_grid(path), grid(tmp_path)
    assert [x.document for x in found.points()] == [x.document for x in alike.points()]


def test_a_bad_point_is_named_and_the_others_run(tmp_path: Path) -> None:
    text = COMMON + GRID.replace('"dgx-a100"', '"dgx-a101"').replace('"8..16"', "[8, 12]")
    found = sweep_grid(grid(tmp_path, text), jobs=1)
    good = [row for row in found.rows if row["problem"] is None]
    assert [row["point"] for row in good] == [1, 5] and all(row["feasible"] for row in good)
    problem = str(found.rows[1]["problem"])
    assert f"{tmp_path / 'grid.toml'}: point 2: cluster.gpus: must be at most 8" in problem
    assert "did you mean 'dgx-a100'" in str(found.rows[2]["problem"])


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Points that were searched, each in no time."""
    numbers: list[int] = []

    def known(point: Any, *_: Any) -> tuple[int, dict[str, Any]]:
        if numbers and numbers[-1] == -1:
            raise KeyboardInterrupt
        numbers.append(point.number)
        return point.number, {"problem": None, "feasible": True, "twice": 2 * point.number}

    monkeypatch.setattr(sweeping, "_row", known)
    return numbers


def test_an_interrupted_sweep_goes_on(tmp_path: Path, searched: list[int]) -> None:
    made = grid(tmp_path)

    def stop(done: int, _: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep_grid(made, folder=tmp_path, jobs=1, progress=stop)
    assert searched == [1, 2, 3, 4]  # two sizes are searched together
    with (tmp_path / "points.jsonl").open("a") as file:
        file.write('{"key": "cut o')  # as if the machine had gone down while it wrote
    found = sweep_grid(made, folder=tmp_path, jobs=1)
    assert searched == [1, 2, 3, 4, *range(4, 9)] and found.known == 3
    assert [row["twice"] for row in found.rows] == list(range(2, 18, 2))
    again = sweep_grid(made, folder=tmp_path, jobs=1)
    assert len(searched) == 9 and again.known == 8 and again.rows == found.rows


def test_what_changes_a_result_makes_it_new(
    tmp_path: Path, searched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = grid(tmp_path)
    sweep_grid(made, folder=tmp_path, jobs=1)
    assert sweep_grid(made, folder=tmp_path, jobs=1, asked=Asked(region="france")).known == 0
    own = tmp_path / "own" / "prices"
    own.mkdir(parents=True)
    (own / "mine.toml").write_text("included_power = true\n")
    monkeypatch.setenv("FORESHARD_PROFILES", str(own.parent))
    assert sweep_grid(made, folder=tmp_path, jobs=1).known == 0
    assert len(searched) == 24


def test_a_grid_takes_a_scenario_and_its_own_over_it(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[model]\nname = "gpt2-xl"\n[cluster]\nname = "dgx-h100"\n')
    text = 'scenario = "run.toml"\n[cluster]\nsoftware = "megatron-core"\n[grid]\n'
    made = grid(tmp_path, text + '"cluster.gpus" = [8]')
    (point,) = made.points()
    assert point.document["model"] == {"name": "gpt2-xl"}
    assert point.document["cluster"] == {
        "name": "dgx-h100", "software": "megatron-core", "gpus": 8,
    }  # fmt: skip


def test_a_grid_varies_any_section_and_what_lies_deep_in_it(tmp_path: Path) -> None:
    text = COMMON + '[economics]\nbasis = "on demand"\n[grid]\n"cluster.gpus" = [8]\n'
    text += '"model.name" = ["gpt2-xl"]\n"cluster.name" = ["dgx-h100"]\n'
    text += '"economics.rent.on_demand_usd_per_gpu_hour" = [2.0, 4.0]\n'
    made = grid(tmp_path, text)
    rents = [point.document["economics"]["rent"] for point in made.points()]
    assert [rent["on_demand_usd_per_gpu_hour"] for rent in rents] == [2.0, 4.0]
    low, high = sweep_grid(made, jobs=1).rows
    assert (low["usd_per_gpu_hour"], high["usd_per_gpu_hour"]) == (2.0, 4.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (COMMON, "grid: required section is missing"),
        ("[gird]\n", "unknown section (did you mean 'grid'?)"),
        ("[grid]\ngpus = [8]\n", 'must be "section.field"'),
        ('[grid]\n"cluster.gpus" = []\n', "must be a list of values"),
        ('[grid]\n"cluster.gpus" = [8, 8]\n', "must have every value once"),
        ('[grid]\n"cluster.gpus" = "16..8"\n', "from the smaller to the larger"),
        ('[grid]\n"a.b" = [1]\n"cluster.gpus" = 8\n', "must be a list of values"),
        ('[model]\nname = "x"\n[grid]\n"model.name.x" = [1]\n', "model.name must be a table"),
        ("scenario = 3\n[grid]\n", "must be the path of a file"),
    ],
)
def test_wrong_grids(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        grid(tmp_path, text)
    assert words in str(error.value) and "grid.toml" in str(error.value)


@pytest.mark.evidence
def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    made = grid(tmp_path)
    assert sweep_grid(made, jobs=2).rows == sweep_grid(made, jobs=1).rows


@pytest.mark.evidence
def test_a_dask_cluster_gives_the_same_though_a_worker_dies(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    made = grid(tmp_path, COMMON + GRID.replace('"8..16"', "[8, 16, 24, 32, 40, 48]"))
    alone = sweep_grid(made, jobs=1)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        killed: list[int] = []

        def kill_one(done: int, _: int) -> None:
            if not killed:
                worker = next(iter(cluster.workers.values()))
                killed.append(worker.process.process.pid)
                os.kill(killed[0], signal.SIGKILL)

        found = sweep_grid(
            made, folder=tmp_path, scheduler=cluster.scheduler_address, progress=kill_one
        )
    assert killed and found.rows == alone.rows
    lines = (tmp_path / "points.jsonl").read_text().splitlines()
    keys = [json.loads(line)["key"] for line in lines]
    assert len(keys) == len(set(keys)) == len(made) == 24


@pytest.mark.evidence
def test_a_ray_cluster_gives_the_same_though_a_worker_dies(tmp_path: Path) -> None:
    """A cluster of its own, joined by its address as a user would."""
    ray = pytest.importorskip("ray")
    made = grid(tmp_path, COMMON + GRID.replace('"8..16"', "[8, 16, 24, 32, 40, 48]"))
    alone = sweep_grid(made, jobs=1)
    here = Path(ray.__file__).parent
    options = ["--head", "--block", "--num-cpus=2", "--port=0", "--include-dashboard=false"]
    paths = os.pathsep.join([*filter(None, sys.path), str(here.parent)])
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", *options],
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert head.stdout is not None
    lines = (re.search(r"--address='([^']+)'", line) for line in head.stdout)
    address = next(filter(None, lines))
    killed: list[int] = []

    def kill_one(done: int, _: int) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            words = _command(process)
            if not killed and words.startswith("ray::_search"):
                killed.append(int(process.name))
                os.kill(killed[0], signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        try:
            found = sweep_grid(
                made, folder=tmp_path, scheduler=address[1], backend="ray", progress=kill_one
            )
        finally:
            head.terminate()
            head.wait(timeout=60)
    assert killed and found.rows == alone.rows
    written = (tmp_path / "points.jsonl").read_text().splitlines()
    keys = [json.loads(line)["key"] for line in written]
    assert len(keys) == len(set(keys)) == len(made) == 24


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:  # it has ended
        return ""


@pytest.mark.evidence
@pytest.mark.parametrize(("backend", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_nothing_answers_at_a_wrong_address(tmp_path: Path, backend: str, package: str) -> None:
    pytest.importorskip(package)
    with pytest.raises(InputError, match="--scheduler: nothing answers"):
        sweep_grid(grid(tmp_path), scheduler="tcp://127.0.0.1:1", backend=backend)


def test_a_back_end_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for backend, package in (("dask", "distributed"), ("ray", "ray")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(InputError, match=rf"pip install 'foreshard\[{backend}\]'"):
            sweep_grid(grid(tmp_path), scheduler="127.0.0.1:1", backend=backend)


def test_another_price_searches_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Money follows from one search: twice the price is twice the bill, of the same layout."""
    asked = list[str]()
    for name in ("explore_scenario", "explore_sizes"):
        whole = getattr(fastest_module, name)
        heard = lambda *a, _of=(name, whole), **how: asked.append(_of[0]) or _of[1](*a, **how)  # noqa: E731
        monkeypatch.setattr(fastest_module, name, heard)
    monkeypatch.setattr(fastest_module, "_known", OrderedDict())
    text = """
[model]
name = "llama-3.2-1b"
[cluster]
name = "dgx-h100"
[grid]
"cluster.gpus" = [8, 16]
"economics.usd_per_gpu_hour" = [2.0, 4.0]
"""
    rows = sweep_grid(grid(tmp_path, COMMON + text), jobs=1).rows
    assert asked == ["explore_sizes"]
    for cheap, dear in (rows[:2], rows[2:]):
        assert dear["usd_p50"] == pytest.approx(2.0 * cheap["usd_p50"], rel=1e-9)
        assert (dear["layout"], dear["step_time_s"]) == (cheap["layout"], cheap["step_time_s"])


def test_sizes_searched_together_say_what_each_says_alone(tmp_path: Path) -> None:
    """With two prices, a size that does not divide and one on which nothing fits."""
    text = """
[model]
name = "llama-3.1-8b"
[cluster]
name = "dgx-h100"
[training]
sequence_length = 4096
global_batch = 96
tokens = 1e10
[grid]
"cluster.gpus" = [8, 16, 32, 50, 48]
"economics.usd_per_gpu_hour" = [2.0, 4.0]
"""
    made = grid(tmp_path, text)
    rows = sweep_grid(made, jobs=1).rows
    assert {row["cluster.gpus"] for row in rows if row["problem"]} == {50}
    for point, row in zip(made.points(), rows, strict=True):
        if row["problem"] is None:
            fastest_module._known.clear()
            alone = offer_row(offer(make_scenario(point.document), Asked()))
            assert {name: row[name] for name in alone} == alone


def test_a_figure_less_sure_is_searched_again() -> None:
    """Grades and spreads order the fastest: a key of numbers alone would call them the same."""
    document = {
        "model": {"name": "llama-3.1-8b"},
        "cluster": {"name": "dgx-a100", "gpus": 8},
        "training": {"tokens": 1e9, "global_batch": 64, "sequence_length": 2048},
    }
    sure = make_scenario(document)
    node = sure.cluster.node
    name, figure = next(iter(figures(node)))
    wider = Figure(float(figure), "assumed", figure.source, figure.date, 0.9)
    group = replace(sure.cluster.groups[0], node=with_figure(node, name, wider))
    unsure = replace(sure, cluster=replace(sure.cluster, groups=(group,)))
    assert fastest(sure) is fastest(make_scenario(document))
    assert fastest(unsure) is not fastest(sure)
