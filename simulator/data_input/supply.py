"""How long the input of one step takes in every stage of its way, and what is left to wait for.

Stages work side by side on batches of different steps, so that the slowest one paces the supply
(the law of a pipeline in steady state; tf.data, Murray et al. 2021, section 4.1). Ranks wait for
what the supply takes longer than their step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.data_input.data_section import DataInput, Store, load_usual
from simulator.records import dataclass

STAGES = ("workers", "cores", "store", "server", "requests", "opens", "drives", "host link")
"""workers: loader processes of a rank, each at one sample after the other. cores: of a server.
store, server: bytes that all and that one server reads. requests, opens: reads and files a second.
drives: local copies. host link: copies to the accelerators."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What one sample takes."""

    stored_bytes: float
    core_s: float
    """Of one core, on all its threads together."""
    worker_s: float
    """In which one worker prepares it."""
    opens: float
    """Files opened for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Readers:
    """Who reads in one step; arrays over layouts."""

    samples: Any
    """Samples that every rank reads which loads."""
    ranks: Any
    """Ranks that load; those of one replica read the same samples."""
    server_ranks: Any
    """Of them on one server."""
    fetches: Any
    """Ranks whose reads reach the store; the others of a server find them in its page cache."""
    server_fetches: Any
    """Of them on one server."""


def sample_of(data: DataInput, tokens: float) -> Sample:
    """What one sample of so many tokens takes.

    Examples
    --------
    8,192 tokens of text have 36 kB, for which a fast tokenizer takes 13 ms.

    >>> sample = sample_of(DataInput(kind="text"), 8192)
    >>> round(sample.stored_bytes), round(sample.core_s, 4)
    (36045, 0.0127)
    """
    usual = load_usual()
    stored = data.sample_bytes
    if stored is None and data.kind == "images":
        stored = float(usual.sample_bytes["images"])
    elif stored is None:
        stored = tokens * float(usual.bytes_per_token[data.kind])
    threads = 1
    work_s = 0.0
    if data.prepare_s is not None:
        work_s = data.prepare_s
    elif data.kind == "text":
        work_s = stored / float(usual.tokenizers_bytes_per_s[data.tokenizer])
        threads = data.tokenizer_threads
    elif data.kind == "images":
        work_s = 1.0 / float(usual.decoders_per_s[data.decoder])
    files = data.samples_per_file or (1.0 if data.kind == "images" else np.inf)
    return Sample(stored_bytes=stored, core_s=work_s, worker_s=work_s / threads, opens=1.0 / files)


def workers_of(data: DataInput) -> float:
    """Loader processes of a rank."""
    return float(load_usual().defaults.workers if data.workers is None else data.workers)


def cores_of(data: DataInput) -> float:
    """Cores of a server that prepare samples."""
    return float(load_usual().defaults.cores if data.cores is None else data.cores)


def read_s(sample: Sample, store: Store | None) -> float:
    """How long one worker waits for the bytes of one sample, with the store to itself.

    Examples
    --------
    Opening 2 ms, first byte 1 ms, 3 MB at 1 GB/s 3 ms.

    >>> from simulator.files import Figure
    >>> store = Store(read_bytes_per_s=Figure(1e9), request_bytes=Figure(4e6),
    ...               first_byte_s=Figure(1e-3), open_s=Figure(2e-3))
    >>> sample = Sample(stored_bytes=3e6, core_s=0, worker_s=0, opens=1)
    >>> round(read_s(sample, store), 6)
    0.006
    """
    if store is None:
        return 0.0
    rate = min(
        float(store.read_bytes_per_s),
        float(store.server_bytes_per_s or np.inf),
        float(store.stream_bytes_per_s or np.inf),
    )
    requests = requests_of(sample, store)
    # requests of one sample follow one another; where several samples share one, so does its wait
    waits_s = sample.opens * float(store.open_s) + requests * float(store.first_byte_s)
    return waits_s + sample.stored_bytes / rate


def requests_of(sample: Sample, store: Store) -> float:
    """Reads of one sample: a part of one where many samples lie in one file behind one another."""
    size = sample.stored_bytes / float(store.request_bytes)
    return float(np.ceil(size)) if sample.opens >= 1.0 else size


def stage_times(
    data: DataInput, sample: Sample, readers: Readers, host_bytes_per_s: float
) -> dict[str, Floats]:
    """Seconds that every stage takes for the samples of one step, each with the others idle.

    Parameters
    ----------
    data : DataInput
        With the store that is read.
    sample : Sample
    readers : Readers
        Who reads, arrays over layouts.
    host_bytes_per_s : float
        Rate of copies to one accelerator.

    Returns
    -------
    dict of ndarray
        By name (STAGES but "drives"), in seconds. With no worker the training process itself does
        what "workers" is.
    """
    n, store = np.asarray(readers.samples, dtype=float), data.store
    everyone, of_server = n * readers.fetches, n * readers.server_fetches
    none = np.zeros_like(n)
    one_s = sample.worker_s + read_s(sample, store)
    seconds = dict.fromkeys(STAGES, none) | {
        "workers": n * one_s / max(workers_of(data), 1.0),
        "cores": n * readers.server_ranks * sample.core_s / cores_of(data),
        "host link": n * data.device_bytes / host_bytes_per_s if data.pinned else none,
    }
    if store is not None:
        # each server's own drives serve its own readers alone
        sharing = of_server if store.per_server else everyone
        seconds["store"] = sharing * sample.stored_bytes / float(store.read_bytes_per_s)
        if store.server_bytes_per_s is not None:
            seconds["server"] = of_server * sample.stored_bytes / float(store.server_bytes_per_s)
        if store.requests_per_s is not None:
            asked = requests_of(sample, store)
            seconds["requests"] = sharing * asked / float(store.requests_per_s)
        if store.opens_per_s is not None:
            seconds["opens"] = sharing * sample.opens / float(store.opens_per_s)
    return seconds


def copy_s(data: DataInput, readers: Readers, host_bytes_per_s: float) -> Floats:
    """Seconds of copies that the compute waits for: those from pageable memory."""
    n = np.asarray(readers.samples, dtype=float)
    if data.pinned:
        return np.zeros_like(n)
    rate = host_bytes_per_s * float(load_usual().defaults.pageable_fraction)
    return np.asarray(n * data.device_bytes / rate)


def waiting_s(data: DataInput, stages_s: dict[str, Floats], step_s: Floats) -> Floats:
    """Seconds of a step in which all ranks wait for their input.

    With workers, what the slowest stage takes longer than the step: batches are made ahead.
    Without, the training process reads and prepares by itself between steps, and what other stages
    take longer than both together comes on top.

    Examples
    --------
    Workers that need 3 s for the samples of a step of 2 s let it wait for 1 s; without workers the
    same work is done between the steps.

    >>> stages = {"workers": np.array([3.0]), "store": np.array([1.0])}
    >>> waiting_s(DataInput(workers=4), stages, np.array([2.0])).tolist()
    [1.0]
    >>> waiting_s(DataInput(workers=0), stages, np.array([2.0])).tolist()
    [3.0]
    """
    workers_s = stages_s["workers"]
    slowest = np.max(list(stages_s.values()), axis=0)
    if workers_of(data) >= 1.0:
        return np.asarray(np.maximum(slowest - step_s, 0.0))
    return np.asarray(workers_s + np.maximum(slowest - workers_s - step_s, 0.0))
