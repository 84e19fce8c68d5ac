"""What a training step is: the case that train_step measures, its options, what cannot be."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import asdict, dataclass, fields, replace

from _models import MODELS, Architecture

SCHEDULES = {
    "GPipe": 1,
    "1F1B": 1,
    "Interleaved1F1B": 2,
    "InterleavedZeroBubble": 2,
    "ZBVZeroBubble": 2,
    "DualPipeV": 2,
}
"""torch's name -> stages that each rank holds."""
WHERE = ("first", "middle", "last")


class Impossible(ValueError):
    """A case that cannot be run; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training step; every field is an option of train_step of the same name."""

    model: str = "llama-tiny"
    """A key of MODELS."""
    layers: int = 0
    """Cut the model to its first layers; 0: all."""
    micro_batch: int = 1
    """Sequences that a rank computes at once."""
    sequence: int = 64
    """Tokens of a sequence."""
    accumulate: int = 1
    """Micro-batches of a rank in one step; of a pipeline those in flight."""
    tp: int = 1
    sequence_parallel: bool = False
    pp: int = 1
    dp: int = 0
    """Data-parallel ranks; 0: what tp and pp leave of the world."""
    sharding: str = "ddp"
    """ddp; FSDP2 that gathers a layer again for backward (zero3) or keeps it (zero2)."""
    schedule: str = "1F1B"
    recompute: str = "none"
    """none; selective: save attention and every second matmul (torchtitan); full: block inputs."""
    precision: str = "bf16"
    """Of the arithmetic: bf16 or fp32."""
    states: str = "fp32"
    """Of weights, gradients and AdamW: fp32 (autocast, or FSDP2 mixed precision) or bf16."""
    adamw: str = "fused"
    """fused, foreach or loop."""
    frozen: int = 0
    """Layers from the bottom that are not trained, with the embedding unless it is tied."""
    loss_chunks: int = 1
    """Parts of the sequence whose logits are made one after the other, and again in backward."""
    compile: bool = False
    """torch.compile of each block."""
    routing: str = "uniform"
    """Of a MoE: uniform or learned."""
    fake_world: int = 0
    """Be one rank of so many under the fake process group; 0: no."""
    rank: str = "first"
    """Which: first, middle or last (of the pipeline, or of the data-parallel ranks)."""
    seed: int = 0

    @property
    def kernel(self) -> str:
        """Name in the document."""
        return "train_step"

    @property
    def dtype(self) -> str:
        """Precision of the arithmetic, as the document calls it."""
        return self.precision

    @property
    def architecture(self) -> Architecture:
        """The model after the cut; stages and ranks that are alone do not tie embeddings."""
        whole = MODELS[self.model]
        tied = whole.tied and self.pp == 1 and not self.fake_world
        return replace(whole, layers=self.layers or whole.layers, tied=tied)

    @property
    def fsdp(self) -> bool:
        """Sharded by FSDP2, over one rank too."""
        return self.sharding != "ddp"

    @property
    def autocast(self) -> bool:
        """Weights are fp32 and cast to bf16 where they are used."""
        return self.precision == "bf16" and self.states == "fp32" and not self.fsdp

    @property
    def grouped(self) -> bool:
        """A (resolved) case that needs a process group."""
        return self.fsdp or self.dp * self.tp * self.pp > 1

    @property
    def fake_rank(self) -> int:
        """Global rank of the first, middle or last stage; without stages, dp rank."""
        count = self.pp if self.pp > 1 else self.dp
        at = {"first": 0, "middle": count // 2, "last": count - 1}[self.rank]
        return at * (self.dp * self.tp if self.pp > 1 else self.tp)

    @property
    def group(self) -> tuple:
        """What the process group depends on: cases that differ in it cannot share a process."""
        case = resolved(self, 1)
        return (case.grouped, case.fake_world, case.fake_rank if case.fake_world else 0)

    @property
    def stages(self) -> int:
        """Pipeline stages that each rank holds."""
        return SCHEDULES[self.schedule] if self.pp > 1 else 1

    @property
    def name(self) -> str:
        """Say what differs from a plain step."""
        plain = Case(model=self.model)
        parts = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(plain, field.name)
        ]
        return " ".join([self.model, *parts])

    def shape(self) -> dict[str, object]:
        """Return the `shape` of the record: all fields, and the sizes of the model."""
        sizes = asdict(self.architecture)
        sizes["model_layers"] = sizes.pop("layers")
        return asdict(self) | sizes


