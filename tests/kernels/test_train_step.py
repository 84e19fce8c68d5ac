"""One training step, in this process: what recomputing, freezing and splitting leave as it is."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simulator.api import predict
from simulator.questions.calibrate.next_measurement import plan_measurements, programs

torch = pytest.importorskip("torch")
KERNELS = Path(__file__).resolve().parents[2] / "kernels"
sys.path.insert(0, str(KERNELS))
import _cases  # noqa: E402
import _layouts  # noqa: E402
import _models  # noqa: E402
import _pipeline  # noqa: E402
import _suite  # noqa: E402
import _training  # noqa: E402
from _cases import Case  # noqa: E402

sys.path.remove(str(KERNELS))

CPU = torch.device("cpu")
TINY = Case(model="llama-tiny", micro_batch=4, precision="fp32")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- a step, alone --------------------------------------------------------------------------------


def losses_and_norm(case: Case, steps: int = 3) -> tuple[list[float], float]:
    trainer = _training.Trainer(_cases.resolved(case, 1), CPU)
    squares: list[float] = []

    def note(phase: str) -> None:
        if phase == "backward":
            squares.append(_training.gradient_square(trainer))

    losses = [float(trainer.step(*trainer.batch(at), note)) for at in range(steps)]
    return losses, sum(squares) ** 0.5


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("mixtral-8x7b", 46_702_792_704),
        ("llama-3.2-1b", 1_235_814_400),
    ],
)
def test_published_parameter_counts(model: str, parameters: int) -> None:
    # As torch counts the Hugging Face models: shared/facts/torch_oracles.md section 7.
    with torch.device("meta"):
        made = _models.Transformer(_models.MODELS[model])
    made.tie()
    assert sum(one.numel() for one in made.parameters()) == parameters


@pytest.mark.parametrize("model", ["llama-tiny", "gpt-tiny", "moe-tiny"])
def test_recompute_changes_neither_losses_nor_gradients(model: str) -> None:
    plain = losses_and_norm(replace(TINY, model=model))
    assert plain[0][0] == pytest.approx(5.545, abs=0.1)  # ln 256: nothing is learned yet
    for how in ("selective", "full"):
        again = losses_and_norm(replace(TINY, model=model, recompute=how))
        assert again[0] == pytest.approx(plain[0], rel=1e-6)
        assert again[1] == pytest.approx(plain[1], rel=1e-5)


@pytest.mark.parametrize(
    "same",
    [
        {"loss_chunks": 4},
        {"micro_batch": 1, "accumulate": 4},
        {"adamw": "foreach"},
    ],
)
def test_the_same_step_in_other_ways(same: dict[str, Any]) -> None:
    plain = losses_and_norm(TINY)[0]
    assert losses_and_norm(replace(TINY, **same))[0] == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("states", ["fp32", "bf16"])
def test_bf16_stays_near_fp32(states: str) -> None:
    plain = losses_and_norm(TINY)[0]
    case = replace(TINY, precision="bf16", states=states)
    assert losses_and_norm(case)[0] == pytest.approx(plain, rel=2e-3)


def test_learning_goes_down_on_one_batch() -> None:
    trainer = _training.Trainer(_cases.resolved(TINY, 1), CPU)
    tokens, labels = trainer.batch(0)
    losses = [float(trainer.step(tokens, labels)) for _ in range(30)]
    assert losses[-1] < 0.9 * losses[0]


def test_frozen_layers_do_not_change() -> None:
    trainer = _training.Trainer(_cases.resolved(replace(TINY, frozen=2), 1), CPU)
    model = trainer.models[0]
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    for at in range(2):
        trainer.step(*trainer.batch(at))
    changed = {name for name, one in model.named_parameters() if not torch.equal(one, before[name])}
    frozen = {name for name in before if name.startswith(("embedding", "layers.0.", "layers.1."))}
    assert changed == set(before) - frozen
    assert sum(one.numel() for one in trainer.trained) == sum(
        before[one].numel() for one in changed
    )


def test_uniform_routing_is_even() -> None:
    experts = _models.Experts(_models.MODELS["moe-tiny"], uniform=True)
    _, chosen = experts._route(torch.randn(10, 64))
    assert torch.bincount(chosen.flatten()).tolist() == experts._loads(chosen) == [5, 5, 5, 5]
    assert all(len(set(row)) == 2 for row in chosen.tolist())


def test_selective_recompute_keeps_every_second_matmul() -> None:
    seen, forward = Counter(), SimpleNamespace(is_recompute=False)
    kept = [
        _layouts._keep(seen, forward, torch.ops.aten.mm.default)
        == _layouts.CheckpointPolicy.MUST_SAVE
        for _ in range(4)
    ]
    assert kept == [True, False, True, False]


# --- one rank of a pipeline -----------------------------------------------------------------------


def test_order_of_a_pipeline_rank_by_hand() -> None:
    assert _pipeline.order(0, 2, 3) == [
        ("F", 0),
        ("F", 1),
        ("B", 0),
        ("F", 2),
        ("B", 1),
        ("B", 2),
    ]
    assert _pipeline.order(3, 4, 2) == [("F", 0), ("B", 0), ("F", 1), ("B", 1)]


@pytest.mark.parametrize(("ranks", "micro_batches"), [(4, 8), (4, 2), (1, 3)])
def test_a_pipeline_rank_holds_as_many_as_are_ahead(ranks: int, micro_batches: int) -> None:
    for rank in range(ranks):
        alive, most = 0, 0
        for action, _ in _pipeline.order(rank, ranks, micro_batches):
            alive += 1 if action == "F" else -1
            most = max(most, alive)
        assert alive == 0
        assert most == min(ranks - rank, micro_batches)


def test_stages_share_all_layers() -> None:
    case = replace(TINY, pp=4, schedule="ZBVZeroBubble", layers=4)
    assert _pipeline.stage_indices(case, 0) == [0, 7]
    case = Case(model="llama-3.1-70b", pp=4)
    layers = [_pipeline.stage_layers(case, stage) for stage in range(4)]
    assert [len(one) for one in layers] == [20, 20, 20, 20]
    assert [at for one in layers for at in one] == list(range(80))


# --- the suite ------------------------------------------------------------------------------------


def test_every_case_of_the_suites_is_possible() -> None:
    sections = [*_suite.gpu_sections(), *_suite.small_sections(quick=False)]
    cases = [case for section in sections for case in section.cases]
    assert len(cases) > 60
    assert len(set(cases)) == len(cases)
    for case in cases:
        assert _cases.problem(_cases.resolved(case, 1), 1, "cuda") is None, case.name


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tp": 3}, "dp x tp x pp = 3, but there are 1 ranks"),
        ({"model": "moe-tiny", "fake_world": 2, "tp": 2}, "MoE blocks"),
        ({"fake_world": 8, "tp": 8}, "2 key-value heads"),
        ({"fake_world": 4}, "zero2 and zero3 do"),
        ({"frozen": 4}, "must leave a layer"),
        ({"states": "bf16"}, "only in bf16"),
    ],
)
def test_what_cannot_be_is_said(change: dict[str, Any], reason: str) -> None:
    case = _cases.resolved(replace(TINY, **change), 1)
    assert reason in str(_cases.problem(case, 1, "cpu"))


# --- what `measure --plan` names ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "software"),
    [
        ({"sharding": "zero3"}, "torchtitan"),
        ({"sharding": "zero2", "recompute": "full"}, "torchtitan-eager"),
        ({"sharding": "ddp"}, "torch-fsdp"),
        ({"gpus": 1}, "torchtitan-eager"),
    ],
)
def test_the_step_that_a_plan_of_measurements_names_can_be_run(
    layout: dict[str, Any], software: str
) -> None:
    """By the program's own parser and rules; and its models are those of this program."""
    run = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 16, "global_batch": 64}
    plan = plan_measurements(predict(software=software, **{**run, **layout}))
    (step,) = [m for m in plan.measurements if m.program == "train_step"]
    made = argparse.ArgumentParser()
    made.add_argument("--seed", type=int, default=0)
    _cases.add_options(made)
    case = _cases.from_options(made.parse_known_args(step.command.split()[2:])[0])
    assert case.recompute == layout.get("recompute", "none") and case.tp == layout.get("tp", 1)
    case = _cases.resolved(replace(case, compile=False), 1)
    assert _cases.problem(case, 1, "cuda") is None, step.command
    assert set(programs()["train_step"].models) <= set(_models.MODELS)


@pytest.mark.parametrize("more", [{"software": "megatron-core"}, {"pp": 2}, {"model": "qwen3-8b"}])
def test_no_step_is_named_that_the_program_cannot_run(more: dict[str, Any]) -> None:
    run = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 16, "software": "torchtitan"}
    plan = plan_measurements(predict(**{**run, **more}))  # type: ignore[arg-type]
    assert "train_step" not in {m.program for m in plan.measurements}
