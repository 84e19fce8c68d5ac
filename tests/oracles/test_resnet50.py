"""ResNet-50 of the zoo, which needs no torch: equal to what torch does, and to published counts."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from simulator.workload import presets
from simulator.workload.families.traced_model import as_document
from simulator.workload.recipe import Workload
from tests.oracles.resnet50 import ResNet50, example

ZOO = Path(presets.__file__).parent / "zoo"


@pytest.mark.parametrize(("name", "precision"), [("resnet-50", "bf16"), ("resnet-50-fp32", "fp32")])
def test_the_zoo_holds_what_torch_does(name: str, precision: str) -> None:
    """python: as_document(Workload.from_torch(ResNet50(), example()).architecture, words)."""
    kept = json.loads((ZOO / f"{name}.json").read_text())
    work = Workload.from_torch(ResNet50(), example(), global_batch=256, precision=precision)
    assert as_document(work.architecture, kept["traced"]) == kept
    read = presets.load(name)
    assert (read.blocks, read.traced) == (work.architecture.blocks, work.architecture.traced)


def test_parameters_are_those_of_torch() -> None:
    counted = sum(p.numel() for p in ResNet50().parameters())
    assert presets.load("resnet-50").parameters == counted == 25_557_032