def resolved(case: Case, world_size: int) -> Case:
    """Fill in the data-parallel degree of a world of `world_size` ranks."""
    world_size = case.fake_world or world_size
    return replace(case, dp=case.dp or max(1, world_size // (case.tp * case.pp)))


def problem(case: Case, world_size: int, kind: str) -> str | None:
    """Say why the (resolved) case cannot be run; None where nothing is known against it."""
    shape, world_size = case.architecture, case.fake_world or world_size
    rules = [
        (
            case.dp * case.tp * case.pp == world_size,
            f"dp x tp x pp = {case.dp * case.tp * case.pp}, but there are {world_size} ranks",
        ),
        (case.tp == 1 or shape.family != "moe", "tp: MoE blocks are not tensor-parallel here"),
        (shape.kv_heads % case.tp == 0, f"tp: {shape.kv_heads} key-value heads"),
        (
            case.tp == 1 or case.dp == 1 or case.sharding != "ddp",
            "tp with dp > 1: only with sharding zero2 or zero3",
        ),
        (
            case.pp == 1 or case.dp == 1 or case.sharding != "ddp",
            "pp with dp > 1: only with sharding zero2 or zero3",
        ),
        (case.tp == 1 or case.sharding == "ddp" or case.dp > 1, "tp with FSDP2 over one rank"),
        (case.tp > 1 or not case.sequence_parallel, "sequence_parallel: only with tp > 1"),
        (case.sequence % case.tp == 0, "sequence: must be divisible by tp"),
        (case.tp == 1 or case.loss_chunks == 1, "loss_chunks: not with tp > 1"),
        (case.pp == 1 or case.loss_chunks == 1, "loss_chunks: not with a pipeline"),
        (case.sequence % case.loss_chunks == 0, "loss_chunks: must divide the sequence"),
        (case.pp == 1 or case.frozen == 0, "frozen: not with a pipeline"),
        (shape.layers >= case.pp * case.stages, "pp: fewer layers than stages"),
        (
            case.pp == 1 or case.fake_world or case.accumulate >= case.pp * case.stages,
            "accumulate: a pipeline needs a micro-batch for each stage",
        ),
        (
            case.pp == 1 or not case.fake_world or case.schedule == "1F1B",
            "a pipeline rank under the fake group: only 1F1B",
        ),
        (shape.family != "gpt" or case.sequence <= shape.longest, "sequence: longer than learned"),
        (case.frozen < shape.layers, "frozen: must leave a layer to train"),
        (case.precision == "bf16" or case.states == "fp32", "states bf16: only in bf16"),
        (
            not case.fake_world or case.dp == 1 or case.fsdp,
            "fake group: torch's DDP does not run on it; zero2 and zero3 do",
        ),
        (not case.fake_world or case.routing == "uniform", "fake group: only uniform routing"),
        (
            not case.compile or kind == "cuda" or shutil.which("g++") is not None,
            "compile: no C++ compiler",
        ),
    ]
    return next((reason for holds, reason in rules if not holds), None)


def add_options(made: argparse.ArgumentParser) -> None:
    """Give `made` one option for each field of a case."""
    choices = {
        "model": list(MODELS),
        "sharding": ["ddp", "zero2", "zero3"],
        "schedule": list(SCHEDULES),
        "recompute": ["none", "selective", "full"],
        "precision": ["bf16", "fp32"],
        "states": ["fp32", "bf16"],
        "adamw": ["fused", "foreach", "loop"],
        "routing": ["uniform", "learned"],
        "rank": list(WHERE),
    }
    for field in fields(Case):
        option = "--" + field.name.replace("_", "-")
        if field.name == "seed":
            continue
        if isinstance(field.default, bool):
            made.add_argument(option, action="store_true")
        else:
            kind, text = type(field.default), "(%(default)s)"
            made.add_argument(
                option, type=kind, default=field.default, choices=choices.get(field.name), help=text
            )


def from_options(arguments: argparse.Namespace) -> Case:
    """Return the case that the options describe."""
    return Case(**{field.name: getattr(arguments, field.name) for field in fields(Case)})


def differs(arguments: argparse.Namespace) -> bool:
    """Tell whether an option of a case was given (but for the precision and the seed)."""
    return any(
        getattr(arguments, field.name) != field.default
        for field in fields(Case)
        if field.name not in ("model", "precision", "seed")
    )
