"""Admission: what jobs of each scheduler ask for is read, held against limits, refused by code."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.economics.planning_factor import Span
from simulator.interop.launch_files.job_manifests import read_manifest
from simulator.questions.admit.answer import slurm_seconds, would_be_allowed
from simulator.questions.compare.offer import Asked, Offer

pytestmark = pytest.mark.usefixtures("searched_once")
RUNNER = CliRunner()
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/admission/trainjob.yaml"
ON = ["--cluster", "dgx-h100"]


def command_of_the_example() -> str:
    return str(yaml.safe_load(EXAMPLE.read_text())["spec"]["trainer"]["args"][0])


def jobs() -> dict[str, str]:
    """The same command as schedulers take it, for 4 servers of 8."""
    command = command_of_the_example()
    given = command.replace("$PET_NNODES", "4").replace("$PET_NPROC_PER_NODE", "8")
    container = {
        "name": "pytorch",
        "image": "x",
        "command": ["bash", "-c", given],
        "resources": {"limits": {"nvidia.com/gpu": 8}},
    }
    pod = {"spec": {"containers": [container]}}
    replicas = {
        "Master": {"replicas": 1, "template": pod},
        "Worker": {"replicas": 3, "template": deepcopy(pod)},
    }
    sky = command.replace("$PET_NNODES", "$SKYPILOT_NUM_NODES")
    sky = sky.replace("$PET_NPROC_PER_NODE", "$SKYPILOT_NUM_GPUS_PER_NODE")
    pytorch = {"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": replicas}}
    head = "num_nodes: 4\nresources:\n  accelerators: H100:8\nrun: |\n"
    task = head + "".join(f"  {line}\n" for line in sky.splitlines())
    workload = {
        "distributedFramework": "PyTorch",
        "workers": {"value": "3"},
        "gpuDevicesRequest": {"value": 8},
        "command": {"value": "torchrun"},
        "arguments": {"value": re.sub(r"torchrun|--n\w+ \d\b|\\\n", "", given)},
    }
    submit = "runai training pytorch submit llama --workers 3 --gpu-devices-request 8 --command -- "
    return {
        "workload.yaml": yaml.safe_dump({"kind": "DistributedWorkload", "spec": workload}),
        "submit.sh": submit + re.sub(r"--n\w+ \d\b", "", given),
        "job.sbatch": f"#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun {given}",
        "trainjob.yaml": EXAMPLE.read_text(),
        "pytorchjob.yaml": yaml.safe_dump({"apiVersion": "kubeflow.org/v1", **pytorch}),
        "task.yaml": task,
    }


def admitted(path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    result = RUNNER.invoke(app, ["admit", str(path), *ON, *options, "--json"])
    return result.exit_code, json.loads(result.stdout) if result.exit_code != 2 else {}


@pytest.mark.parametrize("name", list(jobs()))
def test_every_scheduler_s_job_is_the_same_run(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(jobs()[name])
    code, document = admitted(path)
    assert code == 0, document
    fields = {field["field"]: field["value"] for field in document["from"]["fields"]}
    assert fields["layout.tp"] == 2 and fields["training.global_batch"] == 256
    assert fields["cluster.gpus"] == 32
    assert document["memory"]["verdict"] == "FITS"


@pytest.mark.evidence
def test_the_end_is_held_against_the_time_that_there_is() -> None:
    """21e9 tokens in 0.9 days on 32 H100, as the prediction itself says: 7 days do, half a day
    does not, and a job twice as large does."""
    code, document = admitted(EXAMPLE, "--within", "7d")
    hours = document["ends"]["hours"]
    assert code == 0 and hours["p10"] < hours["p50"] < hours["p90"] < 168
    between = f"{(hours['p10'] + hours['p90']) / 2:.3f}h"
    assert admitted(EXAMPLE, "--within", between)[0] == 3
    code, document = admitted(EXAMPLE, "--within", f"{0.7 * hours['p10']:.3f}h")
    assert code == 1 and document["decision"] == "refuse"
    assert document["smallest_request"]["gpus"] > 32
    assert document["smallest_request"]["hours_p90"] <= 0.7 * hours["p10"]


def test_the_cost_is_held_against_the_cap() -> None:
    code, document = admitted(EXAMPLE, "--budget", "1M")
    usd = document["cost"]["usd"]
    assert code == 0 and usd["p10"] < usd["p90"] < 1e6
    assert admitted(EXAMPLE, "--budget", f"{usd['p10'] / 2:.0f}")[0] == 1
    assert admitted(EXAMPLE, "--budget", f"{(usd['p10'] + usd['p90']) / 2:.0f}")[0] == 3


def test_a_goal_is_a_limit_of_the_job_too() -> None:
    """21B tokens take most of a day and some 2,000 USD: an hour and 100 USD are too little."""
    late, early = "goal.deadline_days=0.04", ["--within", "3d"]
    code, told = admitted(EXAMPLE, "--set", late, "--set", "goal.budget_usd=100")
    assert code == 1 and told["decision"] == "refuse"
    assert told["ends"]["limit_hours"] == pytest.approx(0.96)
    assert told["cost"]["budget_usd"] == 100
    code, told = admitted(EXAMPLE, "--set", late, *early, "--budget", "1M")
    assert code == 0 and told["ends"]["limit_hours"] == 72, "what is typed comes first"


def test_each_limit_has_its_chance_with_what_runs_took_on_top_and_without() -> None:
    """At P90 of the hours it is nine in ten; of the same run 1.39 times as long it is less."""
    hours = admitted(EXAMPLE, "--within", "7d")[1]["ends"]["hours"]
    options = ("--within", f"{hours['p90']:.3f}h", "--budget", "10k")
    _, document = admitted(EXAMPLE, *options)
    ends, cost = document["ends"], document["cost"]
    assert ends["chance_without_factor"] == pytest.approx(0.9, abs=2e-3)
    assert 0.05 < ends["chance"] < 0.5, "P90 is 1.2 times P50 at most"
    assert cost["chance"] < cost["chance_without_factor"]
    said = {reason["about"]: reason["text"] for reason in document["reasons"]}
    assert "chance to end in time (90.0 % without the planning factor)" in said["end"]
    assert "chance to stay below it" in said["cost"] and "assumed)" in said["cost"]
    idle = admitted(EXAMPLE, *options, "--set", "goal.ideal=true")[1]["ends"]
    assert idle["chance"] == idle["chance_without_factor"]


def test_a_request_is_held_to_the_rule_of_the_decision_itself() -> None:
    """0.50 days at P90 of 0.55: allowed, though published runs took more than that on top."""
    days, planned = Span(p50=0.45, log_spread=0.08), Span(p50=0.62, log_spread=0.33)
    offer = Offer(
        cluster="c", gpus=64, feasible=True, memory_verdict="FITS", days=days, planned_days=planned
    )
    assert would_be_allowed(offer, Asked(deadline_days=0.55))
    assert not would_be_allowed(offer, Asked(deadline_days=0.45))
    assert not would_be_allowed(replace(offer, memory_verdict="TIGHT"), Asked(deadline_days=0.55))
    assert not would_be_allowed(offer, Asked(budget_usd=1e9)), "what it costs nobody knows"


@pytest.mark.evidence
def test_the_smallest_request_is_one_that_would_be_allowed() -> None:
    """21e9 tokens take 0.9 days on 32 H100: 15 hours are too few there, and enough on 64, though
    not for what published runs took on top (1.39 times as long, 2.12 at P90), which is said."""
    code, document = admitted(EXAMPLE, "--within", "15h")
    request = document["smallest_request"]
    assert code == 1 and request["gpus"] == 64
    assert 9.0 < request["hours_p90"] < 15.0
    assert 0.2 < request["deadline_chance"] < 0.8 and request["budget_chance"] is None
    text = RUNNER.invoke(app, ["admit", str(EXAMPLE), *ON, "--within", "15h"]).stdout
    assert "with what published runs took on top:" in text


def test_a_layout_without_room_is_refused_with_a_request_that_has_it(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(EXAMPLE.read_text().replace("--micro-batch-size 1", "--micro-batch-size 8"))
    code, document = admitted(path)
    assert code == 1 and document["memory"]["verdict"] == "OOM"
    assert document["smallest_request"]["gpus"] <= 32


def test_a_layout_that_cannot_run_is_refused_and_not_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(EXAMPLE.read_text().replace("parallel-size 2", "parallel-size 3"))
    code, document = admitted(path)
    assert code in (1, 2)
    if code == 1:
        assert document["reasons"][-1]["about"] == "layout"


@pytest.mark.evidence
def test_a_limit_of_the_file_itself_counts(tmp_path: Path) -> None:
    slurm = tmp_path / "job.sbatch"
    script = jobs()["job.sbatch"].replace(
        "#SBATCH --nodes", "#SBATCH --time=2:00:00\n#SBATCH --nodes"
    )
    slurm.write_text(script)
    code, document = admitted(slurm)
    assert code == 1 and document["ends"]["limit_hours"] == 2.0
    kube = tmp_path / "trainjob.yaml"
    kube.write_text(
        EXAMPLE.read_text().replace("spec:\n  r", "spec:\n  activeDeadlineSeconds: 7200\n  r")
    )
    code, document = admitted(kube)
    assert code == 1 and document["ends"]["limit_hours"] == 2.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800.0),
        ("10:30", 630.0),
        ("1:00:00", 3600.0),
        ("2-0", 172800.0),
        ("2-12", 216000.0),
        ("1-06:30", 109800.0),
        ("1-06:30:15", 109815.0),
        ("UNLIMITED", None),
    ],
)
def test_times_as_slurm_s_manual_lists_them(text: str, seconds: float | None) -> None:
    assert slurm_seconds(text, "x") == seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#SBATCH --nodes=1\n#SBATCH --time=soon\nsrun torchrun pretrain_gpt.py", "must be a time"),
        ("hello\n", "not recognised"),
        ("kind: TrainJob\nspec: 3\n", ""),
        ("kind: TrainJob\nspec: {trainer: {numNodes: -4}}\n", "numNodes: must be a whole number"),
        ("kind: Job\nspec: {completions: 2.5}\n", "must be a whole number from 1, got 2.5"),
        ("num_nodes: four\nrun: |\n  torchrun x.py\n", "num_nodes: must be a whole number"),
        (
            "kind: PyTorchJob\nspec: {pytorchReplicaSpecs: {Worker: {replicas: -1}}}\n",
            "Worker.replicas: must be a whole number from 0, got -1",
        ),
        ("kind: Job\nspec: {template: {spec: {containers: 7}}}\n", ""),
    ],
)
def test_bad_jobs_are_bad_input(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "job"
    path.write_text(text)
    result = RUNNER.invoke(app, ["admit", str(path), *ON])
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("form", ["trainjob", "skypilot", "slurm"])
def test_what_is_exported_is_read_back(form: str, tmp_path: Path) -> None:
    names = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "16"]
    sets = ["--set", "layout.tp=2", "--set", "layout.pp=2", "--set", "training.global_batch=64"]
    path = tmp_path / f"{form}.job"
    result = RUNNER.invoke(app, ["export", *names, *sets, "--as", form, "--out", str(path)])
    assert result.exit_code == 0, result.output
    fields = {f["field"]: f["value"] for f in admitted(path)[1]["from"]["fields"]}
    assert fields["layout.tp"] == 2 and fields["layout.pp"] == 2 and fields["cluster.gpus"] == 16


def test_the_operator_says_how_many_servers_torchrun_has(tmp_path: Path) -> None:
    """Kubeflow's operator sets PET_NNODES (torch/distributed/run.py takes it for --nnodes)."""
    path = tmp_path / "job.yaml"
    text = jobs()["pytorchjob.yaml"]
    alone = re.sub(r"--nnodes[= ]+\S+", "", text)
    assert alone != text and "nproc_per_node" in alone.replace("-", "_")
    path.write_text(alone)
    code, document = admitted(path)
    assert code == 0, document
    fields = {field["field"]: field["value"] for field in document["from"]["fields"]}
    assert fields["cluster.gpus"] == 32


