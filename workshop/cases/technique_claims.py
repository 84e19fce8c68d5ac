"""Published figures of techniques beside what the code says: `validation/techniques.toml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from annotated_types import Gt

from simulator import catalogue
from simulator.errors import InputError, did_you_mean
from simulator.files import Number, Whole, build, read_toml, record
from workshop.cases.parameter_server_claims import SERVER_PREDICTORS
from workshop.cases.site_claims import SITE_PREDICTORS, Shapes
from workshop.cases.sparse_claims import SPARSE_PREDICTORS
from workshop.cases.vision_claims import VISION_PREDICTORS

PREDICTORS: Mapping[str, Callable[..., float]] = {
    **SITE_PREDICTORS,
    **SERVER_PREDICTORS,
    **VISION_PREDICTORS,
    **SPARSE_PREDICTORS,
}
"""What a claim may be predicted by: arguments are those of `given`."""


@record
class Claim:
    """One published figure."""

    technique: str
    """Under which it is listed."""
    what: str
    """The figure and its unit."""
    published: Annotated[Number, Gt(0)]
    source: str
    """Key under [sources]."""
    predictor: str
    given: dict[str, Any]
    simulated: bool = False
    """By its authors, not measured."""
    bound: Literal["least", "most"] | None = None
    """The prediction is the least, or the most, that the figure can be."""


@record
class _ModelShapes:
    """Matrices of a model, and values that are none."""

    matrices: tuple[tuple[Whole, ...], ...]
    """Rows, columns, how many."""
    vectors: Whole


@record
class _Claims:
    claim: tuple[Claim, ...]
    sources: dict[str, str]
    matrices: dict[str, _ModelShapes]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A claim and its prediction."""

    claim: Claim
    source: str
    predicted: float

    @property
    def error(self) -> float:
        """Prediction over the published figure, less one."""
        return self.predicted / self.claim.published - 1.0

    @property
    def keeps_bound(self) -> bool | None:
        """Whether the prediction lies on its side of the figure; None where it is no bound."""
        if self.claim.bound is None:
            return None
        return self.error <= 0.0 if self.claim.bound == "least" else self.error >= 0.0


@cache
def read_claims() -> tuple[tuple[Claim, ...], dict[str, str], dict[str, Shapes]]:
    """Read the shipped claims, the texts of their sources, and the models that they name.

    Raises
    ------
    InputError
        If a claim names an unknown predictor or source.
    """
    path = catalogue.folder("validation") / "techniques.toml"
    table = build(_Claims, read_toml(path), where=str(path))
    wrong = [
        f"{path}: claim.{i}.{field}: unknown {field} {word!r}{did_you_mean(word, known)}"
        for i, claim in enumerate(table.claim)
        for field, word, known in (
            ("predictor", claim.predictor, PREDICTORS),
            ("source", claim.source, table.sources),
        )
        if word not in known
    ]
    if wrong:
        raise InputError(wrong)
    shapes = {
        name: Shapes(matrices=products.matrices, vectors=products.vectors)
        for name, products in table.matrices.items()
    }
    return table.claim, table.sources, shapes


@cache
def held_claims() -> tuple[Held, ...]:
    """Predict every claim."""
    claims, sources, shapes = read_claims()
    found = []
    for claim in claims:
        given = dict(claim.given)
        if "model" in given:
            given["model"] = shapes[given["model"]]
        predicted = float(PREDICTORS[claim.predictor](**given))
        found.append(Held(claim=claim, source=sources[claim.source], predicted=predicted))
    return tuple(found)
