"""Examples that stand under the help of every command; each is tested to be one."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "plan": (
        "plan run.toml --out report --pictures",
        "plan --from train.sh --cluster dgx-h100",
        "plan run.toml --more --set layout.schedule=any --set cluster.gpus=512",
        "plan --model llama-3.1-8b --cluster aws-p5 --gpus 64 --set training.tokens=1e12",
    ),
    "predict": (
        "predict run.toml --set layout.tp=8 --set layout.pp=4",
        "predict run.toml --memory",
        "predict run.toml --anchored-by small-run.csv",
    ),
    "export": (
        "export run.toml --as torchtitan",
        "export run.toml --best --as slurm --out job.sh",
        "export run.toml --as markdown --top 10",
    ),
    "serve": ("serve", "serve --port 8100"),
    "simulate": (
        "simulate run.toml --deviation stage=3,replica=1,compute=1.2 --picture step.png",
        "simulate run.toml --trace step.json.gz",
        "simulate run.toml --run --seeds 200",
    ),
    "compare": ("compare run.toml --clusters dgx-h100,gb200-nvl72 --gpus 64..4096 --deadline 90d",),
    "size": (
        "size run.toml --deadline 90d --confidence 0.9",
        "size run.toml --budget 2M",
    ),
    "doctor": ("doctor",),
    "rent-or-buy": ("rent-or-buy --cluster dgx-h100 --gpus 1024 --months 36",),
    "what-if": ("what-if run.toml --change network.adapter=0.5 --change memory=+20%",),
    "versus": ("versus run.toml tp=4,pp=4 tp=8,pp=2",),
    "sweep": ("sweep grid.toml --out results",),
    "parameter-server": ("parameter-server run.toml --play",),
    "distil": ("distil run.toml",),
    "recommender": ("recommender run.toml --set sparse.updates=asynchronous",),
    "schedule": ("schedule jobs.toml --minimize slowdown",),
    "sites": ("sites run.toml",),
    "models": ("models", "models llama"),
    "fields": ("fields", "fields training", "fields tp"),
    "explain": ("explain gemm", "explain dp run.toml --set layout.tp=4"),
    "validate": (
        "validate",
        "validate my-runs.csv --html validation.html",
        "validate mine.csv --map 'GPU type=gpu' --map 't (ms)=step_time_ms'",
        "validate --megatron-log train.log --scenario run.toml",
        "validate --trace rank0.json.gz --scenario run.toml",
    ),
    "measure": ("measure --minutes 5 --out measured.json",),
    "calibrate": (
        "calibrate measured.json --base h100-sxm --out my-h100.toml",
        "calibrate all_reduce.log --base-cluster dgx-h100 --out-node my-node.toml"
        " --out-cluster my-cluster.toml",
    ),
    "calibrate-here": ("calibrate-here --quick --out here",),
    "cluster init": (
        "cluster init lab --gpu h100-pcie --per-server 4 --network ethernet --adapters 1"
        " --adapter-gbit 25 --price 2.1",
        "cluster init lab --gpu a100-sxm-80 --topo topo.txt",
    ),
    "profiles list": ("profiles list clusters",),
    "profiles show": ("profiles show h100-sxm",),
    "profiles check": ("profiles check my-cluster.toml",),
    "profiles links": (
        "profiles links dgx-h100 --gpus 64",
        "profiles links fabric.txt --write edges.csv",
    ),
}
"""By command, without the program's name."""


def epilog(command: str) -> str | None:
    """What stands under the help of a command."""
    lines = [f"foreshard {line}" for line in EXAMPLES.get(command, ())]
    return "\n\n".join([f"Example{'s' if len(lines) > 1 else ''}:", *lines]) if lines else None
