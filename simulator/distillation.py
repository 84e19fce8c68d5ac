"""The section [distillation] of a scenario, and what teacher and student exchange."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Gt, Le

from simulator.arrays import Floats
from simulator.files import Whole, record
from simulator.section import Rule, Section, build_section

_LARGEST = 100_000_000


@record
class Distillation:
    """A teacher in the step of the student of [model], which `foreshard distil` prices."""

    teacher: str | None = None
    """A model of the zoo, or the path of a Hugging Face config.json; its vocabulary is the
    student's. None given: the student as it was before training, the reference of DPO, which
    under adapters is their base and takes no weights of its own."""
    compares: Literal["outputs", "log_probabilities"] = "outputs"
    """What the loss takes of the teacher: all outputs of a token (their divergence), or the log-
    probability of the token alone (DPO)."""
    kept_values: Annotated[Whole, Gt(0), Le(_LARGEST)] = 64
    """Largest outputs of a token that would be stored if the teacher ran ahead of time."""


def read_distillation(raw: Any, *, where: str) -> Distillation:
    """Read the section.

    Raises
    ------
    InputError
        With every problem, each naming its field.
    """
    return build_section(Distillation, raw, where=where, name="distillation")


def loss_bytes(tokens: Any, outputs: Any) -> Floats:
    """Memory traffic of the divergence between both outputs and of its gradient, 32 bits.

    Both are read for their softmax and again for the sum, the gradient is written.

    Examples
    --------
    >>> loss_bytes(1000, 128_000).item()
    2560000000.0
    """
    return np.asarray(np.asarray(tokens, float) * outputs * 4.0 * 5.0)


def log_probability_bytes(tokens: Any, outputs: Any) -> Floats:
    """Memory traffic of a token's log-probability among its outputs, 32 bits, without gradient.

    The outputs are read for their maximum and for the sum of their exponentials.

    Examples
    --------
    >>> log_probability_bytes(1000, 128_000).item()
    1024000000.0
    """
    return np.asarray(np.asarray(tokens, float) * outputs * 4.0 * 2.0)


def stored_bytes(tokens: Any, kept_values: Any) -> Floats:
    """Bytes of a teacher's largest outputs kept for every token: 16 bits and a place of 32 bits.

    Examples
    --------
    A billion tokens, 64 values each.

    >>> stored_bytes(1e9, 64).item()
    384000000000.0
    """
    return np.asarray(np.asarray(tokens, float) * kept_values * 6.0)


DISTILLATION = Section(
    name="distillation",
    schemas=(Distillation,),
    read=Rule(read_distillation),
    priced_by="foreshard distil",
)
