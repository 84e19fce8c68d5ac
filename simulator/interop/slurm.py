"""A launch command as a job of SLURM: what it asks for, and one torchrun on every server.

Options as in SLURM's sbatch; the shape is that of torchtitan's multinode_trainer.slurm.
"""

from __future__ import annotations

from simulator.hardware.cluster import Cluster

__all__ = ["slurm_job"]


def slurm_job(block: str, cluster: Cluster, *, name: str = "foreshard") -> str:
    """Put a job's head above a command that torchrun starts.

    Examples
    --------
    >>> from simulator.hardware.cluster import load_cluster
    >>> print(slurm_job("torchrun train.py", load_cluster("dgx-h100", 8)).splitlines()[-1])
    srun torchrun train.py
    """
    each = min(cluster.node.accelerators, cluster.gpus)
    head = [
        "#!/bin/bash",
        f"#SBATCH --job-name={name}",
        f"#SBATCH --nodes={cluster.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={each}",
        "#SBATCH --exclusive",
    ]
    if cluster.nodes > 1:
        head.append('export HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')
    lines = block.splitlines()
    return "\n".join([*head, *(f"srun {x}" if x.startswith("torchrun ") else x for x in lines)])
