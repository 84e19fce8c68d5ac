"""The loss that parameters and tokens give, and how to split compute between them.

``loss = E + A / N^alpha + B / D^beta`` with ``6 N D`` FLOPs of training (Hoffmann et al. 2022,
equations 2 and 4). Coefficients are profiles, hardware_profiles/scaling_laws/NAME.toml.
"""

from __future__ import annotations

from typing import ClassVar

from simulator import catalogue
from simulator.files import Figure, read_profile, record
from simulator.records import dataclass

USUAL_LAW = "hoffmann-2022"
"""The law that is used unless another is given."""

FLOP_PER_PARAMETER_TOKEN = 6.0
"""Of training, forward and backward, attention left out: the convention of the laws."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimum:
    """The least loss that some compute buys."""

    parameters: float
    tokens: float
    loss: float


@record
class ScalingLaw:
    """A law as hardware_profiles/scaling_laws/NAME.toml gives it."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("name", "irreducible_loss", "parameter_coefficient", "token_coefficient"),
        *("parameter_exponent", "token_exponent"),
    )

    name: str
    irreducible_loss: Figure
    """E, nats a token."""
    parameter_coefficient: Figure
    """A."""
    token_coefficient: Figure
    """B."""
    parameter_exponent: Figure
    """alpha."""
    token_exponent: Figure
    """beta."""
    critical_batch_tokens: Figure | None = None
    """B* of the batch at which twice the tokens of a small one are needed: B* / loss^(1 / alpha_B)
    (Kaplan et al. 2020, equation 1.4); None: not known."""
    critical_batch_exponent: Figure | None = None
    """alpha_B."""
    note: str = ""
    """What it was fitted to."""

    def critical_batch(self, parameters: float, tokens: float) -> float | None:
        """Tokens of the critical batch at the end of a run; None where the law has none.

        Examples
        --------
        8 billion parameters, 2 trillion tokens: a loss of 2.00 nats, 2e8 / 2.00^(1 / 0.21).

        >>> round(load_law("hoffmann-2022").critical_batch(8e9, 2e12) / 1e6, 1)
        7.4
        """
        if self.critical_batch_tokens is None or self.critical_batch_exponent is None:
            return None
        loss = self.loss(parameters, tokens)
        return float(self.critical_batch_tokens) / loss ** (1.0 / self.critical_batch_exponent)

    def loss(self, parameters: float, tokens: float) -> float:
        """Loss in nats a token of a model of so many parameters after so many tokens."""
        return (
            float(self.irreducible_loss)
            + float(self.parameter_coefficient) / parameters ** float(self.parameter_exponent)
            + float(self.token_coefficient) / tokens ** float(self.token_exponent)
        )

    def optimum(self, flop: float) -> Optimum:
        """Split compute so that the loss is least, ``6 N D = flop`` (equation 4 of the paper).

        Examples
        --------
        Gopher's compute, for which the paper's third approach gives 40 billion parameters:

        >>> round(load_law("hoffmann-2022").optimum(5.76e23).parameters / 1e9)
        40
        """
        alpha, beta = float(self.parameter_exponent), float(self.token_exponent)
        weights = alpha * float(self.parameter_coefficient)
        ratio = weights / (beta * float(self.token_coefficient))
        product = flop / FLOP_PER_PARAMETER_TOKEN
        parameters = ratio ** (1.0 / (alpha + beta)) * product ** (beta / (alpha + beta))
        tokens = product / parameters
        return Optimum(parameters=parameters, tokens=tokens, loss=self.loss(parameters, tokens))


def load_law(name: str, *, where: str = "profiles", field: str = "law") -> ScalingLaw:
    """Read a scaling law by name or path."""
    return read_profile(ScalingLaw, catalogue.find("scaling_laws", name, where=where, field=field))
