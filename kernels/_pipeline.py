"""Pipelines: torch's schedules over real ranks, and one rank of a 1F1B pipeline alone."""

from __future__ import annotations

import torch
from _cases import Case
from _models import local
from torch import nn


def stage_indices(case: Case, rank: int) -> list[int]:
    """Return the stages of a pipeline rank: in a V for ZBV and DualPipeV, else dealt in turn."""
    if case.schedule in ("ZBVZeroBubble", "DualPipeV"):
        return [rank, 2 * case.pp - 1 - rank]
    return [rank + turn * case.pp for turn in range(case.stages)]


def stage_layers(case: Case, stage: int) -> range:
    """Return the layers of a stage: cut as evenly as whole layers allow."""
    layers, count = case.architecture.layers, case.pp * case.stages
    return range(stage * layers // count, (stage + 1) * layers // count)


def order(rank: int, ranks: int, micro_batches: int) -> list[tuple[str, int]]:
    """Return what a rank of a 1F1B pipeline does, as ("F" or "B", micro-batch).

    order(0, 2, 3) -> F0 F1 B0 F2 B1 B2
    """
    ahead = min(ranks - rank - 1, micro_batches)
    actions = [("F", at) for at in range(ahead)]
    for at in range(micro_batches):
        if at + ahead < micro_batches:
            actions.append(("F", at + ahead))
        actions.append(("B", at))
    return actions


class Pipeline:
    """All ranks of a pipeline, by torch.distributed.pipelining."""

    def __init__(self, case: Case, models: list[nn.Module], mesh, device, loss_of) -> None:
        """`models`: the stages of this rank, wrapped for data parallelism already."""
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import get_schedule_class

        group, rank = mesh.get_group("pp"), mesh.get_local_rank("pp")
        indices, count = stage_indices(case, rank), case.pp * case.stages
        stages = [
            PipelineStage(model, index, count, device, group=group)
            for model, index in zip(models, indices, strict=True)
        ]
        self.first, self.last = 0 in indices, count - 1 in indices
        self.schedule = get_schedule_class(case.schedule)(
            stages if case.stages > 1 else stages[0], case.accumulate, loss_fn=loss_of
        )

    def forward_backward(self, tokens, labels, mark):
        """Run all micro-batches (first index); return the mean loss, 0 where there is none."""
        losses: list[torch.Tensor] = []
        given = (tokens.flatten(0, 1),) if self.first else ()
        more = {"target": labels.flatten(0, 1), "losses": losses} if self.last else {}
        self.schedule.step(*given, **more)
        mark("backward")
        found = [local(loss.detach()) for loss in losses]
        return torch.stack(found).mean() if found else torch.zeros(())


class PipelineRank:
    """One rank of a 1F1B pipeline without the others: random inputs and gradients arrive."""

    def __init__(self, case: Case, model: nn.Module, rank: int, arrives, loss_of, sync) -> None:
        """`arrives()` makes what the stage before sends; `sync(last)` is told of the last."""
        self.case, self.model, self.arrives, self.sync = case, model, arrives, sync
        self.loss_of, self.rank = loss_of, rank
        self.first, self.last = rank == 0, rank == case.pp - 1

    def forward_backward(self, tokens, labels, mark):
        """Work through the micro-batches in the order of 1F1B."""
        count, alive, total = self.case.accumulate, {}, torch.zeros((), device=tokens.device)
        for action, at in order(self.rank, self.case.pp, count):
            if action == "F":
                given = tokens[at] if self.first else self.arrives()
                out = self.model(given)
                if self.last:
                    out = self.loss_of(out, labels[at]) / count
                    total += local(out.detach())
                alive[at] = given, out
            else:
                self.sync(at == count - 1)
                _, out = alive.pop(at)
                out.backward(None if self.last else torch.randn_like(out))
                del out
        mark("backward")
        return total
