"""The named terms of a step time, for CLI, report and tests: stream, phase, formula, figures."""

from __future__ import annotations

from simulator.records import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """What one named number of the breakdown means."""

    name: str
    label: str
    stream: str
    """compute, host, tensor, context, expert, copy, pipeline, data or idle."""
    phase: str
    """steady (every micro-batch), warm-up, drain, or end (once per step)."""
    formula: str
    source: str
    figures: str
    """What it reads of profiles."""


TERMS = (
    Term("gemm", "GEMMs", "compute", "steady",
         "micro-batches x blocks of the slowest stage x (forward + dgrad + wgrad): tiles in waves "
         "over the compute units, or operand traffic, whichever is longer",
         "fitted per device and library; cost/kernels/gemm.py",
         "accelerator gemm tables (tiles, rates, sustained and training clocks), "
         "matrix_flop_per_s"),
    Term("attention", "fused attention", "compute", "steady",
         "tiles of queries / compute units x (keys seen + half a tile + prologue) + a share of the "
         "longest tile, at a share of peak, plus traffic; backward: tiles of keys, 2.5 x the FLOPs",
         "fitted per device and library; cost/kernels/flash_attention.py",
         "accelerator attention tables, sustained clock"),
    Term("memory_bound", "memory-bound kernels", "compute", "steady",
         "bytes moved by norms, activations, residuals, softmax, loss / share of memory bandwidth",
         "bytes counted in cost/operators/block_operators.py; cost/kernels/memory_bound.py",
         "accelerator memory bandwidth and kernel classes; software profile fused kernels"),
    Term("recompute", "recomputation", "compute", "steady",
         "forward work of the recomputed modules or blocks, their collectives included",
         "Korthikanti et al. 2022, section 5",
         "those of the work that is repeated"),
    Term("launch", "host launches", "host", "steady",
         "kernels of a block x host time per kernel on the slowest host, less what the device was "
         "busy",
         "software profile [host]",
         "software profile [host]; node host_time"),
    Term("stragglers", "straggler wait", "compute", "steady",
         "compute x standard deviation among accelerators of one kind x expected largest of as "
         "many normal draws as there are accelerators",
         "Sinha et al. 2022; accelerator profile time_variation; cost/kernels/expert_layer.py",
         "accelerator time_variation"),
    Term("slowdown", "overlap contention", "compute", "steady",
         "hidden communication x compute units that it takes / compute units",
         "collective library profile compute_units, network_send_units",
         "collective library compute_units, network_send_units; accelerator compute units"),
    Term("tp", "tensor-parallel collectives", "tensor", "steady",
         "gather, scatter or all-reduce of the layer's activations, less the GEMM beside it",
         "Korthikanti et al. 2022, section 4.2; NCCL tuning model",
         "collective library curves; node scale_up; cluster fabric; software profile overlap"),
    Term("cp", "context-parallel exchange", "context", "steady",
         "sends, gathers or exchanges of keys and values, less the attention beside them",
         "ring attention, Liu et al. 2023",
         "collective library curves; node scale_up; cluster fabric"),
    Term("ep", "expert dispatch and combine", "expert", "steady",
         "two exchanges each way: tokens x top-k x hidden by all-to-all, tokens x places that one "
         "reaches (deepep), or all tokens of ep x etp ranks gathered and scattered (allgather)",
         "cost/operators/mlp.py, cost/operators/routing.py; NCCL; DeepEP",
         "collective library curves and dispatch; node scale_up; cluster fabric"),
    Term("fsdp", "parameter gathers of zero3", "data", "steady",
         "per block: gather before forward and, from the ranks it was resharded to, before "
         "backward; reduction after; less the block's compute",
         "Zhao et al. 2023 (FSDP); torch.distributed.fsdp.fully_shard",
         "collective library curves; node scale_up; cluster fabric; software profile prefetch"),
    Term("offload", "copies to host memory and back", "copy", "steady",
         "what is offloaded (kept activations of some blocks, gradients, parameters) / rate of the "
         "host link (or of the drives, where slower), each way, less the rank's pass beside it",
         "node profile host_bytes_per_s, nvme",
         "node host_bytes_per_s, nvme"),
    Term("input", "input", "copy", "steady",
         "bytes of a micro-batch's tokens and labels (and masks, where the loader makes them) / "
         "rate of the host link, and a broadcast over tp where one rank copies; prefetched: less "
         "the passes beside it; with [data] what workers, cores or the store take longer than the "
         "step",
         "software profile [input]; node profile host_bytes_per_s; data_input/supply.py",
         "node host_bytes_per_s; software profile [input]"),
    Term("small_reductions", "small all-reduces", "data", "steady",
         "gradient norm, once; fp8 with delayed scaling: maxima, once each way for every "
         "micro-batch and chunk, over tp x cp x dp ranks, less what the host takes longer",
         "Transformer Engine pytorch/fp8.py; cost/states/state_collectives.py",
         "collective library latencies; software profile [host]"),
    Term("pp", "pipeline sends", "pipeline", "steady",
         "(micro-batches x chunks + pp - 1) x 2 sends of the boundary activation",
         "Narayanan et al. 2021, section 2.2",
         "node scale_up; cluster fabric: latency and rate of a send"),
    Term("bubble_warmup", "pipeline fill", "idle", "warm-up",
         "forward passes of all other stages / chunks",
         "Narayanan et al. 2021, section 2.2, with unequal stages",
         "none of its own"),
    Term("bubble_drain", "pipeline drain", "idle", "drain",
         "backward passes of all other stages / chunks",
         "Narayanan et al. 2021, section 2.2, with unequal stages",
         "none of its own"),
    Term("dp", "gradient reduction and parameter gather", "data", "end",
         "bucketed reduction (and gather of zero1, zero2), less the pass beside it; the last "
         "bucket shows; with pp > 1 the sum of a word table that two stages hold",
         "Rajbhandari et al. 2020; Megatron-Core distributed optimizer",
         "collective library curves; node scale_up; cluster fabric; software profile buckets"),
    Term("optimizer", "optimizer step", "compute", "end",
         "bytes per parameter of one step x parameters of the rank / share of memory bandwidth; "
         "Muon: and five Newton-Schulz iterations; on the host: parameters a second, or 16 B a "
         "parameter from and to the drives",
         "software profile [states]; node profile host_adam_parameters_per_s, nvme",
         "software profile [states]; accelerator memory bandwidth; node "
         "host_adam_parameters_per_s"),
)  # fmt: skip
"""Terms on the critical path; they add up to the step time."""

