"""What the code says of speeds of convolutional models and of epochs of large batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simulator.planner.prediction import predict
from simulator.scenario import make_scenario
from workshop.cases.large_batches import batch_curve, epochs

_IMAGES = 1_281_167
"""Of ImageNet's training set."""


def images_per_s(
    *,
    cluster: str,
    gpus: int,
    batch: int,
    precision: str,
    network: str = "resnet-50",
    optimizer: str = "sgd",
) -> float:
    """Images a second of plain data parallelism, `batch` of them on every GPU."""
    scenario: dict[str, Any] = {
        "model": {"name": network},
        "training": {
            "sequence_length": 1,
            "global_batch": batch * gpus,
            "precision": precision,
            "optimizer": optimizer,
        },
        "cluster": {"name": cluster, "gpus": gpus, "software": "plain-ddp"},
        "layout": {"micro_batch": batch, "sharding": "ddp"},
    }
    return batch * gpus / predict(make_scenario(scenario)).step_time_s


def _minutes(*, epochs: float, **given: Any) -> float:
    """Minutes of so many epochs of ImageNet."""
    return epochs * _IMAGES / images_per_s(**given) / 60.0


def _epochs(*, known: tuple[tuple[float, float], tuple[float, float]], batch: float) -> float:
    """Epochs at a batch by the curve through two others."""
    return epochs(batch, *batch_curve(*known))


VISION_PREDICTORS: Mapping[str, Callable[..., float]] = {
    "images_per_s": images_per_s,
    "minutes_of_epochs": _minutes,
    "epochs_of_a_batch": _epochs,
}
