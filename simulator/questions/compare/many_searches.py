"""Many searches at once: on the cores of this machine, on a Dask or Ray cluster that runs already.

The first is done here while workers start, so that a screen has its first row early.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from simulator.errors import ForeshardError, InputError
from simulator.search.in_threads import one_thread

T = TypeVar("T")

_RETRIES = 3
"""Workers that may die of one search on Ray."""

BACKENDS = ("local", "dask", "ray")

_WORTH = 3
"""Fewer searches are done one after another: workers take a second to start."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def done_in_order(
    work: Callable[..., T], arguments: Sequence[tuple[Any, ...]], *, jobs: int | None = None
) -> Iterator[T]:
    """Yield ``work(*arguments[i])`` for every i, in order, each as soon as it is there.

    Parameters
    ----------
    work : callable
        A function of a module; what it takes and returns is pickled.
    jobs : int, optional
        Processes; all cores unless given. Results do not depend on it.

    Examples
    --------
    >>> list(done_in_order(max, [(1, 2), (5, 4)]))
    [2, 5]
    """
    count = min(cores() if jobs is None else jobs, len(arguments))
    if count <= 1 or len(arguments) < _WORTH:
        for one in arguments:
            yield work(*one)
        return
    from joblib import Parallel, delayed  # a single search needs none of it

    with _ending_quietly():
        pool = Parallel(n_jobs=count, return_as="generator", pre_dispatch="all")
        with _starting_workers():
            rest = pool(delayed(_in_one_thread)(work, *argument) for argument in arguments[1:])
        yield work(*arguments[0])
        yield from rest


def done_as_they_come(
    work: Callable[..., T],
    arguments: Sequence[tuple[Any, ...]],
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    backend: str = "dask",
) -> Iterator[T]:
    """Yield what `work` makes of each of the arguments, in any order.

    What a worker had that died is done again, of this machine's by half as many: what kills a
    worker is want of memory as a rule.

    Parameters
    ----------
    work, jobs
        As in :func:`done_in_order`.
    scheduler : str, optional
        Address of a cluster whose workers do it.
    backend : str
        What answers there: dask or ray.

    Raises
    ------
    InputError
        If Dask or Ray is not installed, or nothing answers at the address.
    ForeshardError
        If a single worker dies, too.
    """
    if scheduler is not None and backend == "ray":
        yield from _on_ray(work, arguments, scheduler)
        return
    count = min(cores() if jobs is None else jobs, len(arguments))
    if scheduler is None and (count <= 1 or len(arguments) < _WORTH):
        for argument in arguments:
            yield work(*argument)
        return
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left = dict(enumerate(arguments))
    with _ending_quietly(), _backend(scheduler):
        while left:
            pool = Parallel(
                n_jobs=-1 if scheduler else count,
                return_as="generator_unordered",
                pre_dispatch="all",
            )
            try:
                with _starting_workers():
                    results = pool(
                        delayed(_numbered)(place, work, *argument)
                        for place, argument in tuple(left.items())
                    )
                for place, result in results:
                    del left[place]
                    yield result
            except TerminatedWorkerError:
                count //= 2
                if not count:
                    rule = "a worker was killed, for want of memory as a rule, and so was one alone"
                    raise ForeshardError(f"{rule}: {len(left)} searches are not done") from None


@contextmanager
def _ending_quietly() -> Iterator[None]:
    """End the workers where nobody waits for them any more: no warning, no trace of their threads.

    joblib takes away what it had handed out while a thread of its own still hands out more, which
    then misses it.
    """
    hook = threading.excepthook

    def without_missing(fault: threading.ExceptHookArgs) -> None:
        if fault.exc_type is not KeyError:
            hook(fault)

    threading.excepthook = without_missing
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        from joblib.externals.loky import get_reusable_executor

        warnings.filterwarnings("ignore", module="joblib")
        get_reusable_executor().shutdown(wait=True, kill_workers=True)
        raise
    finally:
        threading.excepthook = hook


@contextmanager
def _starting_workers() -> Iterator[None]:
    """Workers do not hear the interrupt that a terminal sends to all: they are ended from here."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)


def _numbered(place: int, work: Callable[..., T], *arguments: Any) -> tuple[int, T]:
    """What a worker does, beside the number of it."""
    return place, _in_one_thread(work, *arguments)


def _in_one_thread(work: Callable[..., T], *arguments: Any) -> T:
    """What a worker does: the other cores have workers of their own."""
    with one_thread():
        return work(*arguments)


def _on_ray(
    work: Callable[..., T], arguments: Sequence[tuple[Any, ...]], address: str
) -> Iterator[T]:
    """Tasks of a Ray cluster, each yielded as soon as it is done.

    joblib's own Ray back end hands results back all at once, so that nothing would be on disk until
    then; tasks are done again where their worker dies (``max_retries``).
    """
    try:
        import ray
    except ImportError:
        rule = "the back end ray needs its package: pip install 'foreshard[ray]'"
        raise InputError(f"command line: --backend: {rule}") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        told = str(error).partition("\n")[0]
        rule = f"nothing answers at {address!r} ({told})"
        raise InputError(f"command line: --scheduler: {rule}") from None
    try:
        task = ray.remote(max_retries=_RETRIES)(work)
        ahead = [task.remote(*argument) for argument in arguments]
        while ahead:
            done, ahead = ray.wait(ahead, num_returns=1)
            yield from ray.get(done)
    finally:
        ray.shutdown()


@contextmanager
def _backend(scheduler: str | None) -> Iterator[None]:
    """Where joblib sends the work."""
    if scheduler is None:
        yield
        return
    from joblib import parallel_config

    try:
        from distributed import Client
    except ImportError:
        rule = "the back end dask needs its packages: pip install 'foreshard[dask]'"
        raise InputError(f"command line: --backend: {rule}") from None
    try:
        client = Client(  # type: ignore[no-untyped-call, unused-ignore]
            scheduler, timeout="10s", set_as_default=True
        )
    except (OSError, ValueError) as error:
        raise InputError(
            f"command line: --scheduler: nothing answers at {scheduler!r} ({error})"
        ) from None
    with client, parallel_config(backend="dask", client=client):
        yield
