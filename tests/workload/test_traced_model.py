"""Traced models of the zoo: counts, prices, what they refuse; two layers of torch by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.api import predict
from simulator.errors import InputError
from simulator.planner.prediction import Prediction
from simulator.workload import presets
from simulator.workload.huggingface import from_hf
from simulator.workload.recipe import Recipe
from simulator.workload.torch_module import trace
from workshop.cases.large_batches import batch_curve, epochs

ZOO = Path(simulator.__file__).parent / "workload" / "zoo"


def resnet(batch: int = 64, **given: Any) -> Prediction:
    made = {"gpus": 8, "global_batch": 8 * batch, "micro_batch": batch, "sequence_length": 1}
    names = {"model": "resnet-50", "cluster": "dgx-a100", "software": "plain-ddp"}
    return predict(**names, **{**made, "sharding": "ddp", "optimizer": "sgd", **given})


def test_counts_of_resnet_50() -> None:
    """25.557 million parameters, 4.09 billion multiply-adds (He et al. 2016: 3.8, stride v1)."""
    arch = presets.load("resnet-50")
    parts = [arch.traced, *(arch.blocks[kind].traced for kind in arch.layer_kinds)]
    flop = sum(part.flop(2.0) - part.flop(1.0) for part in parts if part is not None)
    assert arch.parameters == 25_557_032
    assert (arch.layers, len(arch.blocks)) == (16, 8)
    assert flop / 2 == pytest.approx(4.089e9, rel=1e-3)
    assert resnet().estimate.model_flop == pytest.approx(3 * 512 * flop)


def test_wide_numbers_move_twice_the_bytes() -> None:
    small, wide = (presets.load(name).blocks[1].traced for name in ("resnet-50", "resnet-50-fp32"))
    assert small is not None
    assert wide is not None
    assert wide.saved_bytes.per_sample == pytest.approx(2 * small.saved_bytes.per_sample, rel=0.01)


def test_only_what_a_trace_knows() -> None:
    with pytest.raises(InputError, match=r"training\.precision: must be a type of 2 bytes"):
        resnet(precision="fp32")
    for wrong in ({"lora_rank": 8}, {"loss_chunks": 2}, {"optimizer": "muon"}):
        with pytest.raises(InputError, match="not yet for a traced module"):
            resnet(**wrong)
    with pytest.raises(InputError, match="has 1 tokens per image"):
        resnet(sequence_length=8192)
    with pytest.raises(InputError, match=r"layout\.tp"):
        resnet(tp=2)


def test_a_trace_that_is_none() -> None:
    with pytest.raises(InputError, match="layers: required field is missing"):
        from_hf({"model_type": "traced", "layer_kinds": [0]}, name="x", where="x.json")
    part = {"parameters": 1, "gemms": [], "flash": [], "streams": [], "element_bytes": 2,
            "saved_bytes": {}, "input_bytes": {}, "transient_bytes": {}}  # fmt: skip
    raw = {"model_type": "traced", "layers": [part], "layer_kinds": [1], "rest": part}
    with pytest.raises(InputError, match="layer_kinds: must name one of the 1 layers"):
        from_hf(raw, name="x", where="x.json")


# --- larger batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [0, 3, 2**31])
def test_numbers_of_a_trace_have_two_or_four_bytes_everywhere(width: int) -> None:
    raw = json.loads((ZOO / "resnet-50-fp32.json").read_text())
    for part in (*raw["layers"], raw["rest"]):
        assert part["element_bytes"] == 4
    raw["rest"]["element_bytes"] = width
    rule = r"trace\.json: element_bytes: must be 2 or 4 bytes of a number, the same in every part"
    with pytest.raises(InputError, match=rule):
        from_hf(raw, name="trace", where="trace.json")
    raw["layers"] = [part | {"element_bytes": width} for part in raw["layers"]]
    with pytest.raises(InputError, match=rule):
        from_hf(raw, name="trace", where="trace.json")


def test_a_model_is_no_device() -> None:
    rule = r"run\.toml: model\.name: must be a file or a folder, not a device"
    with pytest.raises(InputError, match=rule):
        presets.load("/dev/zero", where="run.toml", field="model.name")


def test_a_critical_batch_takes_twice_the_steps() -> None:
    """1,000 steps of 256 images; at a critical batch of 256 there are 2,000, at 512 1,500."""
    assert Recipe(sequence_length=1, global_batch=256, tokens=256e3).steps == 1000
    for critical, steps in ((256, 2000), (512, 1500)):
        given = Recipe(
            sequence_length=1, global_batch=256, tokens=256e3, critical_batch=float(critical)
        )
        assert given.steps == steps


def test_the_curve_goes_through_its_points() -> None:
    least, critical = batch_curve((100, 10), (300, 20))
    assert (least, critical) == (5.0, 100.0)
    assert [epochs(batch, least, critical) for batch in (100, 300)] == [10.0, 20.0]


def test_two_layers_of_torch_by_hand() -> None:
    """8 inputs, 16 rectified, 4 outputs, of two bytes: kernels of a pass and what passes in one.

    Back, a layer's bias is a sum over the gradient (one kernel in two passes); the gradient of its
    weights is written beside that of its outputs. A rectifier reads and writes in both passes.
    """
    torch = pytest.importorskip("torch")
    layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    found = trace(torch.nn.Sequential(*layers), (torch.zeros(1, 8),))
    first, rectifier, last = found.layers
    assert [part.parameters for part in found.layers] == [8 * 16 + 16, 0, 16 * 4 + 4]
    assert [part.streams[0].calls for part in found.layers] == [0.5, 1.0, 0.5]
    for part, outputs, inputs in ((first, 16, 8), (last, 4, 16)):
        (sums,) = part.streams
        assert (sums.forward_bytes.fixed, sums.forward_bytes.per_sample) == (0.0, 0.0)
        assert (sums.backward_bytes.fixed, sums.backward_bytes.per_sample) == (2 * outputs,) * 2
        passing = part.transient_bytes
        assert (passing.fixed, passing.per_sample) == (2 * outputs * inputs, 2 * outputs)
    (stream,) = rectifier.streams
    assert (stream.forward_bytes.per_sample, stream.backward_bytes.per_sample) == (64.0, 96.0)
    assert rectifier.transient_bytes.per_sample == 2 * 2 * 16  # the output is kept, not passing