LABELS = {term.name: term.label for term in TERMS}
STREAM_OF = {term.name: term.stream for term in TERMS}
"""What users read instead of the name of a term."""

HIDDEN = ("tp", "cp", "ep", "fsdp", "offload", "pp", "dp", "input")
"""Communication hidden under compute: a memo beside the sum, never part of it."""

MEMORY_MEANING = {
    "weights": "parameters of the rank x bytes per weight; zero3 divides them by the shard group",
    "gradients": "parameters of the rank x bytes per gradient; zero2 and zero3 divide them by the"
    " shard group; frameworks that free them after every step have none at the loss of a single"
    " micro-batch",
    "optimizer": "parameters of the rank x (master weight + moments); zero1, zero2 and zero3 divide"
    " them by the shard group",
    "gathered": "zero3: whole copies of what it computes with (embedding and head, the current"
    " block, the next one, the gradient that is being reduced); zero2: two buckets",
    "activations": "bytes that every block keeps for its backward pass x micro-batches in flight",
    "loss": "logits, what the loss keeps of them, gradients of the head; at other moments what"
    " micro-batches that wait for their backward pass have kept of their logits",
    "temporaries": "largest temporaries of one block's backward pass, and what recomputation"
    " rebuilds",
    "workspace": "library workspaces and buffers that stay allocated",
    "communicators": "buffers of the communicators that the rank takes part in",
    "fragmentation": "reserved less allocated: a share of all allocated kinds, and blocks that lie"
    " idle at the peak (FSDP2: pools of gathered weights and reduced gradients, what a block's"
    " forward pass leaves at the loss; DeepSpeed: pieces of the optimizer step)",
    "context": "what a process takes of the device before its first tensor: CUDA context, kernels",
}
"""How each kind of memory (MEMORY_KINDS) is counted."""
