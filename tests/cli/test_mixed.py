"""`[[cluster.groups]]` on the command line and in Python: played, planned and compared."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import simulator
from simulator.cli.main import app
from simulator.economics.price import load_price
from simulator.errors import InputError
from simulator.events.step.streams import STREAMS
from simulator.hardware.cluster import load_cluster

RUNNER = CliRunner(env={"COLUMNS": "160"})
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mixed-h100-a100.toml"
NO_CLOSED_FORM = "cluster.groups: servers of several kinds have no closed form, only `foreshard"

CASE = """
[model]
name = "llama-3.1-8b"
[training]
sequence_length = 4096
global_batch = 32
[cluster]
software = "megatron-core"
{groups}
[layout]
tp = 4
pp = 2
"""


FEW = ("--set", "layout.recompute=none", "--set", "layout.cp=1")


def scenario(folder: Path, *groups: tuple[str, int]) -> str:
    tables = "".join(f'[[cluster.groups]]\nname = "{n}"\ngpus = {g}\n' for n, g in groups)
    path = folder / "run.toml"
    path.write_text(CASE.format(groups=tables))
    return str(path)


def document(*arguments: str) -> dict[str, Any]:
    result = RUNNER.invoke(app, [*arguments, "--json"])
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refused(*arguments: str) -> str:
    result = RUNNER.invoke(app, [*arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return document("simulate", str(EXAMPLE))


def test_keys_of_groups_are_frozen(example: dict[str, Any]) -> None:
    groups = example["groups"]
    assert list(groups) == ["steady_s", "usd_per_step", "kinds", "ranks"]
    for kind in groups["kinds"]:
        assert list(kind) == [
            "name",
            "gpus",
            "alone_s",
            "without_others_s",
            "busy_s",
            "idle_s",
            "memory_total_bytes",
            "usable_bytes",
            "verdict",
            "usd_per_hour",
        ]
        assert list(kind["busy_s"]) == list(kind["idle_s"]) == list(STREAMS)
    for rank in groups["ranks"]:
        assert list(rank) == ["rank", "stage", "replicas", "gpus"]
    assert example["closed_form_s"] is example["closed_form_terms_s"] is None


def test_the_example_puts_half_of_the_stages_on_each_kind(example: dict[str, Any]) -> None:
    h100, a100 = example["groups"]["kinds"]
    assert (h100["name"], h100["gpus"]) == ("dgx-h100", 32)
    assert (a100["name"], a100["gpus"]) == ("dgx-a100", 32)
    on = [rank["gpus"] for rank in example["groups"]["ranks"]]
    assert on == [{"dgx-h100": 16, "dgx-a100": 0}] * 2 + [{"dgx-h100": 0, "dgx-a100": 16}] * 2
    assert [rank["replicas"] for rank in example["groups"]["ranks"]] == [[[0, 1]]] * 4
    assert h100["alone_s"] < example["step_time_s"] < a100["alone_s"]
    assert example["groups"]["steady_s"] == example["step_time_s"]
    assert example["pacing_rank"] in (2, 3)
    assert h100["idle_s"]["compute"] > a100["idle_s"]["compute"]
    alone = simulator.predict(
        model="llama-3.1-70b",
        cluster="dgx-h100",
        gpus=32,
        global_batch=128,
        sequence_length=8192,
        tp=8,
        pp=4,
    )
    assert h100["without_others_s"] == pytest.approx(alone.step_time_s)
    assert alone.step_time_s < example["step_time_s"] < a100["without_others_s"]
    for kind in (h100, a100):
        whole = kind["busy_s"]["compute"] + kind["idle_s"]["compute"]
        assert whole == pytest.approx(example["step_time_s"], rel=1e-9)


def test_each_kind_is_paid_at_its_own_price(example: dict[str, Any]) -> None:
    """Rented by the hour, power included: GPUs times price; a step is its share of the hour."""
    rates = []
    for kind in example["groups"]["kinds"]:
        price = load_price(load_cluster(kind["name"], 8).price)
        assert price.included_power and price.usd_per_gpu_hour is not None
        rates.append(32 * float(price.usd_per_gpu_hour))
        assert kind["usd_per_hour"] == pytest.approx(rates[-1], rel=1e-12)
    expected = sum(rates) * example["step_time_s"] / 3600.0
    assert example["groups"]["usd_per_step"] == pytest.approx(expected, rel=1e-12)


def test_without_a_price_there_is_no_cost(tmp_path: Path) -> None:
    path = scenario(tmp_path, ("dgx-h100", 8), ("h100-pcie-8", 8))
    kinds = document("simulate", path)["groups"]
    assert load_price(load_cluster("h100-pcie-8", 8).price).usd_per_gpu_hour is None
    assert kinds["usd_per_step"] is None and kinds["kinds"][1]["usd_per_hour"] is None


def test_the_screen_names_the_servers(tmp_path: Path) -> None:
    path = scenario(tmp_path, ("dgx-h100", 16), ("dgx-a100", 16))
    trace = tmp_path / "trace.json"
    result = RUNNER.invoke(app, ["simulate", path, "--trace", str(trace)])
    assert result.exit_code == 0, result.output
    for words in (
        "on 16 x h100-sxm (dgx-h100) + 16 x a100-sxm-80 (dgx-a100)",
        "closed form, all dgx-h100",
        "usable on the worst rank of dgx-h100",
        "usable on the worst rank of dgx-a100",
        "if all 32 GPUs were dgx-h100",
        "rank 0: stage 0 of replicas 0-3 on dgx-h100",
        "rank 1: stage 1 of replicas 0-3 on dgx-a100",
        "USD per step, each kind at its own price",
    ):
        assert words in result.stdout
    names = [
        event["args"]["name"]
        for event in json.loads(trace.read_text())["traceEvents"]
        if event["name"] == "process_name"
    ]
    assert names[:2] == [
        "rank 0 (of 16 GPUs alike) on dgx-h100",
        "rank 1 (of 16 GPUs alike) on dgx-a100",
    ]


def test_it_is_said_which_servers_are_too_small(tmp_path: Path) -> None:
    """Without sharding 18 bytes a parameter: half of 8 billion over 4 GPUs are above 16 GiB."""
    path = scenario(tmp_path, ("dgx-h100", 8), ("v100-pcie-16-8", 8))
    fields = ["--set", "training.precision=fp16", "--set", "layout.sharding=ddp"]
    found = document("simulate", path, *fields)
    assert [kind["verdict"] for kind in found["groups"]["kinds"]] == ["FITS", "OOM"]
    assert found["verdict"] == "OOM"


def test_what_has_no_closed_form_is_refused() -> None:
    said = refused("versus", str(EXAMPLE), "tp=4", "tp=8")
    assert said.startswith(f"{EXAMPLE}: {NO_CLOSED_FORM} plan`, `predict`, `compare` and")
    wrong = refused("size", str(EXAMPLE), "--gpus", "128", "--set", "training.tokens=1e10")
    assert "gpus: must be left out with cluster.groups, which are taken as they are, 64" in wrong
    assert "--figures: must be left out" in refused("predict", str(EXAMPLE), "--figures")


def test_size_says_what_limits_buy_on_the_servers_that_are_there(tmp_path: Path) -> None:
    path = scenario(tmp_path, ("dgx-h100", 8), ("dgx-a100", 8))
    small = ("model.name=llama-3.2-1b", "layout.pp=1", "layout.micro_batch=1")
    fields = (*FEW, *(word for one in small for word in ("--set", one)))
    given = (path, *fields, "--set", "training.tokens=1e9", "--price", "2")
    row = document("compare", *given, "--gpus", "8", "--confidence", "0.9")["rows"][0]
    found = document("size", *given, "--deadline", "400d", "--budget", "1e6")
    assert found["answer"]["cluster"] == "dgx-h100 + dgx-a100" and len(found["tried"]) == 1
    for name in ("days", "usd", "layout", "gpus"):
        assert found["answer"][name] == row[name], name
    half = 0.5 * row["planned_days"]["p90"]
    late = RUNNER.invoke(app, ["size", *given, "--deadline", f"{half}d", "--json"])
    said = json.loads(late.stdout)
    assert late.exit_code == 1 and said["answer"] is None
    assert said["compute"]["most_tokens"] == pytest.approx(0.5e9, rel=1e-6)


def test_predict_is_the_played_step_at_the_prices_of_each_kind(example: dict[str, Any]) -> None:
    """Steps by hand: 1e10 tokens in 128 sequences of 8,192; each kind paid by the hour."""
    found = document("predict", str(EXAMPLE), "--set", "training.tokens=1e10")
    (one,) = found["layouts"]
    assert one["step_time_s"] == example["step_time_s"] and found["groups"] == example["groups"]
    assert one["p10_s"] < one["step_time_s"] < one["p90_s"]
    steps = 1e10 / (128 * 8192)
    assert one["days"] * one["goodput"] * 86400 == pytest.approx(steps * one["step_time_s"])
    hourly = sum(kind["usd_per_hour"] for kind in found["groups"]["kinds"])
    assert one["usd"] == pytest.approx(hourly * 24 * one["days"])
    shown = RUNNER.invoke(app, ["predict", str(EXAMPLE), "--set", "training.tokens=1e10"])
    assert shown.exit_code == 0 and "the 32 dgx-h100 without the others" in shown.stdout


def test_python_plays_and_refuses_the_same(example: dict[str, Any]) -> None:
    step = simulator.simulate(EXAMPLE)
    assert step.step_time_s == example["step_time_s"]
    assert step.mixed is not None and step.mixed.kinds == ("dgx-h100", "dgx-a100")
    said = simulator.predict(EXAMPLE)
    assert said.step_time_s == step.step_time_s and said.memory_verdict == "FITS"
    assert list(said.to_frame()["name"]) == ["dgx-h100", "dgx-a100"]
    with pytest.raises(InputError, match="servers of several kinds"):
        simulator.versus(EXAMPLE, "tp=4", "tp=8")
    names: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 16}
    with pytest.raises(InputError, match="groups: must be left out of a job beside another"):
        simulator.simulate(**names, beside=[EXAMPLE])


@pytest.mark.parametrize("command", ["predict", "simulate", "plan"])
def test_one_group_is_the_cluster_that_it_names(tmp_path: Path, command: str) -> None:
    one = document(command, scenario(tmp_path, ("dgx-h100", 8), ("dgx-h100", 8)), *FEW)
    path = tmp_path / "plain.toml"
    path.write_text(CASE.format(groups='name = "dgx-h100"\ngpus = 16\n'))
    plain = document(command, str(path), *FEW)
    for found in (one, plain):
        for timed in ("scenario", "build_seconds", "run_seconds", "search"):
            found.pop(timed, None)
    assert one == plain


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpus", "32"), "cluster.groups: must stand without cluster.gpus: each group has its"),
        (("--cluster", "dgx-h100"), "cluster.groups: must stand without cluster.name: each group"),
        (("--set", "cluster.softwar=x"), "cluster.softwar: unknown field (did you mean 'software'"),
        (("--set", "training.precision=fp8"), "training.precision: a100-sxm-80 has no fp8"),
        (("--set", "layout.tp=7"), "layout.tp: must divide 64 attention heads"),
        (("--contention",), "network: must be left out (worn links, contention, jobs beside)"),
    ],
)
def test_scenarios_that_cannot_be(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("simulate", str(EXAMPLE), *arguments)


def test_groups_are_overridden_as_a_list() -> None:
    groups = '[{name="dgx-h100",gpus=32},{name="hgx-h200",gpus=32}]'
    found = document("simulate", str(EXAMPLE), "--set", f"cluster.groups={groups}")
    assert [kind["name"] for kind in found["groups"]["kinds"]] == ["dgx-h100", "hgx-h200"]


def test_a_layout_must_run_on_every_kind(tmp_path: Path) -> None:
    """DGX H100 servers have local drives; the HGX H200 servers of the profile have none."""
    path = scenario(tmp_path, ("dgx-h100", 8), ("hgx-h200", 8))
    fields = {
        "cluster.software": "deepspeed",
        "layout.tp": "1",
        "layout.pp": "1",
        "layout.sharding": "zero3",
        "layout.optimizer_offload": "nvme",
    }
    given = [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]
    said = refused("simulate", path, *given)
    assert "layout.optimizer_offload: must" in said and said.endswith("(on hgx-h200)\n")
    path = scenario(tmp_path, ("dgx-h100", 8), ("dgx-a100", 8))
    found = document("simulate", path, *given)["groups"]
    assert [rank["gpus"] for rank in found["ranks"]] == [{"dgx-h100": 8, "dgx-a100": 8}]
