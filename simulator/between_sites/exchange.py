"""What an exchange between sites takes, and a cycle of inner steps with its exchanges.

Sites form a ring: a sum goes round in pieces, as a scatter and a gather (Patarasuk and Yuan 2009);
messages that cannot be summed are passed on whole. All GPUs of a site send their shares at once
over the one uplink of the site. A cycle is `inner_steps` steps of every site; each of `fragments`
parts of the model is exchanged once in it, beside `overlap_steps` of them (Douillard et al. 2025,
Streaming DiLoCo, algorithm 2).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats


def sent_bytes(message_bytes: Any, sites: Any, *, sums: bool) -> Floats:
    """Bytes that every site sends, and takes in, in one exchange.

    Examples
    --------
    Four sites with 8 GB each: 2 x 3/4 of it in sums, three messages where they are gathered.

    >>> sent_bytes(8e9, 4, sums=True).item(), sent_bytes(8e9, 4, sums=False).item()
    (12000000000.0, 24000000000.0)
    """
    sites = np.asarray(sites, float)
    rounds = 2.0 * (sites - 1.0) / sites if sums else sites - 1.0
    return np.asarray(message_bytes * rounds)


def exchange_s(
    message_bytes: Any, sites: Any, *, uplink_bytes_per_s: Any, latency_s: Any, sums: bool
) -> Floats:
    """Seconds of one exchange round the ring.

    Parameters
    ----------
    message_bytes : array_like
        Message of every site.
    sites : array_like
        Sites of the ring.
    uplink_bytes_per_s : array_like
        Rate of the slowest site, one direction; a ring goes no faster.
    latency_s : array_like
        One way, of the longest hop.

    Examples
    --------
    Two sites, 10 GB over 1.25 GB/s and 50 ms: each sends 10 GB, in two hops.

    >>> exchange_s(10e9, 2, uplink_bytes_per_s=1.25e9, latency_s=0.05, sums=True).item()
    8.1
    """
    hops = (2.0 if sums else 1.0) * (np.asarray(sites, float) - 1.0)
    moved = sent_bytes(message_bytes, sites, sums=sums)
    return np.asarray(moved / np.asarray(uplink_bytes_per_s, float) + hops * latency_s)


def exposed_s(exchange_s: Any, inner_step_s: Any, overlap_steps: Any) -> Floats:
    """What steps beside an exchange do not hide of it."""
    return np.maximum(0.0, np.asarray(exchange_s) - np.asarray(overlap_steps) * inner_step_s)


def cycle_s(
    inner_step_s: Any,
    *,
    inner_steps: Any,
    fragments: Any,
    overlap_steps: Any,
    exchange_s: Any,
    own_s: Any,
) -> Floats:
    """Seconds from one exchange of a fragment to its next.

    Parameters
    ----------
    inner_step_s : array_like
        A step of the slowest site: the others wait for it at every exchange.
    inner_steps, fragments, overlap_steps : array_like
        Steps of a cycle, parts of the model, steps that may run beside one exchange, at most as
        many as lie between two of them.
    exchange_s : array_like
        Of one fragment.
    own_s : array_like
        What every site computes for all fragments: messages made and read, the outer step.

    Examples
    --------
    100 steps of 1 s; four fragments of 3 s each, of which one step hides 1 s; 2 s of the site's
    own: 100 + 4 x 2 + 2.

    >>> four = {"inner_steps": 100, "fragments": 4, "overlap_steps": 1}
    >>> cycle_s(1.0, exchange_s=3.0, own_s=2.0, **four).item()
    110.0
    """
    shown = np.asarray(fragments) * exposed_s(exchange_s, inner_step_s, overlap_steps)
    return np.asarray(np.asarray(inner_steps) * inner_step_s + shown + own_s)


def slowest_uplink(
    utilisation: Any,
    inner_step_s: Any,
    *,
    inner_steps: Any,
    fragments: Any,
    overlap_steps: Any,
    sent_bytes: Any,
    hops_s: Any,
    own_s: Any,
) -> Floats:
    """Rate of the slowest uplink with which sites compute for a share of their time.

    Parameters
    ----------
    utilisation : array_like
        Seconds of inner steps over those of the cycle, below 1.
    sent_bytes, hops_s : array_like
        Of one fragment: what a site sends, and all latencies of its exchange.

    Returns
    -------
    ndarray
        Bytes per second; infinite where no rate is enough.

    Examples
    --------
    100 steps of 0.1 s: half of the time is 10 s for 2 GB.

    >>> slowest_uplink(0.5, 0.1, inner_steps=100, fragments=1, overlap_steps=0, sent_bytes=2e9,
    ...                hops_s=0.0, own_s=0.0).item()
    200000000.0
    """
    work = np.asarray(inner_steps) * inner_step_s
    left = (work * (1.0 / np.asarray(utilisation) - 1.0) - own_s) / fragments
    room = np.where(left < 0.0, 0.0, left + overlap_steps * np.asarray(inner_step_s) - hops_s)
    with np.errstate(divide="ignore"):
        return np.asarray(sent_bytes / np.maximum(room, 0.0))
