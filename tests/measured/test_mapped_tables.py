"""A user's own table of runs: columns by name, sizes by the model's name, what is usual said."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.errors import InputError
from simulator.measured.mapped_tables import parse_map, read_mapped

TABLE = """\
name,Model,GPU type,GPUs,Seq,Batch,TP,t (ms),stack,cost centre
a,llama-3.1-8b,H100-SXM5-80GB,64,8192,512,2,6900,megatron-bridge-27.01,x1
b,mixtral-8x7b,MI300X,64,4096,512,1,9000,primus,x2
"""
MAP = {
    "name": "run_id", "Model": "model", "GPU type": "gpu", "GPUs": "num_gpus", "Seq": "seq_len",
    "Batch": "global_batch", "TP": "tp", "t (ms)": "step_time_ms", "stack": "software",
}  # fmt: skip


def test_columns_are_taken_by_name_and_the_rest_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(TABLE)
    (a, b), problems = read_mapped([path], MAP)
    assert (a.get("run_id"), a.get("step_time_s"), a.get("tp")) == ("a", "6.9", "2")
    assert (a.get("layers"), a.get("kv_heads"), a.get("vocab")) == ("32", "8", "128256")
    assert (b.get("num_experts"), b.get("top_k"), b.get("pp")) == ("8", "2", "1")
    assert set(a.get("assumed").split("+")) >= {"precision", "optimizer", "sharding", "pp"}
    assert "'cost centre'" in problems[0]


def test_the_time_of_a_step_follows_from_tokens_per_second(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("model,gpu,num_gpus,seq_len,global_batch,rate\nx,y,8,1000,80,20000\n")
    (run,), _ = read_mapped([path], {"rate": "tokens_per_s"})
    assert float(run.get("step_time_s")) == 80 * 1000 / 20000
    (run,), _ = read_mapped([path], {"rate": "tokens_per_s_per_gpu"})
    assert float(run.get("step_time_s")) == 80 * 1000 / (8 * 20000)


def test_wrong_maps_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'num_gpus'"):
        parse_map(["GPUs=num_gpu"])
    with pytest.raises(InputError, match="must be column=field"):
        parse_map(["GPUs"])
    path = tmp_path / "mine.csv"
    path.write_text(TABLE)
    _, problems = read_mapped([path], {"GPU typ": "gpu"})
    assert problems == [f"{path}: --map: no column 'GPU typ' (did you mean 'GPU type'?)"]


@pytest.mark.evidence
def test_validate_predicts_every_row_with_the_nearest_release_said(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(TABLE)
    words = [word for column, field in MAP.items() for word in ("--map", f"{column}={field}")]
    done = CliRunner().invoke(app, ["validate", str(path), *words, "--json"])
    assert done.exit_code == 0, done.stderr
    assert "for megatron-bridge-27.01" in done.stdout
    assert "cost centre" in done.stderr
    done = CliRunner().invoke(app, ["validate", *words])
    assert done.exit_code == 2


def test_words_for_devices_and_releases_as_others_write_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "model,gpu,num_gpus,seq_len,global_batch,software,step_time_s\n"
        "llama-3.1-8b,NVIDIA H100 SXM,64,8192,512,Megatron-LM core_r0.17,6.6\n"
        "llama-3.1-8b,AMD Instinct MI355X,8,8192,64,torchtitan 0.9,6.1\n"
    )
    (h100, mi355x), problems = read_mapped([path], {})
    assert problems == []
    assert (h100.get("sharding"), mi355x.get("sharding")) == ("zero1", "zero3")
    assert "sharding" in mi355x.get("assumed").split("+")
    done = CliRunner().invoke(app, ["validate", str(path), "--map", "gpu=gpu", "--json"])
    rows = json.loads(done.stdout)["rows"]
    assert [row["assumed_software"] for row in rows] == [
        "megatron-lm-2023 for Megatron-LM core_r0.17",
        "torchtitan-2026.04-compile for torchtitan 0.9",
    ]
    with pytest.raises(InputError, match="the column comes first: name=run_id"):
        parse_map(["run_id=name"])


def test_a_column_may_be_mapped_to_a_field_of_the_software(tmp_path: Path) -> None:
    names = parse_map(["A2A=software.overlap.expert"])
    table = tmp_path / "mine.csv"
    table.write_text("model,A2A,software.states.reduce\nmixtral-8x7b,true,4\n")
    (run,), problems = read_mapped([table], names)
    assert not problems
    assert run.fields["software.overlap.expert"] == "true"
    assert run.fields["software.states.reduce"] == "4"
    with pytest.raises(InputError, match=r"no field of a run: 'software\.overlap\.exprt'"):
        parse_map(["A2A=software.overlap.exprt"])
