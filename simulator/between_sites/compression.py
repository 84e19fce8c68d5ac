"""How what sites send each other is made smaller: bytes, traffic to make them, memory kept."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np

from simulator import catalogue
from simulator.arrays import Floats
from simulator.files import Figure, read_profile, record


@record
class Compression:
    """One way, as hardware_profiles/compressions/NAME.toml describes it."""

    name: str
    form: Literal["quantised", "sparse", "low-rank"]
    """quantised: every value in fewer bits; sparse: a share of the values with their places;
    low-rank: two thin factors of every matrix."""
    sums: bool
    """Messages can be summed on the way (all-reduce); else each site gathers all of them."""
    value_bits: Figure
    """Bits of every value that is sent."""
    index_bits: Figure = Figure(0.0, "datasheet", "none")
    """Bits of its place."""
    encode_bytes_per_value: Figure
    """Memory traffic of making a message, of every value of the model."""
    decode_bytes_per_value: Figure
    """Memory traffic of reading a message, of every value of the model; sparse: of every value
    that was sent."""
    residual_bytes: Figure
    """Kept of every value: what the last message left out."""


@cache
def load_compression(
    name: str, *, where: str = "profiles", field: str = "compression"
) -> Compression:
    """Read a compression by name or path.

    Raises
    ------
    InputError
        If there is none of the name, or a field of it is wrong.
    """
    path = catalogue.find("compressions", name, where=where, field=field)
    return read_profile(Compression, path, kind="compressions")


def low_rank_values(rows: Any, columns: Any, count: Any, rank: Any) -> Floats:
    """Values of two factors of `rank` of `count` matrices each, no more than the matrix has.

    Parameters
    ----------
    rows, columns, count : array_like
        Sizes of matrices and how many there are of each.
    rank : array_like
        Columns of a factor.

    Examples
    --------
    A matrix of 1,000 x 500 by factors of rank 2: 2 (1,000 + 500) values of 500,000.

    >>> low_rank_values(1000, 500, 1, 2).item()
    3000.0
    """
    rows, columns = np.asarray(rows, float), np.asarray(columns, float)
    return np.asarray(count * np.minimum(rank * (rows + columns), rows * columns), float)


def message_bytes(values: Any, compression: Compression, *, fraction: Any = 1.0) -> Floats:
    """Bytes of one site's message.

    Parameters
    ----------
    values : array_like
        Values of the model; of low rank those of all factors and of what is sent whole.
    fraction : array_like
        Share of the values that is sent, where it is sparse.

    Examples
    --------
    One in a hundred of a billion values, 32 bits each with places of 32 bits: 80 MB.

    >>> message_bytes(1e9, load_compression("top-k"), fraction=0.01).item()
    80000000.0
    """
    bits = float(compression.value_bits) + float(compression.index_bits)
    sent = np.asarray(values, float) * (fraction if compression.form == "sparse" else 1.0)
    return np.asarray(sent * bits / 8.0)
