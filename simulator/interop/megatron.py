"""A layout as Megatron-LM flags.

Names and meanings as in NVIDIA/Megatron-LM@000c4ac2, megatron/training/arguments.py, and in the
user guide of Megatron-FSDP. What flags cannot say stands in a comment under the command.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from simulator.cost.blocks.tensor_overlap import usable
from simulator.interop.megatron_model import model_flags, unsaid
from simulator.interop.torchrun import SAMPLE_STEPS, torchrun, unsaid_stashes, wrapped
from simulator.layout.stages import stages
from simulator.scenario import Scenario
from simulator.software.profile import Software
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe

__all__ = [
    "layers_by_stage",
    "megatron_block",
    "megatron_flags",
    "megatron_notes",
    "megatron_unsaid",
    "pipeline_layout",
]

_CP_KINDS = {
    "ring": "p2p", "all_gather": "all_gather", "all_to_all": "a2a", "hierarchical": "a2a+p2p",
}  # fmt: skip
_DISPATCHERS = {
    "alltoall": ["--moe-token-dispatcher-type alltoall"],
    "allgather": ["--moe-token-dispatcher-type allgather"],
    "deepep": ["--moe-token-dispatcher-type flex", "--moe-enable-deepep"],
}
_RANK_ORDERS = {"tp-cp-dp-pp": [], "tp-cp-pp-dp": ["--use-tp-pp-dp-mapping"]}

_MODULES = {
    "core_attn": "core_attn", "norm": "layernorm", "mlp": "mlp", "mlp_act": "moe_act",
    "moe": "moe", "moe_act": "moe_act", "shared_experts": "shared_experts",
    "mla_up_proj": "mla_up_proj",
}  # fmt: skip
"""Our names of selectively recomputed modules -> Megatron's."""
_OF_EXPERTS = ("mlp_act", "moe", "moe_act", "shared_experts")
"""Those that mean something to Megatron for a model with experts only."""


