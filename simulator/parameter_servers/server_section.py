"""The section [parameter_server] of a scenario, and what a host does with what is pushed."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MaxLen

from simulator import catalogue
from simulator.errors import InputError, problem
from simulator.files import Figure, Items, Number, Unit, Whole, read_profile, record
from simulator.section import Rule, Section, build_section

_LARGEST = 100_000_000
Positive = Annotated[Whole, Gt(0), Le(_LARGEST)]
Consistency = Literal["synchronous", "stale-synchronous", "asynchronous"]
Sent = Literal["fp32", "bf16", "fp16"]


@record
class ServerWork:
    """hardware_profiles/parameter_servers/NAME.toml."""

    name: str
    sum_bytes: Figure
    """Memory traffic of adding one pushed gradient, of every parameter."""
    update_bytes: Figure
    """Memory traffic of one optimizer step, of every parameter."""
    state_bytes: Figure
    """What servers keep of every parameter."""
    piece_bytes: Figure
    """Size of a message: while one is summed the next one travels."""
    time_variation: Figure
    """Standard deviation of the logarithm of a worker's step."""
    latency_s: Figure
    """Of a push, and of a pull."""
    asynchronous_more_updates: Figure
    """Updates to the same loss beyond those in step, as a share, where weights are stale."""


@record
class Straggler:
    """Workers that are slower all the time, [[parameter_server.stragglers]]."""

    workers: Positive
    """How many."""
    factor: Annotated[Number, Ge(1), Le(1000)]
    """Time of their steps over that of the others."""


@record
class ParameterServer:
    """Servers hold the weights, which `foreshard parameter-server` compares with all-reduce."""

    consistency: Consistency = "synchronous"
    """synchronous: all gradients of a step are summed, then applied (BSP). asynchronous: each is
    applied as it comes (DistBelief). stale-synchronous: the same, but no worker starts a step
    before all have pushed the step `staleness` and one before it (Ho et al. 2013)."""
    staleness: Annotated[Whole, Ge(0), Le(_LARGEST)] = 0
    """Steps that the fastest worker may be ahead of what it has seen of the slowest."""
    backup_workers: Annotated[Whole, Ge(0), Le(_LARGEST)] = 0
    """Workers that a synchronous step does not wait for: the first gradients make up the batch, the
    last ones are dropped (Chen et al. 2016). training.global_batch is that of those that count."""
    servers: Positive
    """Hosts that hold a shard each."""
    placement: Literal["own", "workers"] = "own"
    """own: hosts like the workers', without work for their accelerators, in addition to [cluster].
    workers: on the hosts of the workers, whose network adapters they share."""
    worker_gpus: Annotated[Positive, Unit("accelerators")] | None = None
    """Accelerators of one worker, inside which layouts split the model; none given: one server."""
    push_dtype: Sent = "fp32"
    """Type in which gradients are pushed."""
    pull_dtype: Sent = "bf16"
    """Type in which weights are pulled."""
    worker_cache: Literal["gpu", "host"] = "gpu"
    """Where a worker's copy of weights and gradients lies. host: in its host memory, from which
    every layer is copied when it is due, while another one computes (GeePS)."""
    server_memory_bytes_per_s: Annotated[Number, Ge(1e6), Le(1e15)] | None = None
    """Memory rate of a server's processors; none given: what the host's Adam rate comes to."""
    time_variation: Figure | None = None
    """Standard deviation of the logarithm of a worker's step; none given: an assumption."""
    stragglers: Annotated[tuple[Straggler, ...], MaxLen(16), Items(Straggler)] = ()
    """Workers that are slower all the time."""
    more_updates_fraction: Figure | None = None
    """Updates to the same loss beyond those of workers in step, as a share of them; none given: the
    assumption that stale updates are worth as much, which the answer points at."""


@cache
def load_server_work(name: str = "default") -> ServerWork:
    """Read what a host does with what is pushed."""
    path = catalogue.find("parameter_servers", name)
    return read_profile(ServerWork, path, kind="parameter_servers")


def read_parameter_server(raw: Any, *, where: str) -> ParameterServer:
    """Read the section.

    Raises
    ------
    InputError
        With every problem, each naming its field.
    """
    section = build_section(ParameterServer, raw, where=where, name="parameter_server")
    if section.staleness and section.consistency != "stale-synchronous":
        rule = f"must be 0 with consistency = {section.consistency!r}"
        raise InputError(problem(where, "parameter_server.staleness", rule, section.staleness))
    if section.backup_workers and section.consistency != "synchronous":
        rule = f"must be 0 with consistency = {section.consistency!r}"
        raise InputError(
            problem(where, "parameter_server.backup_workers", rule, section.backup_workers)
        )
    if section.time_variation is not None and section.time_variation > 1.0:
        got = float(section.time_variation)
        raise InputError(
            problem(where, "parameter_server.time_variation", "must be at most 1", got)
        )
    return section


PARAMETER_SERVER = Section(
    name="parameter_server",
    schemas=(ParameterServer,),
    read=Rule(read_parameter_server),
    priced_by="foreshard parameter-server",
)
