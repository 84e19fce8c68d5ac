"""The section [data]: what samples are, who prepares them, where they are read from.

Rates come from hardware_profiles/inputs/usual.toml and hardware_profiles/stores where the scenario
does not state its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from simulator import catalogue
from simulator.errors import InputError, problem
from simulator.files import Figure, Number, Unit, Whole, build, read_profile, record
from simulator.section import Rule, Section

Many = Annotated[Whole, Ge(0), Le(10_000)]


@record
class Store:
    """Where samples lie, as hardware_profiles/stores/NAME.toml or [data.store] describes it."""

    name: str = "own"
    """A store of hardware_profiles/stores, or a path to one, whose rates it takes; own: none."""
    read_bytes_per_s: Figure
    """What all readers together get."""
    per_server: bool = False
    """Whether these rates are those of every server's own drives; false: all servers share them."""
    server_bytes_per_s: Figure | None = None
    """What one server can read; none: no limit of its own."""
    stream_bytes_per_s: Figure | None = None
    """What one worker gets; none: no limit of its own."""
    requests_per_s: Figure | None = None
    """Reads that all readers together get (IOPS); none: no limit."""
    request_bytes: Figure = Figure(1048576.0, "assumed", "reads of 1 MiB")
    """Of one read; a sample takes one at least."""
    first_byte_s: Figure = Figure(0.0, "assumed", "none")
    """From a request to its first byte, in which its worker waits."""
    opens_per_s: Figure | None = None
    """Files that all readers together can open (operations of the metadata servers); none: no
    limit."""
    open_s: Figure = Figure(0.0, "assumed", "none")
    """To open one file, in which its worker waits."""


@record
class Defaults:
    """What a loader has where nobody says."""

    workers: Figure
    cores: Figure
    pageable_fraction: Figure


@record
class Usual:
    """hardware_profiles/inputs/usual.toml."""

    name: str
    defaults: Defaults
    bytes_per_token: dict[str, Figure]
    sample_bytes: dict[str, Figure]
    tokenizers_bytes_per_s: dict[str, Figure]
    """Bytes of text that one thread turns into tokens a second."""
    decoders_per_s: dict[str, Figure]
    """Images that one core decodes and transforms a second."""


@record
class DataInput:
    """What a run reads, and how; without the section samples are tokens, ready in time."""

    kind: Literal["tokens", "text", "images", "records"] = "tokens"
    """tokens: numbers of tokens, ready to use. text: tokenised as it is read. images: one
    compressed image a sample, decoded as it is read. records: samples of `sample_bytes`."""
    sample_bytes: Annotated[Number, Gt(0)] | None = None
    """Of one sample (a sequence, an image) as it is stored; none given: tokens of a sample x bytes
    of a token, or a mean image of ImageNet. Records need it."""
    samples_per_file: Annotated[Number, Gt(0), Unit("samples")] | None = None
    """Samples in one file: each file is opened once for them; none given: 1 for images, else so
    many that opening takes no time."""
    samples: Annotated[Number, Gt(0), Unit("samples")] | None = None
    """Samples of the data set: what one epoch reads; needed by `local_copy`."""
    tokenizer: Literal["fast", "slow", "tiktoken"] = "fast"
    """fast: Hugging Face tokenizers (Rust); slow: those written in Python; tiktoken."""
    tokenizer_threads: Annotated[Whole, Ge(1), Le(1024), Unit("threads")] = 1
    """Threads of the tokenizer in every worker; the slow ones have one."""
    decoder: Literal["libjpeg", "gpu"] = "libjpeg"
    """libjpeg: on the host's cores. gpu: on the accelerator (DALI, nvJPEG)."""
    prepare_s: Annotated[Number, Ge(0)] | None = None
    """Core seconds of preparing one sample; none given: by the tokenizer or decoder."""
    workers: Annotated[Many, Unit("processes")] | None = None
    """Loader processes of every rank that loads (torch's num_workers); 0: the training process
    reads by itself and waits. None given: 2, Megatron-LM's default."""
    prefetch: Annotated[Whole, Ge(1), Le(1000), Unit("batches")] = 2
    """Batches that every worker makes ahead (torch's prefetch_factor); ``foreshard simulate`` plays
    it."""
    pinned: bool = True
    """Whether batches are copied from page-locked memory, during the compute; false: from pageable
    memory, and the compute waits."""
    device_bytes: Annotated[Number, Ge(0)] = 0.0
    """Of one prepared sample, copied to the accelerator; 0: what the software's token numbers
    take, which are counted anyway."""
    cores: Annotated[Whole, Ge(1), Le(100_000), Unit("cores")] | None = None
    """Cores of a server that prepare samples; none given: 96."""
    spread: Annotated[Number, Ge(0), Le(3), Unit("share of 1")] = 0.0
    """Standard deviation of the logarithm of the time that a worker takes for a batch; ``foreshard
    simulate`` plays it."""
    local_copy: bool = False
    """Keep what was read on the server's own drives (node profile, nvme): only the first epoch
    reads from the store; every server keeps its own share of the data set."""
    store: Store | None = None
    """Where samples lie: the name of a store, or a table with the rates of your own (`name` takes
    those of a profile first); none: reading takes no time."""