def test_a_time_that_is_none_is_refused_by_the_option_that_was_typed() -> None:
    result = RUNNER.invoke(app, ["admit", str(EXAMPLE), *ON, "--within", "abc"])
    assert result.exit_code == 2 and "--within: must be days" in result.stderr
    assert "--deadline" not in result.stderr


def test_devices_words_and_variables_of_a_manifest() -> None:
    env = [{"name": "SEQ", "value": "4096"}, {"name": "SECRET", "valueFrom": {}}]
    job = {
        "kind": "Job",
        "spec": {
            "activeDeadlineSeconds": 60,
            "completions": 2,
            "template": {
                "spec": {
                    "containers": [
                        {
                            "command": ["torchrun", "a b.py"],
                            "args": ["--seq-length", "$SEQ"],
                            "env": env,
                            "resources": {"requests": {"amd.com/gpu": "4"}},
                        }
                    ]
                }
            },
        },
    }
    manifest = read_manifest(job, "x")
    assert manifest is not None and manifest.seconds == 60.0
    assert manifest.script == "export SEQ=4096\ntorchrun 'a b.py' --seq-length $SEQ"
    assert [(s.field, s.value) for s in manifest.stated] == [("run.nodes", 2), ("run.per_node", 4)]
    assert read_manifest({"kind": "Deployment"}, "x") is None
