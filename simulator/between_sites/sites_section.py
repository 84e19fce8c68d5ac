"""The section [sites] of a scenario, and how what sites send each other is made smaller."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from simulator import catalogue
from simulator.arrays import Floats
from simulator.errors import InputError, problem
from simulator.files import Figure, Items, Number, Unit, Whole, read_profile, record
from simulator.section import Rule, Section, build_section


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


_LARGEST = 100_000_000
Positive = Annotated[Whole, Gt(0), Le(_LARGEST)]


@record
class OuterStep:
    """One way, as hardware_profiles/outer_steps/NAME.toml describes it."""

    name: str
    local_steps: bool
    """Sites take steps of their own between exchanges; else they exchange gradients every step."""
    state_bytes: Figure
    """Kept of every parameter beside what the inner optimizer keeps."""
    traffic_bytes: Figure
    """Memory traffic of one outer step, of every parameter."""
    more_steps_fraction: Figure
    """Steps to the same loss beyond those of training in one place, as a share of them."""


@cache
def load_outer_step(name: str, *, where: str = "profiles", field: str = "outer_step") -> OuterStep:
    """Read a way by name or path.

    Raises
    ------
    InputError
        If there is none of the name, or a field of it is wrong.
    """
    path = catalogue.find("outer_steps", name, where=where, field=field)
    return read_profile(OuterStep, path, kind="outer_steps")


@record
class Place:
    """One site, [[sites.at]]."""

    name: str
    """What it is called."""
    cluster: str
    """A cluster profile of hardware_profiles/clusters, or a path to one."""
    gpus: Annotated[Positive, Unit("accelerators")]
    """Accelerators of the run there."""
    uplink_bytes_per_s: Annotated[Number, Ge(1000), Le(1e15)]
    """Rate to the other sites, one direction, all servers together: 12.5e9 is 100 Gbit/s."""
    latency_s: Annotated[Number, Ge(0), Le(10)]
    """One way to the farthest other site."""
    batch: Positive | None = None
    """Sequences of a step that are its share; none given: as many for every accelerator of the
    run, rounded so that all add up to training.global_batch."""


@record
class Sites:
    """Several sites in place of one, which `foreshard sites` compares with [cluster]."""

    at: Annotated[tuple[Place, ...], MinLen(2), MaxLen(64), Items(Place)]
    """The sites, [[sites.at]]."""
    outer_step: str = "diloco"
    """synchronous, local-sgd, diloco: a way of hardware_profiles/outer_steps, or a path to one."""
    inner_steps: Positive = 1
    """Steps that every site takes between two exchanges of the same part of the model; 1 where
    gradients are exchanged every step."""
    fragments: Positive = 1
    """Parts of the model that are exchanged in turn (Streaming DiLoCo); 1: all at once."""
    overlap_steps: Annotated[Whole, Ge(0), Le(_LARGEST)] = 0
    """Inner steps that run during an exchange, whose result they get late; 0: all sites wait."""
    compression: str = "none"
    """none, bf16, int8, fp4, one-bit, top-k, powersgd: a way of hardware_profiles/compressions, or
    a path to one."""
    compression_fraction: Annotated[Number, Gt(0), Le(1)] = 0.01
    """Share of the values that is sent, where it is sparse."""
    compression_rank: Positive = 2
    """Rank of the factors, where it is low-rank."""
    outer_states: Literal["gpu", "host"] = "gpu"
    """Where the outer optimizer's states lie and its step is taken."""
    more_steps_fraction: Figure | None = None
    """Steps to the same loss beyond those of training in one place, as a share of them; none given:
    that of the way, which no run of yours has shown."""


def read_sites(raw: Any, *, where: str) -> Sites:
    """Read the section.

    Raises
    ------
    InputError
        With every problem, each naming its field.
    """
    sites = build_section(Sites, raw, where=where, name="sites")
    if wrong := _wrong(sites, where):
        raise InputError(wrong)
    return sites


def _wrong(sites: Sites, where: str) -> list[str]:
    """What each field allows but the whole does not."""
    problems: list[str] = []
    names = [place.name for place in sites.at]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        problems.append(problem(where, "sites.at", "names must differ", twice[0]))
    has_batch = [place.batch is not None for place in sites.at]
    if any(has_batch) and not all(has_batch):
        problems.append(f"{where}: sites.at: batch must be given for all sites or for none")
    for load, name, field in (
        (load_outer_step, sites.outer_step, "sites.outer_step"),
        (load_compression, sites.compression, "sites.compression"),
    ):
        try:
            load(name, where=where, field=field)
        except InputError as error:
            problems += error.problems
    if problems:
        return problems
    if not load_outer_step(sites.outer_step).local_steps:
        for field, meant in (("inner_steps", 1), ("fragments", 1), ("overlap_steps", 0)):
            if (got := getattr(sites, field)) != meant:
                rule = f"must be {meant} where gradients are exchanged every step"
                problems.append(problem(where, f"sites.{field}", rule, got))
        return problems
    if sites.fragments > sites.inner_steps:
        rule = f"must be at most sites.inner_steps, {sites.inner_steps}"
        text = problem(where, "sites.fragments", rule, sites.fragments)
        return [f"{text} (nearest: {sites.inner_steps})"]
    most = sites.inner_steps // sites.fragments
    if sites.overlap_steps > most:
        rule = f"must be at most the {most} steps between two exchanges (inner_steps / fragments)"
        text = problem(where, "sites.overlap_steps", rule, sites.overlap_steps)
        problems.append(f"{text} (nearest: {most})")
    return problems


SITES = Section(name="sites", schemas=(Sites,), read=Rule(read_sites), priced_by="foreshard sites")
