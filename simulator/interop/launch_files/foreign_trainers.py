"""Trainers that are known by name and not read: their files are never taken for another's.

The one place that a file of reinforcement learning passes: :func:`of_another_trainer` names it, and
``interop/dialects/training_ways.py: WAYS`` says what is told of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from functools import cache
from pathlib import Path

from simulator.files import read_records, record
from simulator.interop.dialects.settings import Reading
from simulator.interop.dialects.training_ways import refusal, way_of

_TABLE = Path(__file__).resolve().parent / "foreign_trainers.toml"


@record
class ForeignTrainer:
    """By what the files of a trainer are known."""

    way: str = ""
    marks: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    unless: list[str] = field(default_factory=list)
    """Keys that no such file has."""

    def has(self, keys: set[str], program: str) -> bool:
        """Whether keys, with every table that they stand in, or a program are this trainer's."""
        marked = any(keys.issuperset(mark.split()) for mark in self.marks)
        return any(name in program for name in self.programs) or (
            marked and keys.isdisjoint(self.unless)
        )


@cache
def foreign_trainers() -> dict[str, ForeignTrainer]:
    """Every trainer that is known by name alone."""
    return read_records(ForeignTrainer, _TABLE, "trainers")


def of_another_trainer(path: str, keys: Iterable[str], program: str = "") -> Reading | None:
    """The refusal of a file that belongs to a trainer which is not read; None for any other."""
    within = set[str]()
    for key in keys:
        parts = key.lstrip("+~").split(".")
        within |= {".".join(parts[: n + 1]) for n in range(len(parts))}
    for name, trainer in foreign_trainers().items():
        if trainer.has(within, program):
            way = trainer.way or way_of(program)
            what = refusal(way) if way else "which is not read here: its run can be said in a"
            what += "" if way else " scenario (foreshard fields)"
            problem = f"{path}: a file of {name}, {what}"
            return Reading(path=path, kind=f"file of {name}", problems=(problem,))
    return None
