"""What a section of a scenario is: how it is read, checked and priced.

Whoever has a section makes one `Section` and puts it into ``simulator/sections.py``; reading,
refusals, `foreshard fields` and docs/scenario.md follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from simulator.errors import InputError, problem
from simulator.files import build
from simulator.records import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule:
    """A function of records of a scenario, which it takes as keywords, and of `where`."""

    function: Callable[..., Any]
    needs: tuple[str, ...] = ()
    """Records without which it is left out: one is not there, or wrong itself."""
    uses: tuple[str, ...] = ()
    """Records for which it takes None as well."""

    def applied(self, records: Mapping[str, Any], *raw: Any, where: str) -> Any:
        """Call the function; None where a record is missing that it needs."""
        if any(records.get(name) is None for name in self.needs):
            return None
        taken = {name: records.get(name) for name in (*self.needs, *self.uses)}
        return self.function(*raw, where=where, **taken)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A section of a scenario; its record stands in the scenario's records under its name."""

    name: str
    schemas: tuple[type, ...] = ()
    """Records whose fields it has; the first one's docstring says what it is for. Empty: a record
    that is made of other sections alone."""
    read: Rule
    """Makes the record of what the file has there, its first argument."""
    required: bool = False
    """Whether it is read where the file leaves it out, from an empty table; else it is None."""
    checks: tuple[Rule, ...] = ()
    """Each lists what contradicts what other sections say."""
    makes: tuple[tuple[str, Rule], ...] = ()
    """Records of other sections that this one makes or changes once all are read."""
    idle: Rule | None = None
    """Maps fields ("rent.spot_lost_s") on which nothing hangs beside what else is said to why."""
    instead_of: str = ""
    """A section that must be left out beside it."""
    priced_by: str = ""
    """The command that prices it; every other one prices the scenario without it, and says so."""
    refused: str = ""
    """Why every other command refuses it; blank: it is left out, or all commands price it."""
    base: Callable[[], Any] | None = None
    """Makes the record that stands below it: its values are the defaults."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Fields of the record that have another name here."""
    words: Callable[[], Mapping[str, tuple[str, str, str, str]]] = dict
    """What else may be said, by name: sentence, what may be given, default and its grade."""


def build_section(schema: type[T], raw: Any, *, where: str, name: str) -> T:
    """Fill the record of a section, as :func:`simulator.files.build`; InputError for no table."""
    if not isinstance(raw, Mapping):
        raise InputError(problem(where, name, "must be a table", raw))
    return build(schema, raw, where=where, prefix=name)
