"""Dense layers of a recommender by hand, for a quarter of the samples."""

from __future__ import annotations

import pytest

from simulator.sparse_tables.dense_model import _linears


@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_layers_of_widths_7_5_and_3(fraction: float) -> None:
    """16-bit numbers: products, what rectifiers move, what is kept, all for these samples alone."""
    part = _linears([7, 5, 3], fraction)
    assert part.parameters == 8 * 5 + 6 * 3
    assert part.flop(4.0) == 2 * 4.0 * fraction * (7 * 5 + 5 * 3)
    assert part.saved_bytes.at(4.0) == 4.0 * fraction * 2 * (7 + 5 + 5 + 3)
    assert part.input_bytes.at(4.0) == 4.0 * fraction * 2 * 7
    assert part.transient_bytes.at(4.0) == 4.0 * 2 * 2 * 7
    (stream,) = part.streams
    assert stream.forward_bytes.at(4.0) == 4.0 * fraction * 2 * 2 * (5 + 3)
    assert stream.backward_bytes.at(4.0) == 4.0 * fraction * 3 * 2 * (5 + 3)
    assert stream.calls == 2.0
    nothing = _linears([7], fraction)
    assert nothing.parameters == 0 and nothing.streams == ()
    assert nothing.input_bytes.at(4.0) == 4.0 * fraction * 2 * 7
    assert _linears([], fraction).input_bytes.at(4.0) == 0.0
