"""Launch scripts and trainer configurations become scenarios; nothing is run, nothing dropped."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.errors import InputError
from simulator.interop.exporting import launch_flags
from simulator.interop.launch_files.advising import advise, changed_text
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from simulator.interop.shell.shell_words import read_script
from simulator.planner.prediction import predict
from simulator.scenario import make_scenario
from tests.interop.launch_samples import (
    ACCELERATE,
    DEEPSPEED,
    MEGATRON,
    MLPERF,
    RECIPE,
    TOPOLOGY,
    TORCHTITAN,
    TRAINER,
)

HERE = {"cluster": "dgx-h100"}


def read(folder: Path, text: str, name: str = "launch.sh", /, **names: object) -> Imported:
    path = folder / name
    path.write_text(text)
    overrides = names.pop("overrides", ())
    return import_launch([path], {**HERE, **names}, overrides)  # type: ignore[arg-type]


def unknown(found: Imported) -> list[str]:
    return [place.key for place in found.unknown]


def test_a_megatron_script_with_variables_arrays_and_a_job_head(tmp_path: Path) -> None:
    found = read(tmp_path, MEGATRON)
    scenario = found.scenario
    assert scenario.pinned == {
        "tp": 8, "pp": 1, "micro_batch": 1, "sharding": "zero1", "sequence_parallel": True,
        "recompute": "full",
    }  # fmt: skip
    assert scenario.workload.architecture.name == "llama-3-8b"
    assert scenario.cluster.gpus == 8 * 8  # --nodes of the job's head, which SLURM_NNODES repeats
    assert scenario.workload.recipe.global_batch == 16 * 4 * 8
    assert scenario.workload.recipe.tokens == 100_000 * 512 * 8192
    assert scenario.workload.recipe.gradient_dtype == "fp32"  # --bf16 without --grad-reduce-in-bf16
    assert scenario.software.name == "megatron-core"  # overlaps, as the script asks
    assert unknown(found) == ["--my-own-flag"]
    (tp,) = [item for item in found.origins if item.field == "layout.tp"]
    line = MEGATRON.splitlines().index(next(x for x in MEGATRON.splitlines() if "--tensor" in x))
    assert tp.source == f"{tmp_path / 'launch.sh'}: line {line + 1}: --tensor-model-parallel-size"


def test_a_torchtitan_job(tmp_path: Path) -> None:
    found = read(tmp_path, TORCHTITAN, "job.toml", gpus=32)
    assert found.scenario.pinned == {
        "tp": 4, "pp": 1, "cp": 1, "micro_batch": 2, "sharding": "zero3", "recompute": "selective",
        "shard_group": 32 // 4 // 2,
    }  # fmt: skip
    assert found.scenario.workload.architecture.name == "llama-3.1-8b"
    assert found.scenario.workload.recipe.global_batch == 2 * 8  # local batch x dp of 32 / 4
    assert unknown(found) == ["invented.key"]
    old = TORCHTITAN.replace("local_batch_size", "batch_size")  # as in torchtitan 0.1
    assert read(tmp_path, old, "old.toml", gpus=32).scenario.pinned == found.scenario.pinned


@pytest.mark.parametrize(
    ("said", "dispatcher"), [("standard", "alltoall"), ("deepep", "deepep"), ("hybridep", "deepep")]
)
def test_a_torchtitan_job_says_how_tokens_reach_experts(
    said: str, dispatcher: str, tmp_path: Path
) -> None:
    text = TORCHTITAN.replace(
        "[parallelism]\n",
        f'[parallelism]\nexpert_parallel_degree = 4\nexpert_parallel_comm_backend = "{said}"\n',
    )
    found = read(tmp_path, text, "job.toml", model="mixtral-8x7b", gpus=32)
    assert found.scenario.pinned["dispatcher"] == dispatcher
    assert any("HybridEP is priced as DeepEP" in note for note in found.notes) == (
        said == "hybridep"
    )


def test_deepspeeds_batch_arithmetic_and_offload(tmp_path: Path) -> None:
    text = json.dumps(DEEPSPEED)
    given = {"model": "llama-3.1-8b", "gpus": 8, "overrides": ["training.sequence_length=4096"]}
    found = read(tmp_path, text, "ds.json", **given)
    assert found.scenario.workload.recipe.global_batch == 2 * 4 * 8
    assert found.scenario.pinned["sharding"] == "zero3"
    assert found.scenario.pinned["optimizer_offload"] == "cpu"
    assert found.scenario.software.name == "deepspeed"
    assert unknown(found) == ["invented.deep"]
    wrong = {**DEEPSPEED, "train_batch_size": 100}
    with pytest.raises(InputError, match=r"100 \(.*contradicts 2 x 4 x dp 8"):
        read(tmp_path, json.dumps(wrong), "wrong.json", **given)


def test_an_accelerate_configuration_and_trainer_arguments(tmp_path: Path) -> None:
    (tmp_path / "accelerate.yaml").write_text(ACCELERATE)
    (tmp_path / "arguments.json").write_text(json.dumps(TRAINER))
    files = [tmp_path / "accelerate.yaml"]
    given = {**HERE, "model": "llama-3.1-8b"}
    length = ["training.sequence_length=4096", "training.global_batch=128"]
    found = import_launch(files, given, length)
    assert found.scenario.pinned == {"sharding": "zero2", "recompute": "full"}
    assert found.scenario.cluster.gpus == 16
    both = [*files, tmp_path / "arguments.json"]
    with pytest.raises(InputError, match=r"layout.sharding: zero2 .*contradicts zero3 .*decides"):
        import_launch(both, given, length[:1])
    decided = import_launch(both, given, [length[0], "layout.sharding=zero3"])
    assert decided.scenario.workload.recipe.global_batch == 4 * 2 * 16
    assert decided.scenario.pinned["micro_batch"] == 4


def test_fields_of_a_recipe(tmp_path: Path) -> None:
    found = read(tmp_path, RECIPE, "recipe.yaml", model="llama-3.1-70b")
    assert found.scenario.pinned == {
        "tp": 4, "pp": 2, "vpp": 10, "micro_batch": 1, "sequence_parallel": True,
    }  # fmt: skip
    assert found.scenario.cluster.gpus == 32
    assert unknown(found) == ["model.cuda_graph_scope"]
    command = (
        "torchrun --nnodes 4 --nproc_per_node 8 run_recipe.py --recipe llama3_70b"
        " model.tensor_model_parallel_size=4 ++model.pipeline_model_parallel_size=2"
        " train.micro_batch_size=1 train.global_batch_size=128 dataset.seq_length=4096"
        " model.virtual_pipeline_model_parallel_size=10 model.sequence_parallel=True\n"
    )
    again = read(tmp_path, command, "run.sh", model="llama-3.1-70b")
    assert again.scenario.pinned == found.scenario.pinned
    assert again.scenario.software.name == found.scenario.software.name == "megatron-bridge"


def test_an_mlperf_configuration(tmp_path: Path) -> None:
    given = {"model": "gpt3-175b", "overrides": ["training.sequence_length=2048"]}
    found = read(tmp_path, MLPERF, "config_DGXH100_16x8x64_tp4_pp8.sh", **given)
    assert found.scenario.pinned == {
        "tp": 4, "pp": 8, "vpp": 6, "micro_batch": 2, "sequence_parallel": True,
    }  # fmt: skip
    assert found.scenario.workload.recipe.global_batch == 64 * (128 // 4 // 8)
    assert found.scenario.workload.recipe.precision == "fp8"
    assert unknown(found) == ["SOMETHING_NEW"]
    assert any("config_common.sh" in note for note in found.notes)


def test_a_topology_says_how_many_gpus_a_server_has(tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text(TOPOLOGY)
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH -N 2\nsrun train.sh\n")
    model = {"model": "llama-3.1-8b", "cluster": "dgx-a100"}
    batch = ["training.sequence_length=2048", "training.global_batch=64"]
    found = import_launch([tmp_path / "topo.txt", tmp_path / "job.sh"], model, batch)
    assert found.scenario.cluster.gpus == 2 * 4
    assert any("joined by NVLink" in note for note in found.notes)


def test_logs_of_collectives_and_traces_are_told_where_to_go(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(TORCHTITAN)
    log = tmp_path / "all_reduce.txt"
    log.write_text(
        "# nThread 1 nGpus 2 minBytes 8 maxBytes 8\n"
        "#  Rank  0 Group  0 Pid   1 on       gpu1 device  0 [0x01] NVIDIA H100\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        "     1048576        262144     float     sum      -1     48.6   21.58   21.58      0\n"
    )
    trace = tmp_path / "trace.json"
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 9}
    ranks = {"world_size": 32, "rank": 0}
    trace.write_text(json.dumps({"traceEvents": [kernel], "distributedInfo": ranks}))
    found = import_launch([job, log, trace], HERE)
    assert found.scenario.cluster.gpus == 32
    assert any("foreshard calibrate" in note for note in found.notes)
    assert any("validate --trace" in note for note in found.notes)


def test_two_files_that_contradict_each_other_are_named_with_both_places(tmp_path: Path) -> None:
    job = tmp_path / "job.sbatch"
    job.write_text("#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun x.sh\n")
    script = tmp_path / "train.sh"
    script.write_text(MEGATRON)
    config = tmp_path / "model.json"
    zoo = json.loads(Path("simulator/workload/zoo/llama-3.1-70b.json").read_text())
    config.write_text(json.dumps(zoo))
    with pytest.raises(InputError) as caught:
        import_launch([script, job, config], HERE)
    text = str(caught.value)
    assert f"run.nodes: 8 ({script}: line" in text
    assert f"contradicts 4 ({job}: line 2: #SBATCH --nodes)" in text
    assert f"model layers: 80 ({config}) contradicts 32 ({script}: line" in text
    import_launch([script, job, config], {**HERE, "gpus": 32, "model": "llama-3-8b"})


def test_what_is_missing_is_asked_for_with_the_option_that_gives_it(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(DEEPSPEED))
    done = CliRunner().invoke(app, ["plan", "--from", str(path)])
    assert done.exit_code == 2
    for words in ("--model NAME", "--cluster NAME", "--gpus N", "--set training.sequence_length=N"):
        assert words in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo $(touch owned) `touch owned`\n", ["echo", "$(touch owned)", "`touch owned`"]),
        ('A=(1 "2 3")\nrun "${A[@]}" ${A[@]} $A\n', ["run", "1", "2 3", "1", "2", "3", "1"]),
        ("X=8; run $((X*4/2)) ${Y:-${X}} '$X' \"$X\"\n", ["run", "16", "8", "$X", "8"]),
        ("run a\\\n b # no c\n", ["run", "a", "b"]),
        ("export A=1 B=$A\nrun $A$B >log 2>&1\n", ["run", "11"]),
    ],
)
def test_words_of_a_script(text: str, words: list[str], tmp_path: Path) -> None:
    found = read_script(text, "x.sh").commands[-1]
    assert [word.text for word in found] == words
    assert not (tmp_path / "owned").exists()


def test_variables_that_double_line_by_line_are_refused() -> None:
    text = "A=xxxxxxxx\n" + "A=$A$A\n" * 64
    with pytest.raises(InputError, match="grow beyond"):
        read_script(text, "bomb.sh")


def test_a_blend_of_400_data_sets_is_read_line_by_line() -> None:
    line = 'DATA="${DATA} 855056046544 ${ROOT}/a_name_of_some_length_000_text_document"\n'
    script = read_script("DATA=\nROOT=/groups/of/some/length\n" + line * 400, "blend.sh")
    assert str(script.variables["DATA"]).split() == [
        "855056046544", "/groups/of/some/length/a_name_of_some_length_000_text_document"
    ] * 400  # fmt: skip


def test_more_words_than_a_script_has_are_refused() -> None:
    with pytest.raises(InputError, match=r"long\.sh: line 10001: more than 10000 words"):
        read_script('""\n' * 10_001, "long.sh")
    assert len(read_script("run\n" * 10_000, "long.sh").commands) == 10_000


NINE = [", ".join([f"*a{i - 1}" if i else "x"] * 9) for i in range(9)]
BILLION = "\n".join(f"a{i}: &a{i} [{inside}]" for i, inside in enumerate(NINE))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a: !!python/object:os.system x\nb: 1\n", "line 1: tags of YAML are not read"),
        (BILLION, "line 5: must have at most 20000 values"),  # 9 + 9**2 + ... of nine lines
        ("a: &x [1, *x]\nb: 1\n", r"line 1: \*x is no anchor"),
        ("a: *y\nb: 1\n", r"line 1: \*y is no anchor"),
    ],
)
def test_yaml_that_makes_objects_or_grows_is_refused(text: str, rule: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rule):
        read(tmp_path, text, "bomb.yaml")


@pytest.mark.evidence
def test_the_first_answer_has_changes_and_the_changed_script(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(MEGATRON)
    found = advise([path], HERE)
    assert found.prediction.layout["tp"] == 8
    assert 1 <= len(found.changes) <= 3
    counts = [len(change.choices) for change in found.changes]
    assert counts == sorted(counts)
    for change, files in zip(found.changes, found.changed, strict=True):
        assert change.prediction.fits
        assert change.prediction.step_time_s < found.prediction.step_time_s
        changed = tmp_path / "changed.sh"
        changed.write_text(files[str(path)])
        again = import_launch([changed], HERE)  # the changed script has the changed layout
        layout = again.predicted().layout
        assert {k: layout[k] for k in change.fields} == {
            k: b for k, (_, b) in change.fields.items()
        }
        assert "--my-own-flag 7" in files[str(path)]


def test_json_and_toml_keep_what_does_not_change() -> None:
    text = "[training]\n# mine\nlocal_batch_size = 2  # small\n"
    assert changed_text(text, {"training.local_batch_size": 4}) == text.replace("= 2", "= 4")
    changed = json.loads(changed_text(json.dumps(DEEPSPEED), {"zero_optimization.stage": 2}))
    assert changed == {
        **DEEPSPEED,
        "zero_optimization": {**DEEPSPEED["zero_optimization"], "stage": 2},
    }  # type: ignore[dict-item]


def test_predict_takes_the_layout_of_the_files(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(MEGATRON)
    given = ["predict", "--from", str(path), "--cluster", "dgx-h100", "--json"]
    done = CliRunner().invoke(app, given)
    assert json.loads(done.stdout)["layouts"][0]["layout"]["tp"] == 8
    assert "Not known here" in done.stderr
    done = CliRunner().invoke(app, [*given, "--set", "layout.pp=3"])
    assert (done.exit_code, done.stdout) == (2, "")
    done = CliRunner().invoke(app, [*given, "--set", "layout.micro_batch=3"])
    assert done.exit_code == 2
    assert "--from: training.global_batch" in done.stderr
    assert f"({path}: line 21: --global-batch-size)" in done.stderr


@pytest.mark.evidence
def test_the_document_lists_places_unknown_keys_and_changes(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(MEGATRON)
    arguments = ["--from", str(path), "--cluster", "dgx-h100", "--json"]
    done = CliRunner().invoke(app, ["plan", *arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["from"]["files"][0]["kinds"] == [
        "job of SLURM",
        "launcher",
        "Megatron-LM command",
    ]
    assert any("--my-own-flag" in text for text in document["from"]["unknown"])
    for number, change in enumerate(document["changes"], 1):
        written = (tmp_path / "out" / f"change-{number}" / "train.sh").read_text()
        assert change["files"][str(path)] == written
    assert document["memory"]


WORN = (
    "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096"
    " --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention"
    " --num-query-groups 8 --swiglu --normalization RMSNorm --vocab-size 128256"
    " --untie-embeddings-and-output-weights --disable-bias-linear --position-embedding-type rope"
    " --max-position-embeddings 8192 --seq-length 8192 --micro-batch-size 1"
    " --global-batch-size 64 --bf16 --use-flash-attn --train-samples 1000000 --tensor-model-"
    "parallel-size 4 --pipeline-model-parallel-size 4 --sequence-parallel"
    " --use-distributed-optimizer {more}\n"
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("more", ["--recompute-activations", "--checkpoint-activations"])
def test_a_changed_script_says_nothing_of_what_the_plan_drops(more: str, tmp_path: Path) -> None:
    """Megatron-LM's short flags for recomputation are no words that are written."""
    path = tmp_path / "train.sh"
    path.write_text(WORN.format(more=more))
    answer = advise([path], HERE, ["training.tokens=1e9"])
    dropped = [
        files[str(path)]
        for change, files in zip(answer.changes, answer.changed, strict=True)
        if change.fields.get("recompute", ("", ""))[1] == "none"
    ]
    assert dropped and not any(answer.unsaid)
    for text in dropped:
        assert more not in text and "--use-distributed-optimizer" in text
        path.write_text(text)
        assert import_launch([path], HERE).predicted().layout["recompute"] == "none"


TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[compile]
enable = {compile}
"""


def test_compiling_the_model_is_tried_where_a_job_does_not(tmp_path: Path) -> None:
    """torchtitan of December 2024: 15 % (5,762 to 6,667 tokens/s), 8 H100, Llama 3.1 8B."""
    path = tmp_path / "job.toml"
    path.write_text(TITAN.format(compile="false"))
    answer = advise([path], {**HERE, "gpus": 8})
    first = answer.changes[0]
    assert first.choices == ("compile",) and first.fields == {"compile": (False, True)}
    assert 0.05 < first.gain < 0.3 and answer.unsaid[0] == ()
    changed = answer.changed[0][str(path)]
    assert changed == TITAN.format(compile="true")
    path.write_text(changed)
    again = import_launch([path], {**HERE, "gpus": 8}).predicted()
    assert again.scenario.software.name == "torchtitan"
    assert again.step_time_s == pytest.approx(first.step_time_s)
    path.write_text(TITAN.format(compile="true"))
    kept = advise([path], {**HERE, "gpus": 8})
    assert not any("compile" in change.choices for change in kept.changes)


SAVES = {
    "megatron": (MEGATRON, "launch.sh", "--bf16", "--bf16 --save-interval 500"),
    "torchtitan": (
        *(TORCHTITAN, "job.toml", "[training]"),
        "[checkpoint]\nenable_checkpoint = true\ninterval = 500\n[training]",
    ),
    "trainer": (
        json.dumps({**TRAINER, "max_steps": 1000}),
        "args.json",
        '"bf16"',
        '"save_steps": 500, "bf16"',
    ),
}


@pytest.mark.parametrize("name", SAVES)
def test_steps_between_checkpoints_are_those_of_the_launch(name: str, tmp_path: Path) -> None:
    text, file, at, saves = SAVES[name]
    options: dict[str, object] = {} if name == "megatron" else {"gpus": 64}
    length = ["training.sequence_length=4096"] if name == "trainer" else []
    options |= {"model": "llama-3.1-8b"} if name == "trainer" else {}
    options["overrides"] = length
    assert at in text
    plain = read(tmp_path, text, file, **options)
    assert plain.scenario.run.checkpoints.every_steps is None
    found = read(tmp_path, text.replace(at, saves, 1), file, **options)
    assert found.scenario.run.checkpoints.every_steps == 500
    assert any(item.field == "run.checkpoints.every_steps" for item in found.origins)
    assert not any("save_" in key or "interval" in key for key in _keys(found) - _keys(plain))
    saved = found.predicted().checkpoint
    assert saved.every_steps == pytest.approx(500)
    options["overrides"] = [*length, "run.checkpoints.interval_s=600"]
    other = read(tmp_path, text.replace(at, saves, 1), file, **options)
    assert (other.scenario.run.checkpoints.every_steps, other.scenario.run.checkpoints.interval_s
            ) == (None, 600)  # fmt: skip


def _keys(found: Imported) -> set[str]:
    quiet = (place for reading in found.readings for place in reading.idle)
    return {place.key for place in (*found.unknown, *quiet)}


def test_checkpoints_that_no_step_reaches_are_said(tmp_path: Path) -> None:
    """100,000 steps: an interval of 200,000 saves nothing, one of 0 is none."""
    for interval, words in (("200000", "ends before 200,000"), ("0", "no number of steps")):
        found = read(tmp_path, MEGATRON.replace("--bf16", f"--bf16 --save-interval {interval}", 1))
        assert found.scenario.run.checkpoints.every_steps is None
        assert any("--save-interval" in note and words in note for note in found.notes)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("software", ["megatron-core", "torchtitan"])
def test_an_exported_launch_keeps_its_checkpoints(software: str, mode: str, tmp_path: Path) -> None:
    document = {
        "model": {"name": "llama-3.1-8b"},
        "cluster": {"name": "dgx-h100", "gpus": 32, "software": software},
        "training": {"tokens": 1e12, "global_batch": 256, "sequence_length": 8192},
        "run": {"checkpoints": {"every_steps": 250, "mode": mode}},
    }
    predicted = predict(make_scenario(document, where="test"))
    command = launch_flags(predicted.estimate.layouts, predicted.scenario)
    again = read(tmp_path, command, gpus=32, model="llama-3.1-8b")
    assert again.scenario.run.checkpoints.every_steps == 250
    assert again.scenario.run.checkpoints.mode == mode


@pytest.mark.parametrize(
    ("field", "value"),
    [("layout.tp", '"two"'), ("layout.pp", "true"), ("layout.stages", "8"),
     ("training.global_batch", '"all"'), ("training.sequence_length", "[8192]")],
)  # fmt: skip
def test_a_scenario_beside_a_launch_is_refused_by_its_field(
    field: str, value: str, tmp_path: Path
) -> None:
    section, _, key = field.partition(".")
    sound = {"layout": {"tp": "2", "pp": "2"}, "training": {"global_batch": "64"}}
    sound[section][key] = value
    text = "".join(
        f"[{name}]\n{''.join(f'{k} = {v}{chr(10)}' for k, v in table.items())}"
        for name, table in sound.items()
    )
    path = tmp_path / "run.toml"
    path.write_text(f'[cluster]\ngpus = 64\n{text}[model]\nname = "llama-3.1-8b"\n')
    with pytest.raises(InputError, match=rf"run.toml: {field}: must be a ?"):
        import_launch([path], HERE).predicted()


def test_a_switch_that_wants_a_file_and_has_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--job\.config_file: must be followed by a file"):
        read(tmp_path, "torchrun -m torchtitan.train --job.config_file --training.steps 10")


@pytest.mark.parametrize("loss", ["none", "compiled", "transformer_engine"])
def test_an_exported_launch_keeps_loss_and_padded_vocabulary(loss: str, tmp_path: Path) -> None:
    """Memory shows both: 16,384 logits of 32,000 rows, of which 2 ranks have 16,000 or 20,000."""
    document = {
        "model": {"name": "llama-2-7b"},
        "cluster": {"name": "dgx-h100", "gpus": 8, "software": "megatron-core-defaults"},
        "training": {"tokens": 1e12, "global_batch": 16, "sequence_length": 4096},
        "layout": {"tp": 2, "pp": 1, "micro_batch": 4},
    }
    peaks = {}
    for multiple in (128, 20_000):
        said = {"loss_fusion": loss, "kernels.pads_vocabulary_to": multiple}
        predicted = predict(make_scenario({**document, "software": said}, where="test"))
        command = launch_flags(predicted.estimate.layouts, predicted.scenario)
        again = predict(read(tmp_path, command, gpus=8, model="llama-2-7b").scenario)
        peaks[multiple] = predicted.memory_bytes
        assert again.memory_bytes == pytest.approx(predicted.memory_bytes, rel=1e-9)
        assert again.step_time_s == pytest.approx(predicted.step_time_s, rel=1e-9)
    logits = 4096 * 4 * (20_000 - 16_000)
    assert peaks[20_000] - peaks[128] > 2 * logits


def test_the_changed_files_keep_the_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(MEGATRON.replace("--bf16", "--bf16 --save-interval 500", 1))
    made = advise([path], HERE)
    assert made.changed
    for files in made.changed:
        changed = tmp_path / "changed.sh"
        changed.write_text(files.get(str(path), path.read_text()))
        assert import_launch([changed], HERE).scenario.run.checkpoints.every_steps == 500


@pytest.mark.parametrize(
    ("line", "kernels", "moments"),
    [
        ('implementation = "foreach"', "foreach", "fp32"),
        ('implementation = "fused"', "fused", "fp32"),
        ('implementation = "fused_opt_states_bf16"', "fused", "bf16"),
        ("fused = false", "foreach", "fp32"),  # 0.1: torch's own choice
        ("fused = true", "fused", "fp32"),
    ],
)
def test_torchtitan_says_how_adamw_is_done(
    tmp_path: Path, line: str, kernels: str, moments: str
) -> None:
    """b5bcd76c, components/optimizer/optimizer.py: OptimizersContainer.Config.implementation."""
    job = TORCHTITAN.replace("[optimizer]\n", f"[optimizer]\n{line}\n")
    found = read(tmp_path, job, "job.toml", gpus=32)
    assert found.scenario.document["software"]["adamw"] == kernels
    assert (found.scenario.workload.recipe.moment_dtype or "fp32") == moments
    assert not [place for place in found.unknown if place.key.startswith("optimizer")]
