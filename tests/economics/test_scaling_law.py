"""Scaling laws: the published optima, and that the closed form is the minimum."""

import pytest
from scipy.optimize import minimize_scalar

from simulator import catalogue
from simulator.economics.scaling_law import load_law

GOPHER_FLOP = 5.76e23
"""Compute of Gopher and of Chinchilla, Hoffmann et al. 2022."""


@pytest.mark.parametrize("name", catalogue.names("scaling_laws"))
@pytest.mark.parametrize("flop", [1e20, GOPHER_FLOP, 1e26])
def test_the_optimum_is_the_minimum(name: str, flop: float) -> None:
    law = load_law(name)
    best = law.optimum(flop)
    assert 6.0 * best.parameters * best.tokens == pytest.approx(flop)
    found = minimize_scalar(lambda x: law.loss(10**x, flop / 6 / 10**x), bounds=(6, 14))
    assert found.fun == pytest.approx(best.loss, rel=1e-9)
    assert 10**found.x == pytest.approx(best.parameters, rel=1e-2)


def test_the_third_approach_gives_40_billion_for_gopher() -> None:
    # Hoffmann et al. 2022, section 3.4: 40 billion parameters for Gopher's compute.
    assert load_law("hoffmann-2022").optimum(GOPHER_FLOP).parameters == pytest.approx(
        40e9, rel=0.02
    )


def test_the_replication_gives_about_20_tokens_a_parameter() -> None:
    # Besiroglu et al. 2024: consistent with Chinchilla's 70 billion parameters on 1.4 trillion.
    best = load_law("besiroglu-2024").optimum(GOPHER_FLOP)
    assert best.parameters == pytest.approx(70e9, rel=0.1)
    assert best.tokens / best.parameters == pytest.approx(20, rel=0.15)


def test_chinchillas_own_loss() -> None:
    # By hand: 1.6934 + 406.4 / 70e9^0.3392 + 410.7 / 1.4e12^0.2849
    #        = 1.6934 + 406.4 / 4764 + 410.7 / 2902
    law = load_law("hoffmann-2022")
    assert law.loss(70e9, 1.4e12) == pytest.approx(1.6934 + 0.0853 + 0.1415, abs=1e-3)
