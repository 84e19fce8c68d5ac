"""Time of every GEMM of a micro-batch, each distinct shape priced once.

Which library and type runs it is the software's and the recipe's; tensor-parallel overlap may cut
it into pieces.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.blocks.tensor_overlap import WHOLE, cuts
from simulator.cost.kernels.expert_layer import as_grouped
from simulator.cost.kernels.gemm import device_rates, gemm_s
from simulator.cost.operators.operations import Gemm, Operators, Ranks, element_bytes
from simulator.cost.states.state_bytes import gradient_bytes
from simulator.errors import InputError, problem
from simulator.files import Figure
from simulator.hardware.accelerator import Accelerator
from simulator.layout.keys import unique_rows
from simulator.software.overlap import Overlap
from simulator.software.profile import Software
from simulator.workload.recipe import Recipe


def product_type(recipe: Recipe, kind: str) -> str:
    """Type of a GEMM: fewer than 16 bit are for the linears of the blocks only."""
    return "bf16" if recipe.is_quantised and kind != "linear" else recipe.matrix_type


def figures_for(
    device: Accelerator, table: dict[str, Any], key: str, what: str, fallback: str | None = None
) -> str:
    """Return the key of the entry of a device that a library, type or class gets.

    Raises
    ------
    InputError
        If the profile has neither `key` nor `fallback`.
    """
    if key in table:
        return key
    if fallback is not None and fallback in table:
        return fallback
    rule = "no measured or assumed entry"
    raise InputError(problem(f"accelerator {device.name}", what, rule, key, table))


class Products:
    """The device, library and type that GEMMs run with."""

    def __init__(
        self,
        device: Accelerator,
        software: Software,
        recipe: Recipe,
        ranks: Ranks,
        overlap: Overlap,
    ) -> None:
        self.device, self.software, self.recipe = device, software, recipe
        self.ranks, self.overlap = ranks, overlap
        self._size, self._keys = element_bytes(recipe), len(ranks.tp)

    def times(self, parts: list[Operators]) -> list[dict[str, Floats]]:
        """Seconds of every product of every part, by ``name:direction``; each shape once."""
        rows: dict[tuple[str, bool], list[tuple[int, str, Floats]]] = {}
        adds = "gradient_accumulation" in self.software.kernels.fused
        wide = gradient_bytes(self.recipe, self.software.states) >= 4.0
        weight_bytes = (8.0 if wide else 2.0 * self._size) if adds else self._size
        for index, ops in enumerate(parts):
            cut = cuts(ops, self.overlap, self.ranks, quantised=self.recipe.is_quantised)
            for g in ops.gemms:
                tokens = g.m + self._shared_rows(ops, g)
                aligned = self._aligned(g)
                weight = self._size if g.kind == "attention" else weight_bytes
                for direction, m, n, k, result in (
                    product
                    for width in g.linears or (g.n,)
                    for product in (
                        ("forward", tokens, width, g.k, self._size),
                        ("dgrad", tokens, g.k, width, self._size),
                        ("wgrad", g.k, width, tokens, weight),
                    )
                ):
                    if direction == "wgrad" and not g.trained:
                        continue
                    name = f"{g.name}:{direction}"
                    way = cut.get(name, WHOLE)
                    m, n, batch = way.shape(m, n, g.batch)
                    sizes = (m, n, k, batch, result, aligned, way.pieces, way.held_units)
                    shape = np.empty((len(sizes), self._keys))
                    for i, size in enumerate(sizes):
                        shape[i] = size
                    key = (index, name, shape)
                    rows.setdefault((product_type(self.recipe, g.kind), g.grouped), []).append(key)
        times: list[dict[str, Floats]] = [{} for _ in parts]
        for (dtype, grouped), calls in rows.items():
            columns = np.ceil(np.concatenate([shape for _, _, shape in calls], axis=1))
            seconds = self.seconds(dtype, columns, grouped).reshape(len(calls), self._keys)
            for (index, name, _), row in zip(calls, seconds, strict=True):
                times[index][name] = times[index].get(name, 0.0) + row
        return times

    def _shared_rows(self, ops: Operators, g: Gemm) -> float:
        """Rows that an expert's product takes more, since its tiles begin and end with others'.

        Experts lie one behind the other: r rows touch r / t + 1 tiles of t rows on average, on
        every device of the accelerator. Experts padded to a capacity start tiles of their own.
        """
        if not g.grouped or ops.padded_experts:
            return 0.0
        return float(self.software.kernels.group_tile_rows) * self.device.program_devices

    def _aligned(self, g: Gemm) -> Any:
        """Whether a product's operands have rows of the length that the library wants.

        The grouped kernels of TPUs mask what a row of 128 lanes has beyond the matrix, in every
        step over the depth.
        """
        lanes = float(self.software.kernels.group_lanes)
        if not (g.grouped and lanes):
            return g.aligned
        return (np.ceil(g.n) % lanes == 0.0) & (np.ceil(g.k) % lanes == 0.0)

    def seconds(self, dtype: str, columns: Floats, grouped: bool) -> Floats:
        """Seconds of calls of one type.

        Parameters
        ----------
        dtype : str
            Type of the products.
        columns : ndarray, shape (8, calls)
            M, N, K, products of a call, bytes of an element of the result, whether aligned, pieces,
            compute units set aside.
        grouped : bool
            Whether each call takes the experts of a rank.
        """
        unique = unique_rows(*(column.astype(np.int64) for column in columns))
        m, n, k, batch, result, aligned, pieces, held = (x[unique.first] for x in columns)
        library, half = self.software.kernels.gemm_library, self.device.sixteen_bit
        gemm = self.device.gemm
        types = gemm[figures_for(self.device, gemm, library, "gemm library")]
        units = half if dtype in ("fp16", "bf16") else dtype
        kernel = types[figures_for(self.device, types, units, f"gemm {library} type", half)]
        none = Figure(0.0)
        kernel = replace(kernel, host_floor_s=none)  # the host of a step has a term of its own
        if self.recipe.is_quantised and dtype == self.recipe.matrix_type:
            # timed calls take 16-bit operands and cast them; here casts are kernels of their own
            uncast = {"quantise_bytes_per_element": none, "quantise_row_s": none}
            kernel = replace(kernel, launch_s=types[half].launch_s, **uncast)
        calls, start_s = np.ones_like(batch), (pieces - 1.0) * kernel.launch_s
        if grouped and self.software.kernels.expert_products == "streams":
            calls, batch, start_s = batch, np.ones_like(batch), np.asarray(kernel.launch_s)
            kernel = replace(kernel, launch_s=none)
        elif grouped and units in self.device.grouped.get(library, {}):
            kernel = as_grouped(kernel, self.device.grouped[library][units], batch)
        rates = device_rates(self.device, dtype, held_units=held if held.any() else 0.0)
        sizes: dict[str, Any] = {"m": m, "n": n, "k": k, "batch": batch, "result_bytes": result}
        seconds = start_s + calls * gemm_s(rates, kernel, **sizes, aligned=aligned > 0.0)
        return seconds[unique.inverse]


def per_key(value: Any, keys: int) -> Floats:
    """The same as a column with an entry for each of so many keys."""
    column = np.asarray(value, dtype=float)
    return column if column.shape else np.full(keys, column)
