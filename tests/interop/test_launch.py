"""Launch commands: known flags only, a sound shell script, the layout as the tools mean it."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from simulator.api import predict
from simulator.interop.dialects.megatron import layers_by_stage, pipeline_layout
from simulator.interop.dialects.torchrun import torchrun
from simulator.interop.exporting import launch_flags
from simulator.workload.presets import load

# Of NVIDIA/Megatron-LM@000c4ac2 megatron/training/arguments.py, those that a command may use.
MEGATRON_FLAGS = {
    "accumulate-allreduce-grads-in-fp32", "add-qkv-bias", "attention-backend",
    "attention-dropout", "bf16", "ckpt-format", "context-parallel-size", "cp-comm-type",
    "cpu-offloading-num-layers", "cross-entropy-fusion-impl", "cross-entropy-loss-fusion",
    "data-parallel-sharding-strategy",
    "disable-bias-linear",
    "expert-model-parallel-size", "expert-tensor-parallel-size", "ffn-hidden-size", "fp16",
    "activation-func-fp8-input-store", "fp4-format", "fp4-recipe",
    "hierarchical-context-parallel-sizes",
    "fp8-amax-compute-algo", "fp8-amax-history-len", "fp8-format", "fp8-param-gather", "fp8-recipe",
    "global-batch-size", "grad-reduce-in-bf16", "group-query-attention", "hidden-dropout",
    "hidden-size", "init-model-with-meta-device", "kv-channels", "kv-lora-rank", "log-interval",
    "log-throughput", "lr", "make-vocab-size-divisible-by", "max-position-embeddings",
    "microbatch-group-size-per-virtual-pipeline-stage", "no-create-attention-mask-in-dataloader",
    "micro-batch-size", "mock-data", "moe-ffn-hidden-size", "moe-grouped-gemm", "moe-layer-freq",
    "moe-permute-fusion",
    "moe-router-group-topk", "moe-router-num-groups",
    "moe-router-topk", "moe-shared-expert-intermediate-size", "moe-token-dispatcher-type",
    "multi-latent-attention", "no-gradient-accumulation-fusion", "no-overlap-p2p-communication",
    "normalization", "num-attention-heads", "num-distributed-optimizer-instances", "num-experts",
    "num-layers", "num-layers-per-virtual-pipeline-stage", "num-query-groups", "optimizer",
    "overlap-grad-reduce", "overlap-param-gather", "pipeline-model-parallel-layout",
    "pipeline-model-parallel-size", "position-embedding-type", "q-lora-rank", "qk-head-dim",
    "qk-layernorm", "qk-pos-emb-head-dim", "recompute-granularity", "recompute-method",
    "recompute-modules", "recompute-num-layers",
    "reuse-grad-buf-for-mxfp8-param-ag", "seq-length", "sequence-parallel", "swiglu",
    "tensor-model-parallel-size", "tokenizer-type", "tp-comm-overlap", "train-iters",
    "train-samples", "untie-embeddings-and-output-weights", "use-distributed-optimizer",
    "use-megatron-fsdp", "use-tp-pp-dp-mapping", "v-head-dim", "vocab-size",
    "window-attn-skip-freq", "window-size",
}  # fmt: skip

# Of torchtitan v0.2, torchtitan/config/job_config.py.
TORCHTITAN_KEYS = {
    "model": {"name", "flavor", "converters"},
    "training": {
        "local_batch_size", "global_batch_size", "seq_len", "steps", "mixed_precision_param",
        "mixed_precision_reduce",
    },
    "parallelism": {
        "data_parallel_replicate_degree", "data_parallel_shard_degree",
        "fsdp_reshard_after_forward", "tensor_parallel_degree", "enable_async_tensor_parallel",
        "pipeline_parallel_degree", "module_fqns_per_model_part",
        "pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers",
        "pipeline_parallel_layers_per_stage", "pipeline_parallel_schedule",
        "pipeline_parallel_microbatch_size", "context_parallel_degree",
        "context_parallel_rotate_method", "expert_parallel_degree",
        "expert_tensor_parallel_degree",
    },
    "activation_checkpoint": {"mode", "selective_ac_option"},
    "compile": {"enable"},
    "quantize": {"linear"},
}  # fmt: skip


def block(**asked: Any) -> str:
    """The launch command of one predicted layout; 64 GPUs of dgx-h100 unless asked otherwise."""
    asked = {"model": "llama-3.1-70b", "cluster": "dgx-h100", "gpus": 64, **asked}
    found = predict(**asked)
    return launch_flags(found.estimate.layouts, found.scenario)


def flags(**asked: Any) -> dict[str, str]:
    """The flags of a Megatron command and their values."""
    words = shlex.split(block(**asked).replace("\\\n", " "), comments=True)
    words = words[words.index("pretrain_gpt.py") + 1 :]
    found: dict[str, str] = {}
    for word in words:
        if word.startswith("--"):
            found[name := word[2:]] = ""
        else:
            found[name] = f"{found[name]} {word}".strip()
    return found


def job(**asked: Any) -> dict[str, Any]:
    """The job file of a torchtitan command."""
    text = block(**{"software": "torchtitan", **asked})
    return tomllib.loads(text.split("<<'TOML'\n")[1].split("\nTOML\n")[0])


EVERY_KIND = [
    {"tp": 8, "pp": 4, "vpp": 5, "cp": 2, "tokens": 15e12},
    {"tp": 4, "pp": 4, "recompute": "full", "rank_order": "tp-cp-pp-dp"},
    {"model": "llama-3.1-405b", "gpus": 512, "tp": 8, "pp": 16, "recompute_layers": 3},
    {"model": "deepseek-v3", "gpus": 1024, "pp": 16, "ep": 64, "precision": "fp8"},
    {"model": "deepseek-v2", "gpus": 64, "tp": 2, "ep": 8, "etp": 2, "recompute": "selective"},
    {"model": "mixtral-8x7b", "tp": 2, "ep": 8, "sharding": "ddp"},
    {"model": "qwen2-7b", "sharding": "zero2", "shard_group": 8},
    {"model": "qwen3-235b-a22b", "sharding": "zero3", "ep": 8, "optimizer": "sgd"},
    {"model": "gpt2-xl", "gpus": 8, "precision": "fp16"},
    {"model": "mistral-7b", "precision": "tf32"},
    {"model": "pythia-12b", "gpus": 16, "precision": "fp32"},
    {"model": "megatron-22b", "gpus": 8, "tp": 8, "software": "megatron-lm-2022"},
    {"cluster": "dgx-b200", "precision": "mxfp8", "tp": 8, "offload_layers": 40},
    {"cluster": "dgx-b200", "precision": "nvfp4", "tp": 4, "pp": 4},
    {"model": "deepseek-v3", "gpus": 1024, "pp": 8, "vpp": 4, "ep": 64, "precision": "fp8_current"},
    {"cp": 8, "tp": 4, "cp_kind": "hierarchical", "stash_bytes": {"activation_input": 1.0}},
    {"software": "torchtitan", "tp": 8, "pp": 4, "vpp": 2},
    {"software": "torchtitan", "model": "llama-3.1-405b", "pp": 8, "tp": 8, "precision": "fp8"},
    {"software": "torchtitan", "model": "qwen3-235b-a22b", "ep": 8, "recompute": "full"},
    {"software": "plain-ddp", "model": "gpt2-xl", "gpus": 8},
]


@pytest.mark.parametrize("asked", EVERY_KIND)
def test_the_command_is_a_sound_shell_script(asked: dict[str, Any]) -> None:
    text = block(**asked)
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "torchrun" in text


@pytest.mark.parametrize("asked", [a for a in EVERY_KIND if "software" not in a])
def test_only_flags_that_megatron_has(asked: dict[str, Any]) -> None:
    assert set(flags(**asked)) <= MEGATRON_FLAGS


@pytest.mark.parametrize("asked", [a for a in EVERY_KIND if a.get("software") == "torchtitan"])
def test_only_keys_that_torchtitan_has(asked: dict[str, Any]) -> None:
    found = job(**{name: value for name, value in asked.items() if name != "software"})
    for table, keys in found.items():
        assert set(keys) <= TORCHTITAN_KEYS[table]


# --- Megatron-LM --------------------------------------------------------------------------------


def test_megatron_dense() -> None:
    found = flags(tp=8, pp=4, vpp=5, cp=2, tokens=15e12, global_batch=2048)
    expected = {
        "tensor-model-parallel-size": "8",
        "pipeline-model-parallel-size": "4",
        "context-parallel-size": "2",
        "sequence-parallel": "",
        "num-layers-per-virtual-pipeline-stage": "4",
        "micro-batch-size": "1",
        "global-batch-size": "2048",
        "seq-length": "8192",
        "train-samples": "1831054688",
        "num-layers": "80",
        "hidden-size": "8192",
        "ffn-hidden-size": "28672",
        "num-attention-heads": "64",
        "num-query-groups": "8",
        "kv-channels": "128",
        "group-query-attention": "",
        "swiglu": "",
        "normalization": "RMSNorm",
        "position-embedding-type": "rope",
        "untie-embeddings-and-output-weights": "",
        "disable-bias-linear": "",
        "make-vocab-size-divisible-by": "128",
        "bf16": "",
        "use-distributed-optimizer": "",
        "overlap-grad-reduce": "",
        "overlap-param-gather": "",
    }
    assert {name: found.get(name) for name in expected} == expected
    absent = {"num-experts", "multi-latent-attention", "use-megatron-fsdp", "recompute-granularity"}
    assert not absent & set(found)


def test_megatron_experts_and_latent_attention() -> None:
    found = flags(model="deepseek-v3", gpus=1024, pp=16, ep=64, precision="fp8")
    expected = {
        "expert-model-parallel-size": "64",
        "expert-tensor-parallel-size": "1",
        "num-experts": "256",
        "moe-router-topk": "8",
        "moe-ffn-hidden-size": "2048",
        "moe-shared-expert-intermediate-size": "2048",
        "moe-layer-freq": "([0]*3+[1]*58)",
        "ffn-hidden-size": "18432",
        "multi-latent-attention": "",
        "q-lora-rank": "1536",
        "kv-lora-rank": "512",
        "qk-head-dim": "128",
        "qk-pos-emb-head-dim": "64",
        "v-head-dim": "128",
        "fp8-format": "hybrid",
        "fp8-recipe": "delayed",
        "bf16": "",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert "multi-token-prediction" in block(model="deepseek-v3", gpus=1024, pp=16, ep=64)


@pytest.mark.parametrize(
    ("precision", "cluster", "expected"),
    [
        # choices of --fp8-recipe: tensorwise is present scaling, one scale for a tensor; block
        # scales are e4m3 in both directions
        ("fp8", "dgx-h100", {"fp8-format": "hybrid", "fp8-recipe": "delayed",
                             "fp8-amax-history-len": "1024", "fp8-amax-compute-algo": "max"}),
        ("fp8_current", "dgx-h100", {"fp8-format": "hybrid", "fp8-recipe": "tensorwise"}),
        ("fp8_blockwise", "dgx-h100", {"fp8-format": "e4m3", "fp8-recipe": "blockwise"}),
        ("mxfp8", "dgx-b200", {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"}),
        ("nvfp4", "dgx-b200", {"fp4-format": "e2m1", "fp4-recipe": "nvfp4"}),
        ("bf16", "dgx-b200", {}),
    ],
)  # fmt: skip
def test_megatron_low_precision(precision: str, cluster: str, expected: dict[str, str]) -> None:
    found = flags(precision=precision, cluster=cluster)
    assert {name: x for name, x in found.items() if name.startswith(("fp8", "fp4"))} == expected
    assert "bf16" in found and "grad-reduce-in-bf16" in found


@pytest.mark.parametrize("precision", ["bf16", "fp8_current"])
def test_megatron_groups_the_products_of_experts(precision: str) -> None:
    asked = {"model": "deepseek-v3", "gpus": 1024, "pp": 16, "ep": 64}
    assert "moe-grouped-gemm" in flags(**asked, precision=precision)
    assert "moe-grouped-gemm" not in flags(**asked, precision="fp32")


def test_megatron_offloads_the_first_layers() -> None:
    assert flags(tp=8, offload_layers=40)["cpu-offloading-num-layers"] == "40"
    assert "cpu-offloading-num-layers" not in flags(tp=8)


def test_megatron_names_of_recomputed_modules(tmp_path: Path) -> None:
    """megatron/core/transformer/transformer_config.py, recompute_modules."""
    own = tmp_path / "own.toml"
    own.write_text(
        'base = "megatron-core"\n[kernels]\n'
        'selective_modules = ["core_attn", "norm", "mlp", "mlp_act", "mla_up_proj"]\n'
    )
    asked = {"software": str(own), "recompute": "selective"}
    dense = flags(**asked)["recompute-modules"]
    assert dense.split() == ["core_attn", "layernorm", "mlp", "mla_up_proj"]
    experts = flags(**asked, model="deepseek-v3", gpus=1024, pp=16, ep=64)["recompute-modules"]
    assert experts.split() == ["core_attn", "layernorm", "mlp", "moe_act", "mla_up_proj"]


@pytest.mark.parametrize(
    ("sharding", "strategy"), [("zero2", "optim_grads"), ("zero3", "optim_grads_params")]
)
def test_megatron_fsdp(sharding: str, strategy: str) -> None:
    text, found = block(sharding=sharding), flags(sharding=sharding)
    assert "unset CUDA_DEVICE_MAX_CONNECTIONS" in text
    assert found["data-parallel-sharding-strategy"] == strategy
    assert found["ckpt-format"] == "fsdp_dtensor"
    assert {"use-megatron-fsdp", "no-gradient-accumulation-fusion"} <= set(found)


def test_megatron_wants_one_connection_with_tensor_parallelism() -> None:
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in block(tp=2)
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in block()


def test_megatron_shards_over_part_of_the_ranks() -> None:
    assert flags(shard_group=8)["num-distributed-optimizer-instances"] == "8"
    assert "num-distributed-optimizer-instances" not in flags()


def test_megatron_rank_order() -> None:
    assert "use-tp-pp-dp-mapping" in flags(pp=2, rank_order="tp-cp-pp-dp")
    assert "use-tp-pp-dp-mapping" not in flags(pp=2)


@pytest.mark.parametrize(
    ("layout", "method", "count"),
    [
        ({"recompute": "full"}, "uniform", "1"),
        ({"recompute_layers": 4, "pp": 4}, "block", "4"),
        # 10 layers of each rank, 5 chunks to a rank: 2 of every chunk.
        ({"recompute_layers": 10, "pp": 4, "vpp": 5}, "block", "2"),
        ({"recompute_layers": 7, "pp": 4, "vpp": 5}, "block", "2"),
    ],
)
def test_megatron_counts_recomputed_layers_per_virtual_stage(
    layout: dict[str, Any], method: str, count: str
) -> None:
    found = flags(**layout)
    assert (found["recompute-granularity"], found["recompute-method"]) == ("full", method)
    assert found["recompute-num-layers"] == count
    assert ("counted per virtual stage" in block(**layout)) == (layout.get("recompute_layers") == 7)


def test_megatron_names_the_modules_of_the_layout() -> None:
    """Names as megatron/training/arguments.py has them."""
    found = flags(recompute="selective", recompute_modules="norm+mlp")
    assert (found["recompute-granularity"], found["recompute-modules"]) == (
        "selective",
        "layernorm mlp",
    )


def unrolled(layout: str) -> list[str]:
    """Read a pipeline layout as Megatron does: groups first, then single layers."""
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(pattern, lambda found: found.group(1) * int(found.group(2)), layout)
    return layout.split("|")


@pytest.mark.parametrize(
    ("model", "pp", "vpp"),
    [("llama-3.1-405b", 4, 1), ("llama-3.1-405b", 16, 7), ("deepseek-v3", 16, 1),
     ("deepseek-v3", 8, 2), ("llama-3.1-70b", 3, 1)],
)  # fmt: skip
def test_uneven_stages_are_spelled_out(model: str, pp: int, vpp: int) -> None:
    row, arch = {"pp": pp, "vpp": vpp}, load(model)
    stages = unrolled(pipeline_layout(row, arch))
    assert [stage.count("t") for stage in stages] == layers_by_stage(row, arch)
    assert sum(layers_by_stage(row, arch)) == arch.layers and len(stages) == pp * vpp
    assert stages[0][0] == "E" and stages[-1][-1] == "L"
    assert set("".join(stages)) == {"E", "t", "L"}


def test_a_short_run_where_no_tokens_are_given() -> None:
    assert flags()["train-iters"] == "50"


def test_megatron_user_buffers(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('base = "megatron-core"\n[overlap]\ntensor = "userbuffers"\n')
    flag, asked = "tp-comm-overlap", {"software": str(mine), "tp": 8}
    assert flag in flags(**asked) and flag in flags(precision="fp8", **asked)
    assert flag not in flags(precision="fp8_blockwise", **asked)  # which have no buffers
    assert flag not in flags(software=str(mine), tp=1) and flag not in flags(tp=8)


# --- torchtitan ---------------------------------------------------------------------------------


def test_torchtitan_accumulates_without_a_pipeline() -> None:
    found = job(tp=4, micro_batch=2, global_batch=1024, tokens=1e12)
    assert found["model"] == {"name": "llama3", "flavor": "70B"}
    assert found["training"]["local_batch_size"] == 2
    assert found["training"]["global_batch_size"] == 1024
    assert found["training"]["steps"] == 119210  # 1e12 / (1024 x 8192), rounded up
    assert found["parallelism"] == {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 16,
        "fsdp_reshard_after_forward": "always",
        "tensor_parallel_degree": 4,
        "context_parallel_degree": 1,
        "pipeline_parallel_degree": 1,
    }


def test_torchtitan_holds_all_micro_batches_with_a_pipeline() -> None:
    found = job(pp=4, vpp=2, tp=4, micro_batch=2, global_batch=1024)
    assert found["training"]["local_batch_size"] == 256
    parallel = found["parallelism"]
    assert parallel["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert parallel["pipeline_parallel_microbatch_size"] == 2
    assert parallel["pipeline_parallel_layers_per_stage"] == 10
    assert parallel["fsdp_reshard_after_forward"] == "never"


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ({}, "1F1B"),
        ({"schedule": "gpipe"}, "GPipe"),
        ({"schedule": "looped_bfs", "vpp": 5}, "LoopedBFS"),
        ({"schedule": "interleaved_zb", "vpp": 5}, "InterleavedZeroBubble"),
        ({"schedule": "zb_v"}, "ZBVZeroBubble"),
        ({"schedule": "dualpipe_v"}, "DualPipeV"),
    ],
)
def test_torchtitan_names_the_schedule_as_torch_does(layout: dict[str, Any], name: str) -> None:
    # the keys of torch.distributed.pipelining.schedules.get_schedule_class
    parallel = job(pp=4, tp=4, **layout)["parallelism"]
    assert parallel["pipeline_parallel_schedule"] == name
    pieces = 80 // parallel["pipeline_parallel_layers_per_stage"]
    assert pieces == 4 * layout.get("vpp", 2 if "V" in name else 1)


def test_torchtitan_uneven_stages_name_every_module_once() -> None:
    parts = job(model="llama-3.1-405b", pp=4, tp=8)["parallelism"]["module_fqns_per_model_part"]
    assert [len(part) for part in parts] == [32, 32, 32, 33]
    layers = [f"layers.{i}" for i in range(126)]
    assert [name for part in parts for name in part] == [
        "tok_embeddings",
        *layers,
        "norm",
        "output",
    ]


def test_torchtitan_hybrid_sharding_and_context() -> None:
    parallel = job(cp=2, shard_group=16)["parallelism"]
    assert parallel["data_parallel_shard_degree"] == 8
    assert parallel["data_parallel_replicate_degree"] == 4
    assert parallel["context_parallel_degree"] == 2


@pytest.mark.parametrize(
    ("kind", "te", "torch"),
    [("ring", "p2p", "alltoall"), ("all_gather", "all_gather", "allgather")],
)
def test_kinds_of_context_parallelism(kind: str, te: str, torch: str) -> None:
    assert flags(cp=2, cp_kind=kind)["cp-comm-type"] == te
    assert flags(cp=2, cp_kind="all_to_all")["cp-comm-type"] == "a2a"
    rotation = job(cp=2, cp_kind=kind)["parallelism"]["context_parallel_rotate_method"]
    assert rotation == torch
    assert job(cp=2)["parallelism"]["context_parallel_rotate_method"] == "allgather"


def test_torchtitan_names_its_dispatch_of_tokens() -> None:
    experts = {"model": "qwen3-235b-a22b", "sharding": "zero3", "ep": 8}
    key = "expert_parallel_comm_backend"
    assert job(**experts, dispatcher="deepep")["parallelism"][key] == "deepep"
    assert key not in job(**experts)["parallelism"]


def test_megatron_hierarchical_context_parallelism() -> None:
    """The first number is the all-to-all level (two adjacent ranks), the second the ring."""
    found = flags(cp=8, cp_kind="hierarchical", cp_a2a=2)
    assert found["context-parallel-size"] == "8"
    assert found["cp-comm-type"] == "a2a+p2p"
    assert found["hierarchical-context-parallel-sizes"] == "2 4"
    assert "hierarchical-context-parallel-sizes" not in flags(cp=8)


def test_compressed_stashes_are_a_flag_or_a_note() -> None:
    """model_parallel_config: activation_func_fp8_input_store, for SwiGLU and fp8 alone."""
    stash = {"activation_input": 1.0, "mask": 0.125}
    text = block(stash_bytes=stash)
    assert "--activation-func-fp8-input-store" in text
    assert "# No option compresses these stashes of the plan, they are yours: mask." in text
    assert "--activation-func-fp8" not in block(stash_bytes={"activation_input": 0.5})
    for software in ("torchtitan", "plain-ddp"):
        text = block(software=software, model="llama-3.1-8b", stash_bytes=stash)
        assert "they are yours: activation_input, mask." in text
    assert "stashes" not in block()


def test_torchtitan_is_compiled_or_not() -> None:
    def compiled(software: str) -> Any:
        text = block(software=software)
        return tomllib.loads(text.split("<<'TOML'\n")[1].split("\nTOML\n")[0])["compile"]

    assert compiled("torchtitan") == {"enable": True}
    assert compiled("torchtitan-eager") == {"enable": False}


def test_torchtitan_asynchronous_tensor_parallelism() -> None:
    key = "enable_async_tensor_parallel"
    assert job(software="torchtitan-async", tp=8)["parallelism"][key] is True
    assert key not in job(software="torchtitan-async", tp=1)["parallelism"]
    assert key not in job(tp=8)["parallelism"]


@pytest.mark.parametrize("precision", ["fp8", "fp8_current"])
def test_torchtitan_low_precision(precision: str) -> None:
    found = job(precision=precision)
    assert found["model"]["converters"] == ["quantize.linear.float8"]
    assert found["quantize"]["linear"]["float8"]["filter_fqns"] == ["output"]
    assert found["training"]["mixed_precision_param"] == "bfloat16"


def test_torchtitan_selective_recomputation_is_per_operator() -> None:
    expected = {"mode": "selective", "selective_ac_option": "op"}
    assert job(recompute="selective")["activation_checkpoint"] == expected


# --- torchrun -----------------------------------------------------------------------------------


def test_torchrun_on_one_server_and_on_many() -> None:
    def line(gpus: int) -> str:
        found = predict(model="gpt2-small", cluster="dgx-h100", gpus=gpus)
        return torchrun(found.scenario.cluster)

    assert line(4) == "torchrun --standalone --nproc_per_node 4"
    assert line(8) == "torchrun --standalone --nproc_per_node 8"
    assert line(64).startswith("torchrun --nnodes 8 --nproc_per_node 8 ")


def test_plain_data_parallelism() -> None:
    text = block(model="gpt2-xl", gpus=8, software="plain-ddp", micro_batch=4)
    assert "MICRO_BATCH=4 GRADIENT_ACCUMULATION=32 SEQUENCE_LENGTH=1024" in text
    assert text.endswith("torchrun --standalone --nproc_per_node 8 train.py")


@pytest.mark.parametrize("software", ["megatron-core", "torchtitan", "plain-ddp"])
def test_what_no_flag_says_is_named_last(software: str) -> None:
    asked = {"model": "llama-3.1-8b", "gpus": 8, "software": software}
    assert "no flag here says" not in block(**asked)
    last = block(**asked, optimizer="lion", loss_chunks=4).splitlines()[-1]
    said = "optimizer = 'lion', loss_chunks = 4"
    assert last == f"# The prediction also counts on what no flag here says: {said}."


def test_a_tpu_is_started_by_a_script_of_its_own() -> None:
    """No torchrun on a TPU: one process on every host, told how the batch is split."""
    text = block(
        model="bert-large",
        cluster="tpu-v3",
        gpus=16,
        software="xla-tpu-2020",
        precision="bf16",
        sequence_length=512,
        global_batch=64,
        micro_batch=2,
    )
    assert "torchrun" not in text
    assert text.splitlines()[-1] == "python train.py"
    assert "once on each of the" in text
    assert "MICRO_BATCH=2 GRADIENT_ACCUMULATION=2 SEQUENCE_LENGTH=512" in text
    subprocess.run(["bash", "-n", "-c", text], check=True)


def test_a_mask_is_made_only_where_the_prediction_counts_it() -> None:
    """Megatron-LM's loader makes one unless told not to; Megatron-Bridge's recipes do not."""
    flag = "no-create-attention-mask-in-dataloader"
    assert flag in flags(tp=8)
    assert flag not in flags(tp=8, software="megatron-core-defaults")


def test_given_stages_of_two_sizes_are_named() -> None:
    """Megatron alone would deal 20 layers to each of 4 stages."""
    said = flags(tp=8, pp=4, stages=[19, 21, 21, 19], global_batch=64)
    stages = unrolled(said["pipeline-model-parallel-layout"])
    assert [stage.count("t") for stage in stages] == [19, 21, 21, 19]