def megatron_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Write the command for pretrain_gpt.py, ready to run on mock data."""
    groups = megatron_flags(row, scenario)
    return "\n".join(
        [
            "# In a checkout of Megatron-LM. Yours to set: data and tokenizer (mock data here),"
            " learning rate, checkpoints.",
            *_environment(row, scenario.workload.recipe),
            wrapped(f"{torchrun(scenario.cluster)} pretrain_gpt.py", groups),
            *(f"# {note}" for note in megatron_notes(row, scenario)),
        ]
    )


def megatron_flags(row: dict[str, Any], scenario: Scenario) -> list[list[str]]:
    """Flags of the whole run in groups, each ``--name value``."""
    arch, recipe = scenario.workload.architecture, scenario.workload.recipe
    groups = [
        _parallel(row, arch),
        _pipeline(row, arch),
        _batch(row, recipe),
        _states(row, scenario.software),
        _recompute(row, scenario.software, arch),
        [*_offload(row, recipe), *_stashes(recipe, arch)],
        _precision(recipe, scenario.software),
        _kernels(row, scenario),
        *model_flags(arch, scenario.software, recipe),
        _stand_ins(arch, scenario.software),
    ]
    return [group for group in groups if group]


def _environment(row: dict[str, Any], recipe: Recipe) -> list[str]:
    lines = []
    if row["sharding"] in ("zero2", "zero3"):
        lines.append("unset CUDA_DEVICE_MAX_CONNECTIONS")
    elif row["tp"] > 1 or row["cp"] > 1:
        lines.append("export CUDA_DEVICE_MAX_CONNECTIONS=1  # not needed from Blackwell on")
    if recipe.precision == "tf32":
        lines.append("export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1")
    return lines


def _parallel(row: dict[str, Any], arch: Architecture) -> list[str]:
    flags = [
        f"--tensor-model-parallel-size {row['tp']}",
        f"--pipeline-model-parallel-size {row['pp']}",
    ]
    if row["sequence_parallel"]:
        flags.append("--sequence-parallel")
    if row["cp"] > 1:
        flags += [
            f"--context-parallel-size {row['cp']}",
            f"--cp-comm-type {_CP_KINDS[row['cp_kind']]}",
        ]
        if row["cp_kind"] == "hierarchical":
            group, ring = row["cp_a2a"], row["cp"] // row["cp_a2a"]
            flags.append(f"--hierarchical-context-parallel-sizes {group} {ring}")
    if arch.is_moe:
        flags += [
            f"--expert-model-parallel-size {row['ep']}",
            f"--expert-tensor-parallel-size {row['etp']}",
            *_DISPATCHERS[row["dispatcher"]],
        ]
    return flags + _RANK_ORDERS.get(row["rank_order"], [])


def _pipeline(row: dict[str, Any], arch: Architecture) -> list[str]:
    pieces, count = row["pp"] * row["vpp"], row["global_batch"] // (row["dp"] * row["micro_batch"])
    flags = []
    if row["vpp"] > 1 and count % row["pp"]:
        size = count // (count // row["pp"])
        flags.append(f"--microbatch-group-size-per-virtual-pipeline-stage {size}")
    if arch.layers % pieces or len(set(row["stages"])) > 1:
        return [f"--pipeline-model-parallel-layout '{pipeline_layout(row, arch)}'", *flags]
    if row["vpp"] > 1:
        flags.append(f"--num-layers-per-virtual-pipeline-stage {arch.layers // pieces}")
    return flags


def layers_by_stage(row: dict[str, Any], arch: Architecture) -> list[int]:
    """Layers of every (virtual) pipeline stage, in model order."""
    table = stages(
        pp=row["pp"],
        vpp=row["vpp"],
        micro_batches=row["pp"],
        layer_kinds=arch.layer_kinds,
        kinds=len(arch.blocks),
        splits=[row.get("stages", ())],
    )
    counts = table.blocks.sum(axis=1)
    piece = table.chunk * row["pp"] + table.rank
    return [int(counts[i]) for i in piece.argsort()]


def pipeline_layout(row: dict[str, Any], arch: Architecture) -> str:
    """Spell uneven stages as Megatron does: E embedding, t layer, L loss, stages split by ``|``.

    >>> from simulator.workload.presets import load
    >>> pipeline_layout({"pp": 8, "vpp": 1}, load("llama-3.1-405b"))
    'Et*15|(t*16|)*6t*15L'
    """
    counts = layers_by_stage(row, arch)
    layers = ["t" * count if count < 2 else f"t*{count}" for count in counts]
    runs = [(f"{stage}|", len(list(same))) for stage, same in groupby(layers[1:-1])]
    middle = "".join(stage if times == 1 else f"({stage})*{times}" for stage, times in runs)
    return f"E{layers[0]}|{middle}{layers[-1]}L"


def _batch(row: dict[str, Any], recipe: Recipe) -> list[str]:
    if recipe.run_tokens is None:
        length = f"--train-iters {SAMPLE_STEPS}"
    else:
        length = f"--train-samples {int(-(-recipe.run_tokens // recipe.sequence_length))}"
    return [
        f"--micro-batch-size {row['micro_batch']}",
        f"--global-batch-size {row['global_batch']}",
        f"--seq-length {recipe.sequence_length}",
        length,
    ]


def _states(row: dict[str, Any], software: Software) -> list[str]:
    """How optimizer states, gradients and parameters are shared, and what that hides behind."""
    flags, shards = [], row["dp"] * row["cp"]
    if row["sharding"] != "ddp":
        flags.append("--use-distributed-optimizer")
    if row["sharding"] in ("zero2", "zero3"):
        strategy = "optim_grads" if row["sharding"] == "zero2" else "optim_grads_params"
        flags += [
            "--use-megatron-fsdp",
            f"--data-parallel-sharding-strategy {strategy}",
            "--no-gradient-accumulation-fusion",
            "--init-model-with-meta-device",
            "--ckpt-format fsdp_dtensor",
        ]
    if row["sharding"] != "ddp" and row["shard_group"] != shards:
        flags.append(f"--num-distributed-optimizer-instances {shards // row['shard_group']}")
    if software.overlap.gradient_reduce and shards > 1:
        flags.append("--overlap-grad-reduce")
        if software.overlap.parameter_gather and row["sharding"] != "ddp":
            flags.append("--overlap-param-gather")
    return flags


def _recompute(row: dict[str, Any], software: Software, arch: Architecture) -> list[str]:
    """Megatron's block method counts layers per virtual stage, the layout counts per rank."""
    if row["recompute"] == "none":
        return []
    flags = [f"--recompute-granularity {row['recompute']}"]
    if row["recompute"] == "selective":
        modules = [
            _MODULES[name]
            for name in _recomputed(row, software)
            if name in _MODULES and (name not in _OF_EXPERTS or arch.is_moe)
        ]
        words = " ".join(dict.fromkeys(modules))
        return flags + ([f"--recompute-modules {words}"] if modules else [])
    if row["recompute_layers"] == 0:
        return [*flags, "--recompute-method uniform", "--recompute-num-layers 1"]
    count = -(-row["recompute_layers"] // row["vpp"])
    return [*flags, "--recompute-method block", f"--recompute-num-layers {count}"]


def _recomputed(row: dict[str, Any], software: Software) -> Sequence[str]:
    """Modules that selective recomputation names."""
    named: str = row["recompute_modules"]
    return named.split("+") if named else software.kernels.selective_modules


def _offload(row: dict[str, Any], recipe: Recipe) -> list[str]:
    """Activations of the first layers of the model, and optimizer states, in host memory."""
    count = row["offload_layers"]
    flags = [f"--cpu-offloading-num-layers {count}"] if count else []
    if row["optimizer_offload"] == "cpu":
        share = float(recipe.optimizer_offload_fraction)
        flags += ["--optimizer-cpu-offload", f"--optimizer-offload-fraction {share:g}"]
        flags += ["--use-precision-aware-optimizer"]
    return flags


def _stashes(recipe: Recipe, arch: Architecture) -> list[str]:
    """Compressed stashes: Megatron-Core stores the input of SwiGLU in fp8, and nothing else."""
    stash = recipe.stash_bytes
    gated = all(mlp.gated for mlp in arch.mlps)
    fp8 = stash is not None and stash.activation_input == 1.0 and gated
    return ["--activation-func-fp8-input-store"] if fp8 else []


_LOW_PRECISION = {
    "fp8": [
        "--fp8-format hybrid", "--fp8-recipe delayed",
        "--fp8-amax-history-len 1024", "--fp8-amax-compute-algo max",
    ],
    "fp8_current": ["--fp8-format hybrid", "--fp8-recipe tensorwise"],
    "fp8_blockwise": ["--fp8-format e4m3", "--fp8-recipe blockwise"],
    "mxfp8": ["--fp8-format e4m3", "--fp8-recipe mxfp8"],
    "nvfp4": ["--fp4-format e2m1", "--fp4-recipe nvfp4"],
}  # fmt: skip
"""megatron/training/arguments.py of Megatron-Core 0.15: --fp8-recipe, --fp4-recipe."""


def _precision(recipe: Recipe, software: Software) -> list[str]:
    flags = {"fp16": ["--fp16"], "fp32": [], "tf32": []}.get(recipe.precision, ["--bf16"])
    flags = [*flags, *_LOW_PRECISION.get(recipe.precision, [])]
    if recipe.fp8_weights:
        flags = [*flags, "--fp8-param-gather"]
        if recipe.precision == "mxfp8":
            flags = [*flags, "--reuse-grad-buf-for-mxfp8-param-ag"]
    if flags and float(software.states.gradient) >= 4:
        flags = [*flags, "--accumulate-allreduce-grads-in-fp32"]
    elif "--bf16" in flags:
        flags = [*flags, "--grad-reduce-in-bf16"]
    if recipe.optimizer in ("sgd", "muon"):
        flags = [*flags, f"--optimizer {recipe.optimizer}"]
    return flags


def _kernels(row: dict[str, Any], scenario: Scenario) -> list[str]:
    software = scenario.software
    flags = [f"--attention-backend {software.kernels.attention}"]
    if "loss" in software.kernels.fused:
        flags.append("--cross-entropy-loss-fusion")
    overlap = usable(software.overlap, scenario.workload.recipe.precision)
    if overlap.tensor == "userbuffers" and row["sequence_parallel"]:
        flags.append("--tp-comm-overlap")
    if software.overlap.expert and row["ep"] > 1 and _pairs_passes(row, software):
        flags.append("--overlap-moe-expert-parallel-comm")
    if row["vpp"] > 1 and not software.overlap.pipeline_send:
        flags.append("--no-overlap-p2p-communication")
    return flags


def _pairs_passes(row: dict[str, Any], software: Software) -> bool:
    """Whether Megatron-LM takes --overlap-moe-expert-parallel-comm with this layout.

    megatron/core/transformer/transformer_config.py: chunks where there is a pipeline, experts not
    recomputed.
    """
    again = row["recompute"] == "full" or (
        row["recompute"] == "selective" and "moe" in _recomputed(row, software)
    )
    return not again and (row["pp"] == 1 or row["vpp"] > 1)


def _stand_ins(arch: Architecture, software: Software) -> list[str]:
    """Mock data; the null tokenizer adds one token to the size that it is given."""
    masked = ["--no-create-attention-mask-in-dataloader"] * (not software.input.mask_bytes)
    return [
        *masked,
        "--mock-data",
        "--tokenizer-type NullTokenizer",
        f"--vocab-size {arch.vocabulary - 1}",
        "--lr 1e-4",
        "--log-interval 1",
        "--log-throughput",
    ]


def megatron_notes(row: dict[str, Any], scenario: Scenario) -> list[str]:
    """What no flag says."""
    arch, recipe = scenario.workload.architecture, scenario.workload.recipe
    stashes = unsaid_stashes(recipe, _stashes(recipe, arch))
    return [*_notes(row, arch, scenario.software), *stashes]


def megatron_unsaid(row: dict[str, Any], scenario: Scenario) -> dict[str, str]:
    """Fields of a layout that no flag says."""
    unsaid = {}
    if row["rank_order"] not in _RANK_ORDERS:
        unsaid["rank_order"] = "Megatron-LM cannot order ranks so, its default is used."
    if row["recompute"] == "full" and row["recompute_layers"] % row["vpp"]:
        count = -(-row["recompute_layers"] // row["vpp"])
        unsaid["recompute_layers"] = (
            f"recomputed layers are counted per virtual stage: {count} x {row['vpp']} of a rank."
        )
    return unsaid


def _notes(row: dict[str, Any], arch: Architecture, software: Software) -> list[str]:
    notes = []
    if software.overlap.expert and row["ep"] > 1 and not _pairs_passes(row, software):
        notes.append(
            "Megatron-LM hides no expert traffic with this recomputation, or a pipeline without"
            " chunks: the prediction does."
        )
    if arch.position == "rope":
        notes.append("Set --rotary-base (and its scaling) as the model's config.json has it.")
    if arch.position == "alibi":
        notes.append("Megatron-LM has no ALiBi: the command runs without positions.")
    if arch.blocks[0].parallel_residual:
        notes.append("Megatron-LM has no parallel residual: attention and MLP follow one another.")
    if missing := unsaid(arch):
        notes.append(f"These flags leave out of the model: {', '.join(missing)}.")
    if arch.mtp_layers:
        notes.append(
            f"{arch.mtp_layers} multi-token-prediction layer left out, as in the prediction."
        )
    return notes
