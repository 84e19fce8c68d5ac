"""A model in training: build it, split it, and take steps."""

from __future__ import annotations

import contextlib
import math

import _layouts
import _pipeline
import torch
import torch.distributed as dist
import torch.nn.functional as F
from _cases import Case
from _models import Transformer, initialise, local
from torch import nn
from torch.utils.checkpoint import checkpoint

LARGE = 0.4
"""A whole model above this share of the free memory is initialised in its parts."""


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy in fp32 of (batch, tokens, vocabulary)."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class WithLoss(nn.Module):
    """A whole model and its loss; in `chunks` parts of the sequence, recomputed in backward."""

    def __init__(self, model: Transformer, chunks: int) -> None:
        super().__init__()
        self.model, self.chunks = model, chunks

    def forward(self, tokens, labels):
        """Return the mean loss over all tokens."""
        if self.chunks == 1:
            return loss_of(self.model(tokens), labels)
        hidden = self.model(tokens, head=False)
        parts = zip(hidden.chunk(self.chunks, 1), labels.chunk(self.chunks, 1), strict=True)
        losses = [checkpoint(self._part, *part, use_reentrant=False) for part in parts]
        return torch.stack(losses).mean()

    def _part(self, hidden, labels):
        return loss_of(self.model.output(hidden), labels)


class Trainer:
    """One rank's share of a training run.

    `models` are its pipeline stages (one without a pipeline); `parameters` counts what it holds.
    """

    def __init__(self, case: Case, device: torch.device, *, free_bytes: float = math.inf) -> None:
        """Build the (resolved) case; a process group must exist if it has several ranks."""
        self.case, self.device = case, device
        grouped = dist.is_initialized() and case.grouped  # one alone may train beside others
        self.mesh = _layouts.make_mesh(case, device.type) if grouped else None
        self.rank = {name: self._place(name) for name in ("pp", "dp", "tp")}
        self.models = self._build(free_bytes)
        self.roots = [self._spread(model) for model in self.models]
        self._materialise()
        self.runner = self._runner()
        self.trained = [one for root in self.roots for one in root.parameters()]
        self.parameters = sum(local(one).numel() for one in self.trained)
        self.trained = [one for one in self.trained if one.requires_grad]
        self.optimizer = self._optimizer()

    def _place(self, name: str) -> int:
        return 0 if self.mesh is None else self.mesh.get_local_rank(name)

    # --- building ---

    def _build(self, free_bytes: float) -> list[Transformer]:
        """Make this rank's stages: filled with the same values everywhere, or on meta."""
        case = self.case
        dtype = torch.bfloat16 if case.states == "bf16" else torch.float32
        small = case.architecture.tied or self._bytes(dtype) < LARGE * free_bytes
        self.whole = small and not case.fake_world
        models = []
        for stage in _pipeline.stage_indices(case, self.rank["pp"]):
            with torch.device("meta"):
                model = Transformer(case.architecture, uniform=case.routing == "uniform").to(dtype)
            if self.whole:
                model.to_empty(device=self.device)
                initialise(model, case.seed)
            last = case.pp * case.stages - 1
            model.keep(_pipeline.stage_layers(case, stage), first=stage == 0, last=stage == last)
            if self.whole:
                model.tie()
            models.append(model)
        return models

    def _bytes(self, dtype: torch.dtype) -> float:
        with torch.device("meta"):
            model = Transformer(self.case.architecture)
        return dtype.itemsize * sum(one.numel() for one in model.parameters())

    def _spread(self, model: Transformer) -> nn.Module:
        """Freeze, split, wrap; return what is called: the model, alone or with its loss."""
        case = self.case
        _freeze(model, case)
        if case.tp > 1:
            _layouts.apply_tp(model, self.mesh["tp"], case.sequence_parallel)
            if self.whole:
                model.tie()
        _layouts.apply_recompute(model, case.recompute)
        if case.compile:
            _layouts.apply_compile(model)
            model.settled = case.tp > 1
        root = model if case.pp > 1 else WithLoss(model, case.loss_chunks)
        if case.fsdp:
            _layouts.apply_fsdp(root, model.layers.values(), self.mesh["dp"], case)
        elif case.dp > 1:
            if not self.whole:
                self._fill(model)
            return _layouts.apply_ddp(root, self.mesh["dp"])
        return root

    def _materialise(self) -> None:
        for model in self.models:
            if next(model.parameters()).is_meta:
                self._fill(model)
            model.make_tables(self.case.sequence, self.device)

    def _fill(self, model: Transformer) -> None:
        model.to_empty(device=self.device)
        initialise(model, self.case.seed + 1 + self.rank["dp"])

    def _runner(self):
        case = self.case
        if case.pp == 1:
            return self
        if case.fake_world:
            root, rank = self.roots[0], self.rank["pp"]
            return _pipeline.PipelineRank(case, root, rank, self._arrives, loss_of, self._sync)
        return _pipeline.Pipeline(case, self.roots, self.mesh, self.device, loss_of)

    def _arrives(self) -> torch.Tensor:
        case = self.case
        length = case.sequence // (case.tp if case.sequence_parallel else 1)
        dtype = torch.bfloat16 if case.precision == "bf16" and not case.autocast else torch.float32
        shape = (case.micro_batch, length, case.architecture.hidden)
        return torch.randn(shape, dtype=dtype, device=self.device, requires_grad=True)

    def _optimizer(self) -> torch.optim.Optimizer:
        """AdamW; parameters of different meshes are in different groups, for foreach's sake."""
        groups: dict[object, list] = {}
        for one in self.trained:
            groups.setdefault(getattr(one, "device_mesh", None), []).append(one)
        how = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}
        return torch.optim.AdamW(
            [{"params": group} for group in groups.values()], lr=1e-3, **how[self.case.adamw]
        )

    # --- steps ---

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens and labels of this rank: (micro-batch, sequence of it, token).

        The global batch of a step is the same however it is split.
        """
        case = self.case
        rows = case.accumulate * case.micro_batch
        source = torch.Generator().manual_seed(1_000_003 * case.seed + step)
        shape = (case.dp * rows, case.sequence + 1)
        found = torch.randint(case.architecture.vocabulary, shape, generator=source)
        own = found[self.rank["dp"] * rows :][:rows].to(self.device)
        own = own.view(case.accumulate, case.micro_batch, -1)
        return own[..., :-1].contiguous(), own[..., 1:].contiguous()

    def step(self, tokens, labels, mark=lambda phase: None) -> torch.Tensor:
        """Take one step; return this rank's mean loss. `mark` hears when a phase has ended."""
        with self._around():
            loss = self.runner.forward_backward(tokens, labels, mark)
        self.optimizer.step()
        mark("step")
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    @contextlib.contextmanager
    def _around(self):
        """Hold what forward and backward share: autocast in a pipeline, the loss over TP ranks."""
        with contextlib.ExitStack() as stack:
            if self.case.tp > 1:
                from torch.distributed.tensor.parallel import loss_parallel

                stack.enter_context(loss_parallel())
            if self.case.pp > 1:
                stack.enter_context(self._autocast())
            yield

    def _autocast(self):
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.case.autocast)

    def forward_backward(self, tokens, labels, mark) -> torch.Tensor:
        """Work through the micro-batches without a pipeline."""
        count, root, total = self.case.accumulate, self.roots[0], 0.0
        for at in range(count):
            self._sync(at == count - 1)
            with self._autocast():
                loss = root(tokens[at], labels[at])
            mark("forward")
            (loss / count).backward()
            mark("backward")
            total += local(loss.detach()) / count
        return total

    def _sync(self, last: bool) -> None:
        """Let gradients be combined over the data-parallel ranks with the last one only."""
        for root in self.roots:
            if self.case.fsdp:
                root.set_requires_gradient_sync(last)
            elif self.case.dp > 1:
                root.require_backward_grad_sync = last

    def refill(self) -> None:
        """Give the weights new random values: what fake collectives leave may not be finite."""
        for model in self.models:
            initialise(model, self.case.seed)