@cache
def load_usual() -> Usual:
    """Read what a scenario's [data] takes where it says nothing."""
    return read_profile(Usual, catalogue.find("inputs", "usual"), kind="inputs")


def read_data(raw: Any, *, where: str) -> DataInput:
    """Read the section [data] of a scenario.

    Raises
    ------
    InputError
        With every problem, each naming its field.
    """
    if not isinstance(raw, Mapping):
        raise InputError(problem(where, "data", "must be a table", raw))
    section, problems, parts = dict(raw), list[str](), dict[str, Any]()
    store = section.pop("store", None)
    for name, step in (
        ("store", lambda: None if store is None else _store(store, where)),
        ("data", lambda: build(DataInput, section, where=where, prefix="data")),
    ):
        try:
            parts[name] = step()
        except InputError as error:
            problems += error.problems
    if "data" in parts:
        problems += _wrong(parts["data"], where)
    if problems:
        raise InputError(problems)
    return replace(parts["data"], store=parts["store"])


def _store(raw: Any, where: str) -> Store:
    """A store by name, by its own rates, or by name with rates of its own over it."""
    if isinstance(raw, str):
        return _profile(raw, where, "data.store")
    if not isinstance(raw, Mapping):
        rule = "must be the name of a store or a table of its rates"
        raise InputError(problem(where, "data.store", rule, raw))
    rates = dict(raw)
    if isinstance(name := rates.get("name"), str):
        base = _profile(name, where, "data.store.name")
        rates = {field.name: getattr(base, field.name) for field in fields(Store)} | rates
    elif "read_bytes_per_s" not in rates:
        known = ", ".join(catalogue.names("stores"))
        rule = f"required: a store without a rate feeds nothing (or data.store.name: {known})"
        raise InputError(f"{where}: data.store.read_bytes_per_s: {rule}")
    store: Store = build(Store, rates, where=where, prefix="data.store")
    if wrong := [
        problem(where, f"data.store.{name}", "must be above 0: nothing could be read", 0)
        for name in _RATES
        if getattr(store, name) == 0.0
    ]:
        raise InputError(wrong)
    return store


_RATES = (
    *("read_bytes_per_s", "server_bytes_per_s", "stream_bytes_per_s", "requests_per_s"),
    *("request_bytes", "opens_per_s"),
)


def _profile(name: str, where: str, field: str) -> Store:
    place = catalogue.find("stores", name, where=where, field=field)
    return read_profile(Store, place, kind="stores")


def _wrong(data: DataInput, where: str) -> list[str]:
    """What each field allows but the whole does not."""
    problems = []
    if data.kind == "records" and data.sample_bytes is None:
        problems.append(f"{where}: data.sample_bytes: required with kind = 'records'")
    if data.local_copy and data.samples is None:
        problems.append(
            f"{where}: data.samples: required with local_copy: when the first epoch ends"
        )
    if data.tokenizer == "slow" and data.tokenizer_threads > 1:
        rule = "must be 1 with tokenizer = 'slow', which holds Python's lock"
        threads = data.tokenizer_threads
        problems.append(problem(where, "data.tokenizer_threads", rule, threads) + " (nearest: 1)")
    return problems


def _wrong_copies(data: DataInput, cluster: Any, *, where: str) -> list[str]:
    """Copies on the drives of servers that have none."""
    return [
        f"{where}: data.local_copy: {kind.node.name} has no local drives in its profile (nvme)"
        for kind in (cluster.each if data.local_copy else ())
        if kind.node.nvme is None
    ]


def _idle(data: DataInput, *, where: str) -> dict[str, str]:
    """Fields on which nothing hangs beside what else is said."""
    given, kind, reads = data.prepare_s is not None, data.kind, data.store is not None
    prepared = kind in ("text", "images") and not given
    without = {
        f"data.kind is {kind}": (kind != "text", ("tokenizer", "tokenizer_threads")),
        f"data.kind is {kind}, not images": (kind != "images", ("decoder",)),
        "data.prepare_s says what a sample takes": (
            given,
            ("tokenizer", "tokenizer_threads", "decoder"),
        ),
        "no data.store: reading takes no time": (
            not reads,
            ("samples_per_file", *(() if kind == "text" and prepared else ("sample_bytes",))),
        ),
        "nothing is read or prepared that takes time": (
            not reads and not prepared and not data.prepare_s,
            ("workers", "prefetch", "cores", "spread"),
        ),
        "data.local_copy is false": (not data.local_copy, ("samples",)),
        "data.device_bytes is 0": (data.device_bytes == 0.0, ("pinned",)),
    }
    return {name: why for why, (idle, names) in without.items() if idle for name in names}


DATA = Section(
    name="data",
    schemas=(DataInput,),
    read=Rule(read_data),
    idle=Rule(_idle, needs=("data",)),
    checks=(Rule(_wrong_copies, needs=("data", "cluster")),),
)
