"""Continuous batching of a replica: sequences as discrete events, and a closed form beside it.

Requests are admitted in order while the cache has room and the engine's limit allows. All that
run write a token in each iteration. Between two events (an answer ends, a tool returns, the cache
is full) their number stays the same, so that a stretch of iterations is one step of the clock; its
time is that of its middle, since contexts grow evenly.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from math import ceil, inf

import numpy as np

from simulator.arrays import Floats
from simulator.records import dataclass
from simulator.reinforcement.decode import Replica

_LONGEST_STRETCH = 256
"""Iterations that are timed by their middle at most."""

_WATERMARK = 0.01
"""Share of the cache that must stay free when a request is admitted (vLLM's watermark)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What a replica is asked to write, one entry for each sequence, in order of arrival."""

    answers: Floats
    """Tokens to write."""
    prompt: float
    """Tokens of a prompt."""
    group: int = 1
    """Neighbouring sequences with the same prompt."""
    turns: int = 1
    tool_s: float = 0.0
    tool_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """How a replica went about it."""

    seconds: float
    """Until the last answer is there."""
    ends_s: Floats
    """When each answer was there, in order of arrival."""
    starts_s: Floats
    """When each was first admitted."""
    tokens: float
    """Written in all."""
    preempted: int
    """Times that a sequence was thrown out of a full cache."""
    waited: int
    """Sequences that were not admitted at once."""


class _Clock:
    """The state of a replica while its events are played."""

    def __init__(self, replica: Replica, work: Work, cache_tokens: float, sharing: bool) -> None:
        self.replica, self.work, self.room = replica, work, cache_tokens
        count = len(work.answers)
        self.sharing = sharing
        self.waiting = deque(range(count))
        self.left = work.answers.astype(float).copy()
        """Tokens that each still writes."""
        self.context = np.full(count, float(work.prompt))
        self.turn_tokens = np.maximum(np.ceil(work.answers / work.turns), 1.0)
        self.prefill = np.full(count, float(work.prompt))
        """Tokens that each must read before it goes on."""
        self.seen_prompts: set[int] = set()
        self.iterations = 0.0
        self.now = 0.0
        self.ends: list[tuple[float, int, int]] = []
        """Iteration at which a turn of a running sequence ends, order of admission, sequence."""
        self.running: dict[int, tuple[float, float, int]] = {}
        """Sequence: iteration at which it was admitted, at which its turn ends, order."""
        self.order = 0
        self.used = 0.0
        self.running_of_group: dict[int, int] = {}
        self.running_context = 0.0
        """Tokens of all that run, as they were when each was admitted."""
        self.away: list[tuple[float, int]] = []
        """Sequences at their tools, by the time at which they return."""
        self.ends_s, self.starts_s = np.zeros(count), np.full(count, -1.0)
        self.preempted, self.waited = 0, 0
        base = replica.steady_s(np.arange(replica.most_sequences + 1))
        self.steady: list[float] = base.tolist()
        self.per = replica.tokens_per_iteration

    def free(self, sequences: int) -> float:
        """Tokens that the cache still takes with so many sequences running, in whole pages."""
        return self.room - self.used - sequences * self.replica.idle_tokens

    def prompt_cost(self, sequence: int) -> float:
        """Cache that a prompt takes anew, in tokens."""
        group = sequence // self.work.group
        known = self.sharing and group in self.seen_prompts
        return float(self.context[sequence] - (self.work.prompt if known else 0.0))

    def admit(self) -> None:
        """Take in what waits, in order, while there is room."""
        read = 0.0
        while self.waiting and len(self.running) < self.replica.most_sequences:
            sequence = self.waiting[0]
            cost = self.prompt_cost(sequence)
            margin = _WATERMARK * self.room if self.running else 0.0
            if cost + self.per > self.free(len(self.running) + 1) - margin and self.running:
                break
            self.waiting.popleft()
            group = sequence // self.work.group
            anew = self.prefill[sequence]
            if self.sharing and group in self.seen_prompts:
                anew = max(anew - self.work.prompt, 0.0)
            self.seen_prompts.add(group)
            read += anew
            self.prefill[sequence] = 0.0
            self.used += cost
            if self.starts_s[sequence] < 0.0:
                self.starts_s[sequence] = self.now
                self.waited += self.iterations > 0.0
            tokens = min(self.left[sequence], self.turn_tokens[sequence])
            ends = self.iterations + max(ceil(tokens / self.per - 1e-9), 1)
            self.order += 1
            self.running[sequence] = (self.iterations, ends, self.order)
            self.running_context += self.context[sequence]
            self.running_of_group[group] = self.running_of_group.get(group, 0) + 1
            heapq.heappush(self.ends, (ends, self.order, sequence))
        if read:
            mean = self.running_context / len(self.running)
            seconds = float(self.replica.prefill_s(read, mean))
            self.now += seconds

    def advance(self) -> None:
        """Run until the next answer or turn ends, a tool returns, or the cache is full.

        What a full cache throws out is not admitted again before an iteration has run.
        """
        while len(self.running) > 1 and self.free(len(self.running)) < len(self.running) * self.per:
            self.preempt()
        count = len(self.running)
        stretch = self.ends[0][0] - self.iterations
        full = self.free(count) / (count * self.per)
        stretch = min(stretch, max(int(full), 1), _LONGEST_STRETCH)
        middle = self.used + count * self.per * (stretch + 1.0) / 2.0
        shared = self._shared_prompts()
        tokens = middle + shared
        iteration_s = self.steady[count] + float(self.replica.attention_s(count, tokens))
        if self.away and len(self.running) < self.replica.most_sequences:
            stretch = min(stretch, max(ceil((self.away[0][0] - self.now) / iteration_s), 1))
        self.iterations += stretch
        self.now += stretch * iteration_s
        self.used += count * self.per * stretch
        while self.ends and self.ends[0][0] <= self.iterations:
            self.end_turn()

    def _shared_prompts(self) -> float:
        """Tokens of prompts that are cached once and read by every sequence of their group."""
        if not self.sharing:
            return 0.0
        return (len(self.running) - len(self.running_of_group)) * self.work.prompt

    def end_turn(self) -> None:
        """A sequence has written a turn: it goes to its tool or is done."""
        ends, order, sequence = heapq.heappop(self.ends)
        state = self.running.get(sequence)
        if state is None or state[2] != order:
            return
        del self.running[sequence]
        tokens = min(self.left[sequence], self.turn_tokens[sequence])
        self.left[sequence] -= tokens
        self.release(sequence, (ends - state[0]) * self.per)
        self.context[sequence] += tokens
        if self.left[sequence] <= 0.0:
            self.ends_s[sequence] = self.now
            return
        self.context[sequence] += self.work.tool_tokens
        self.prefill[sequence] = self.work.tool_tokens
        heapq.heappush(self.away, (self.now + self.work.tool_s, sequence))

    def release(self, sequence: int, written: float) -> None:
        """Give back the cache of a sequence that runs no more; a prompt stays with its group."""
        group = sequence // self.work.group
        self.running_context -= self.context[sequence]
        others = self.running_of_group.pop(group) - 1
        if others:
            self.running_of_group[group] = others
        shares = self.sharing and others > 0
        self.used -= self.context[sequence] + written - (self.work.prompt if shares else 0.0)
        if self.sharing and not shares:
            self.seen_prompts.discard(group)

    def preempt(self) -> None:
        """The cache is full: the newest goes back to the head of the queue and starts anew."""
        sequence = max(self.running, key=lambda name: self.running[name][2])
        admitted, _, _ = self.running.pop(sequence)
        written = min((self.iterations - admitted) * self.per, self.left[sequence])
        self.release(sequence, (self.iterations - admitted) * self.per)
        self.context[sequence] += written
        self.left[sequence] -= written
        self.turn_tokens[sequence] = max(self.turn_tokens[sequence] - written, 1.0)
        self.prefill[sequence] = self.context[sequence]
        self.waiting.appendleft(sequence)
        self.preempted += 1
        self.drop_stale()

    def drop_stale(self) -> None:
        """Forget ends of sequences that were thrown out."""
        while self.ends:
            _, order, sequence = self.ends[0]
            state = self.running.get(sequence)
            if state is not None and state[2] == order:
                return
            heapq.heappop(self.ends)

    def return_from_tools(self) -> None:
        """Sequences whose tools are done queue again."""
        while self.away and self.away[0][0] <= self.now:
            self.waiting.append(heapq.heappop(self.away)[1])


def play(replica: Replica, work: Work, cache_tokens: float, *, sharing: bool = True) -> Written:
    """Play a replica's events until all answers are there.

    Parameters
    ----------
    replica : Replica
    work : Work
    cache_tokens : float
        What its caches hold; above the longest sequence, else it could never be written.
    sharing : bool
        Whether sequences of a group share the cache of their prompt.
    """
    clock = _Clock(replica, work, cache_tokens, sharing)
    while clock.waiting or clock.running or clock.away:
        clock.return_from_tools()
        clock.admit()
        if clock.running:
            clock.advance()
        elif clock.away:
            clock.now = max(clock.now, clock.away[0][0])
    return Written(
        seconds=clock.now,
        ends_s=clock.ends_s,
        starts_s=clock.starts_s,
        tokens=float(work.answers.sum()),
        preempted=clock.preempted,
        waited=clock.waited,
    )


def closed_form_s(
    replica: Replica, work: Work, cache_tokens: float, *, sharing: bool = True
) -> float:
    """Time of a replica's answers without events: slots of equal sequences, then the tail.

    So many slots run as engine and cache allow at the mean context. Iterations pass alike in all
    slots, so that list scheduling of the answers over the slots gives when each begins and ends in
    iterations; the time is the integral of an iteration's over them, by numbers of sequences and
    of tokens that change at these ends alone. Turns with tools add their waiting to the last.
    """
    answers = np.maximum(np.ceil(work.answers / replica.tokens_per_iteration), 1.0)
    slots = _slots(replica, work, cache_tokens, sharing)
    starts, ends = _list_schedule(answers, slots)
    count, middle, lengths = _profile(starts, ends, work, replica.tokens_per_iteration)
    tokens = middle.copy()
    seconds = np.asarray(replica.steady_s(np.maximum(count, 1.0)))
    seconds = seconds + replica.attention_s(np.maximum(count, 1.0), tokens)
    whole = float((seconds * lengths).sum())
    prompts = len(answers) / (work.group if sharing else 1) * work.prompt
    results = len(answers) * (work.turns - 1) * work.tool_tokens
    read_s = float(replica.prefill_s(prompts + results, float(work.prompt + answers.mean() / 2)))
    return whole + read_s + (work.turns - 1) * work.tool_s


def _slots(replica: Replica, work: Work, cache_tokens: float, sharing: bool) -> int:
    """Sequences that run at once: what the engine allows, or the cache at mean contexts.

    A slot's context, over time, is that of answers weighted by their length: E[l^2] / 2 E[l].
    """
    answers = work.answers + (work.turns - 1) * work.tool_tokens
    mean = float((answers**2).sum() / (2.0 * answers.sum()))
    prompt = work.prompt / (work.group if sharing else 1)
    fits = cache_tokens * (1.0 - _WATERMARK) / (mean + prompt + replica.idle_tokens)
    return max(int(min(replica.most_sequences, fits, len(answers))), 1)


def _list_schedule(answers: Floats, slots: int) -> tuple[Floats, Floats]:
    """Begin and end of each answer, in order, on the slot that is free first, in iterations."""
    if slots >= len(answers):
        return np.zeros(len(answers)), answers.astype(float)
    free = [0.0] * slots
    starts = np.empty(len(answers))
    for index, length in enumerate(answers.tolist()):
        starts[index] = free[0]
        heapq.heapreplace(free, free[0] + length)
    return starts, starts + answers


def _profile(starts: Floats, ends: Floats, work: Work, per: float) -> tuple[Floats, Floats, Floats]:
    """Sequences that run between two changes, tokens in their caches at the middle, iterations."""
    changes = np.unique(np.concatenate([starts, ends]))
    first, last = np.sort(starts), np.sort(ends)
    begun = np.searchsorted(first, changes[:-1], side="right")
    ended = np.searchsorted(last, changes[:-1], side="right")
    count = (begun - ended).astype(float)
    sum_first = np.concatenate([[0.0], np.cumsum(first)])
    by_end = np.argsort(ends, kind="stable")
    sum_gone = np.concatenate([[0.0], np.cumsum(starts[by_end])])
    middle = (changes[:-1] + changes[1:]) / 2.0
    written = count * middle - (sum_first[begun] - sum_gone[ended])
    tokens = per * written + count * work.prompt
    return count, tokens, np.diff(changes)


def deal(answers: Floats, replicas: int, *, one_by_one: bool) -> list[Floats]:
    """Answers (prompts, samples) of each replica: runs of prompts, or dealt round.

    A list is cut into contiguous runs; requests that come one by one go to the replicas in turn.
    """
    flat = answers.ravel()
    if one_by_one:
        return [flat[start::replicas] for start in range(replicas) if start < len(flat)]
    return [part for part in np.array_split(flat, replicas) if len(part)]


def longest_context(work: Sequence[Work]) -> float:
    """Tokens of the longest sequence at its end."""
    return max(
        (float(w.answers.max()) + w.prompt + (w.turns - 1) * w.tool_tokens for w in work),
        default=-inf,
    )
