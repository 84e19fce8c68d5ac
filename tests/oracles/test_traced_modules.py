"""Traced modules against torch: parameters, FLOPs, saved bytes; a GPT and ResNet-50 by hand."""

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from simulator import Workload, plan, predict
from simulator.assembly import assemble
from simulator.cost.step import evaluate
from simulator.errors import InputError
from simulator.interop.exporting import launch_flags
from simulator.layout.layouts import Layouts
from simulator.planner.fitting import fitting
from simulator.workload.torch_module import TracedModule, trace


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleDict({name: nn.LayerNorm(width) for name in ("one", "two")})
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (
            y.view(shape).transpose(1, 2) for y in self.qkv(self.norms["one"](x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norms["two"](x))))


class GPT(nn.Module):
    def __init__(self, width: int = 64, layers: int = 3, vocabulary: int = 1000) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(32, width)
        self.layers = nn.ModuleList(Layer(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places.weight
        for layer in self.layers:
            h = layer(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), x.flatten())


class Bottleneck(nn.Module):
    """He et al. 2015, table 1; the stride in the 3x3 convolution, as torchvision has it."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.ModuleDict(
            {
                "one": self.unit(inputs, width, 1, 1),
                "two": self.unit(width, width, 3, stride),
                "three": self.unit(width, outputs, 1, 1),
            }
        )
        self.short = self.unit(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()

    @staticmethod
    def unit(inputs: int, outputs: int, size: int, stride: int) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.body["one"](x))
        y = self.body["three"](F.relu(self.body["two"](y)))
        return F.relu(y + self.short(x))


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        inputs, self.stages = 64, nn.ModuleList()
        for stage, count in enumerate((3, 4, 6, 3)):
            for index in range(count):
                stride = 2 if stage and not index else 1
                self.stages.append(Bottleneck(inputs, 64 << stage, stride))
                inputs = 256 << stage
        self.head = nn.Linear(2048, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))


def given(module: nn.Module, batch: int) -> torch.Tensor:
    if isinstance(module, ResNet50):
        return torch.empty(batch, 3, 224, 224, device="meta", dtype=torch.bfloat16)
    return torch.zeros(batch, 32, dtype=torch.long, device="meta")


def flop(found: TracedModule, samples: float) -> float:
    """Of the forward pass as torch counts it, causal attention in full."""
    causal = sum(c.flop(samples) for p in found.parts() for c in p.flash if c.causal)
    return sum(part.flop(samples) for part in found.parts()) + causal


def kept(module: nn.Module, x: torch.Tensor) -> int:
    """Bytes of the distinct storages that autograd saves, parameters and buffers left out."""
    ours = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers())}
    storages: dict[int, Any] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        if (key := t.untyped_storage()._cdata) not in ours:
            storages[key] = t.untyped_storage()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = module(x)
    assert out.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


@pytest.fixture(scope="module", params=[GPT, ResNet50])
def pair(request: pytest.FixtureRequest) -> tuple[nn.Module, TracedModule]:
    with torch.device("meta"):
        module = request.param().to(torch.bfloat16)
    return module, trace(module, (given(module, 1),))


def test_parameters(pair: tuple[nn.Module, TracedModule]) -> None:
    module, found = pair
    assert found.parameters == sum(p.numel() for p in module.parameters())
    if isinstance(module, ResNet50):
        assert found.parameters == 25_557_032  # torchvision's page of resnet50
        # first of a stage, then the others, for four stages
        assert found.layer_kinds == (0, 1, 1, 2, 3, 3, 3, 4, 5, 5, 5, 5, 5, 6, 7, 7)
    else:
        assert found.layer_kinds == (0, 0, 0)


@pytest.mark.parametrize("batch", [2, 8, 23])
def test_forward_flop(pair: tuple[nn.Module, TracedModule], batch: int) -> None:
    module, found = pair
    with FlopCounterMode(display=False) as counter:
        module(given(module, batch))
    assert flop(found, batch) == counter.get_total_flops()


def test_published_flop(pair: tuple[nn.Module, TracedModule]) -> None:
    module, found = pair
    if isinstance(module, ResNet50):
        assert flop(found, 1) / 2e9 == pytest.approx(4.09, abs=0.005)  # torchvision: GFLOPS 4.09
    else:  # 2 (12 h^2 L + V h) + 4 s h L per token (Narayanan et al. 2021, appendix), s = 32
        per_token = 2 * (12 * 64 * 64 * 3 + 1000 * 64) + 4 * 32 * 64 * 3
        assert flop(found, 1) == 32 * per_token


@pytest.mark.parametrize("batch", [2, 5])
def test_saved_bytes(
    pair: tuple[nn.Module, TracedModule], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, found = pair
    monkeypatch.setattr(F, "scaled_dot_product_attention", fused)
    saved = sum(part.saved_bytes.at(batch) for part in found.parts())
    assert saved == kept(module, given(module, batch))


def fused(q: Any, k: Any, v: Any, is_causal: bool) -> torch.Tensor:
    """The operator that a GPU runs; on the meta device torch would take attention apart."""
    operator = torch.ops.aten._scaled_dot_product_flash_attention
    return operator(q, k, v, 0.0, is_causal)[0]


def test_the_bytes_of_one_layer_by_hand() -> None:
    found = trace(Layer(64, 4), torch.zeros(1, 32, 64))
    # of h-wide 16-bit tensors per token: both norms' inputs and outputs (4), queries, keys, values
    # (3), attention's result, which the projection keeps too (1), gelu's input and output (8);
    # in fp32 mean and deviation of two norms, and the log-sum-exp of 4 heads
    per_token = 16 * 64 * 2 + 4 * 4 + 4 * 4
    assert found.rest.parameters == 0
    assert found.layers[0].saved_bytes.per_sample == 32 * per_token
    assert found.layers[0].input_bytes.per_sample == 32 * 64 * 2


def test_a_module_is_left_alone_and_encoder_layers_work() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True).eval()
    before = {name: p.clone() for name, p in layer.state_dict().items()}
    found = trace(layer, (torch.zeros(3, 16, 64),), element_bytes=4)
    assert not layer.training
    assert all(torch.equal(p, before[name]) for name, p in layer.state_dict().items())
    # four projections and two of four times the width, scores and context of 16 keys
    assert flop(found, 1) == 16 * (2 * 12 * 64 * 64 + 4 * 16 * 64)


@pytest.fixture(scope="module")
def work() -> Workload:
    with torch.device("meta"):
        module = ResNet50()
    return Workload.from_torch(module, torch.zeros(1, 3, 224, 224), global_batch=1024)


@pytest.mark.parametrize(
    ("sharding", "software"),
    [("ddp", "plain-ddp"), ("zero1", "megatron-core"), ("zero2", "torchtitan"),
     ("zero3", "torchtitan")],
)  # fmt: skip
def test_time_and_memory_grow_with_the_batch(work: Workload, sharding: str, software: str) -> None:
    few, many = (
        predict(
            model=work,
            cluster="dgx-h100",
            gpus=8,
            software=software,
            sharding=sharding,
            micro_batch=b,
        )
        for b in (32, 64)
    )
    assert few.scenario.workload.architecture.parameters == 25_557_032
    assert many.step_time_s < few.step_time_s < 2 * many.step_time_s
    kept = sum(
        work.architecture.blocks[k].traced.saved_bytes.per_sample  # type: ignore[union-attr]
        for k in work.architecture.layer_kinds
    )
    assert many.memory_bytes - few.memory_bytes > 32 * kept
    # 3 x 2 x 4.09e9 FLOPs a sample
    assert float(few.estimate.model_flop) == pytest.approx(1024 * 6 * 4.09e9, rel=2e-3)


def test_states_are_sharded(work: Workload) -> None:
    both = [
        predict(
            model=work,
            cluster="dgx-h100",
            gpus=8,
            software="megatron-core",
            micro_batch=32,
            sharding=sharding,
        ).estimate
        for sharding in ("ddp", "zero1")
    ]
    states = [float(e.memory_bytes["optimizer"][0]) for e in both]
    assert states == [25_557_032 * 12, 25_557_032 * 12 / 8]  # fp32 weights and two fp32 moments


def test_the_step_is_no_faster_than_its_products_at_peak() -> None:
    work = Workload.from_torch(GPT(1024, 4, 32000), torch.zeros(1, 32).long(), global_batch=4096)
    best = plan(model=work, cluster="dgx-h100", gpus=8)
    row = best.estimate.layouts
    assert {int(x) for name in ("tp", "pp", "cp", "ep") for x in getattr(row, name)} == {1}
    assert work.recipe.sequence_length == 32
    least = float(best.estimate.model_flop) / (8 * 989.4e12)  # datasheet, dense bf16
    assert (best.estimate.step_time_s > least).all()
    assert float(best.outcome.mfu[0]) > 0.05


def test_full_recomputation_keeps_the_inputs_of_the_layers() -> None:
    work = Workload.from_torch(GPT(), torch.zeros(1, 32).long(), global_batch=64)
    scenario = assemble(
        None, {"model": work, "cluster": "dgx-h100", "gpus": 8, "software": "torchtitan"}
    )
    layouts = Layouts.of(
        dp=8, micro_batch=8, global_batch=64, sharding="ddp", recompute=["none", "full"]
    )
    found = evaluate(layouts, scenario.workload, scenario.cluster, scenario.software)
    assert found.memory_total_bytes[1] < found.memory_total_bytes[0]
    assert found.step_time_s[1] > found.step_time_s[0]


@pytest.mark.parametrize(
    "module",
    [nn.Conv2d(8, 12, 3, groups=4), nn.ConvTranspose2d(8, 12, 3, stride=2, groups=2),
     nn.Conv1d(8, 16, 5, padding=2)],
)  # fmt: skip
def test_every_convolution_counts_as_torch_counts_it(module: nn.Module) -> None:
    x = torch.zeros(4, 8, 20) if isinstance(module, nn.Conv1d) else torch.zeros(4, 8, 20, 16)
    with FlopCounterMode(display=False) as counter:
        module(x)
    assert flop(trace(module, x), 4) == counter.get_total_flops()


def test_masked_and_grouped_attention_count_as_torch_counts_them() -> None:
    class Masked(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = self.linear(x).view(*x.shape[:2], 4, 16).transpose(1, 2)
            mask = torch.ones(x.shape[1], x.shape[1], device=x.device, dtype=torch.bool).tril()
            return F.scaled_dot_product_attention(q, q[:, :2], q[:, :2], mask, enable_gqa=True)

        def linear(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    module, x = Masked(64, 64, device="meta"), torch.empty(4, 16, 64, device="meta")
    with FlopCounterMode(display=False) as counter:
        module(x)
    assert flop(trace(module, x), 4) == counter.get_total_flops()


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return self.linear(y) if len(x) > 2 else y


class Looks(Branches):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * x.sum().item()


def test_the_memory_page_works(work: Workload) -> None:
    found = predict(model=work, cluster="dgx-h100", gpus=8, micro_batch=32, software="torchtitan")
    kept = sum(part.traced.saved_bytes.at(32) for part in work.architecture.blocks if part.traced)
    assert fitting(found).replayed[0].allocated_bytes > kept


def test_a_traced_module_has_no_launch_command(work: Workload) -> None:
    found = predict(model=work, cluster="dgx-h100", gpus=8)
    said = launch_flags(found.estimate.layouts, found.scenario)
    assert said == "# ResNet50 is a traced module: start it with a training script of its own."


def test_bad_input_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(2, 4)
    with pytest.raises(InputError, match="other operations with a larger batch"):
        trace(Branches(), x)
    with pytest.raises(InputError, match="does not run on the meta device"):
        trace(Looks(), x)
    with pytest.raises(InputError, match=r"must be a torch.nn.Module, got str"):
        trace("resnet", x)
    with pytest.raises(InputError, match="samples along its first dimension"):
        trace(Branches(), ())
    frozen = Branches().requires_grad_(False)
    with pytest.raises(InputError, match=r"frozen parameters are not counted yet, got linear.w"):
        trace(frozen, x)
    with pytest.raises(InputError, match=r"training.lora_rank: not yet for a traced module"):
        Workload.from_torch(nn.Linear(4, 4), x, global_batch=8, lora_rank=4)
    with pytest.raises(InputError, match=r"training.optimiser: unknown"):
        Workload.from_torch(nn.Linear(4, 4), x, global_batch=8, optimiser="sgd")
    work = Workload.from_torch(nn.Linear(4, 4), x, global_batch=8)
    with pytest.raises(InputError, match=r"layout.tp: must be 1: Linear is a traced module.*got 2"):
        predict(model=work, cluster="dgx-h100", gpus=8, tp=2)
    with pytest.raises(InputError, match=r"layout.recompute: must be none or full.*'selective'"):
        predict(model=work, cluster="dgx-h100", gpus=8, recompute="selective")
    fp32 = replace(work, recipe=replace(work.recipe, precision="fp32"))
    with pytest.raises(InputError, match="must be a type of 2 bytes, with which Linear was traced"):
        predict(model=fp32, cluster="dgx-h100", gpus=8)
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(InputError, match=r"pip install torch"):
        trace(nn.Linear(4, 4), x)
