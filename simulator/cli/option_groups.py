"""Options that commands have in common, declared once and taken as one record.

A question takes such a record as a parameter; :func:`with_option_groups` shows typer the fields of
the record in its place, and makes the record of what was typed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, get_type_hints

import typer

from simulator.cli.decision_options import (
    Budget,
    Deadline,
    Jobs,
    Price,
    Region,
    days_of,
    prices_of,
    usd_of,
)
from simulator.cli.options import (
    Batch,
    ClusterName,
    Gpus,
    ModelName,
    Sequence,
    Set,
    SoftwareName,
    Tokens,
)
from simulator.records import dataclass

if TYPE_CHECKING:
    from simulator.scenario import Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioOptions:
    """What makes a scenario where there is no file, or changes that of one."""

    model: ModelName = None
    cluster: ClusterName = None
    gpus: Gpus = None
    software: SoftwareName = None
    tokens: Tokens = None
    seq: Sequence = None
    batch: Batch = None
    overrides: Set = None
    """What ``--set`` says, and ``--tokens``, ``--seq`` and ``--batch`` before it."""

    def __post_init__(self) -> None:
        """Put the options that are fields of [training] among the overrides."""
        fields = {"tokens": self.tokens, "sequence_length": self.seq, "global_batch": self.batch}
        said = [f"training.{name}={value}" for name, value in fields.items() if value is not None]
        if said:
            object.__setattr__(self, "overrides", [*said, *(self.overrides or ())])

    @property
    def describes_something(self) -> bool:
        """Whether a model, a machine or a field is given."""
        return any((self.model, self.cluster, self.gpus, self.overrides))

    def with_set(self, *overrides: str) -> Self:
        """Return the same with fields set that another option stands for."""
        return replace(self, overrides=[*(self.overrides or ()), *overrides])

    @property
    def complete(self) -> bool:
        """Whether model, machine and number of accelerators are all given."""
        said = {text.partition("=")[0].strip() for text in self.overrides or ()}
        sized = any(name.startswith("model.") for name in said)
        machine = self.cluster or "cluster.name" in said
        return bool((self.model or sized) and machine and (self.gpus or "cluster.gpus" in said))

    @property
    def named(self) -> dict[str, Any]:
        """All of them but the overrides, as ``assembly.assemble`` takes names."""
        return {name: getattr(self, name) for name in ("model", "cluster", "gpus", "software")}

    def scenario(self, file: Path | None, *, several: bool = False) -> Scenario:
        """Make the scenario that is described.

        With `several`, batch and sequence may be lists or ranges, of which a plan chooses.
        """
        from simulator.assembly import assemble

        overrides = self.overrides or ()
        return assemble(
            file, self.named, overrides=overrides, where="command line", several=several
        )


Described = TypeVar("Described", bound=ScenarioOptions)

AllowTight = Annotated[
    bool,
    typer.Option(
        "--allow-tight",
        help="Let a layout win whose P90 of memory is more than is usable (search.allow_tight).",
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions(ScenarioOptions):
    """The same for what searches layouts."""

    allow_tight: AllowTight = False

    def __post_init__(self) -> None:
        """Put what is allowed among the fields that are set."""
        ScenarioOptions.__post_init__(self)
        if self.allow_tight:
            allowed = [*(self.overrides or ()), "search.allow_tight=true"]
            object.__setattr__(self, "overrides", allowed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a run must meet."""

    deadline: Deadline = None
    budget: Budget = None

    @property
    def read(self) -> dict[str, float | None]:
        """Days and USD."""
        return {"deadline_days": days_of(self.deadline), "budget_usd": usd_of(self.budget)}

    def put_on(self, options: Described) -> Described:
        """Set them in the section [goal] of what options describe."""
        said = [f"goal.{name}={value!r}" for name, value in self.read.items() if value is not None]
        return options.with_set(*said) if said else options


@dataclass(frozen=True, kw_only=True, slots=True)
class Money:
    """What runs are priced by, and how many processes search them."""

    price: Price = None
    region: Region = None
    jobs: Jobs = None

    @property
    def read(self) -> dict[str, Any]:
        """As decisions take them."""
        return {"prices": prices_of(self.price), "region": self.region, "jobs": self.jobs}


def with_option_groups(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function the options of its records, each in the record's place."""
    hints = get_type_hints(ask, include_extras=True)
    records: dict[str, Any] = {
        name: hint for name, hint in hints.items() if name != "return" and is_dataclass(hint)
    }
    shown: list[Parameter] = []
    for name, parameter in signature(ask).parameters.items():
        if name in records:
            shown += _options(records[name])
        else:
            shown.append(parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))

    def asked(**options: Any) -> Any:
        groups = {
            name: record(**{field.name: options.pop(field.name) for field in fields(record)})
            for name, record in records.items()
        }
        return ask(**options, **groups)

    asked.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    return asked


def _options(record: Any) -> list[Parameter]:
    hints = get_type_hints(record, include_extras=True)
    kind = Parameter.KEYWORD_ONLY
    return [
        Parameter(field.name, kind, default=field.default, annotation=hints[field.name])
        for field in fields(record)
    ]
