"""What DeepSpeed's ZeRO does differently from other sharded optimizers."""

from __future__ import annotations

from simulator.files import Figure, record


@record
class DeepSpeedZero:
    """DeepSpeed's ZeRO; as it stands, nothing of it."""

    live_parameters: Figure = Figure(0.0)
    """zero3: parameters that stay whole on the device from their forward to their backward pass,
    which is near (half of DeepSpeed's stage3_max_reuse_distance); 0: none but the next block's."""
    reduces_everywhere: bool = False
    """zero1 and zero2: gradients are all-reduced, although every rank keeps its share only
    (DeepSpeed's use_multi_rank_bucket_allreduce)."""
    offloads_gradients: bool = False
    """Where the optimizer is offloaded, gradients go to the host after every micro-batch and are
    added up there (DeepSpeed); otherwise they stay and go once per step (Megatron-Core)."""
