"""What the code says of speeds of recommender-like models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simulator.questions.sparse.answer import recommender
from simulator.scenario import make_scenario


def _million_samples_per_s(*, name: str, cluster: str, gpus: int, batch: int) -> float:
    """Millions of samples a second, tables on the accelerators."""
    scenario: dict[str, Any] = {
        "sparse": {"name": name},
        "training": {
            "sequence_length": 1,
            "global_batch": batch,
            "precision": "fp16",
            "optimizer": "sgd",
        },
        "cluster": {"name": cluster, "gpus": gpus, "software": "plain-ddp"},
        "layout": {"micro_batch": batch // gpus, "sharding": "ddp"},
    }
    return recommender(make_scenario(scenario)).samples_per_s / 1e6


SPARSE_PREDICTORS: Mapping[str, Callable[..., float]] = {
    "million_samples_per_s": _million_samples_per_s,
}
