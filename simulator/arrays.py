"""What arrays hold: one name for each width, so that every signature says the same."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Int32s = NDArray[np.int32]
"""Tasks and edges of large graphs: half the memory of 64 bit."""