def _freeze(model: Transformer, case: Case) -> None:
    if case.frozen and not case.architecture.tied:
        model.embedding.requires_grad_(False)
    for at in range(case.frozen):
        model.layers[str(at)].requires_grad_(False)


def gradient_square(trainer: Trainer) -> float:
    """Return this rank's share of the squared norm of all gradients: the sum over ranks is it."""
    total, ranks = 0.0, trainer.case.dp * trainer.case.tp
    for one in trainer.trained:
        grad, copies = one.grad, ranks
        if grad is None:
            continue
        if hasattr(grad, "to_local"):
            grad, spread = _without_partial(grad)
            copies = ranks // spread
        wide = torch.float32 if grad.is_cuda else torch.float64  # a GPU would copy to float64
        total += torch.linalg.vector_norm(grad, dtype=wide).item() ** 2 / copies
    return total


def _without_partial(grad) -> tuple[torch.Tensor, int]:
    """Return the local part of a distributed gradient, and over how many ranks it is cut."""
    from torch.distributed.tensor import Replicate

    where = [Replicate() if one.is_partial() else one for one in grad.placements]
    grad = grad.redistribute(placements=where)
    cuts = [grad.device_mesh.size(at) for at, one in enumerate(where) if not one.is_replicate()]
    return grad.to_local(), math.prod(cuts)
