"""`foreshard versus`, `foreshard what-if`: two layouts, or two machines, against each other.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.cli.option_groups import Limits, SearchOptions
from simulator.cli.options import ScenarioFile
from simulator.cli.runner import Reply, question
from simulator.cli.screen import (
    NO_FIT,
    amount,
    gib,
    heading,
    notes,
    seconds_like,
    table_of,
    term_table,
    waiting,
)
from simulator.errors import InputError, problem
from simulator.glossary import CAVEATS
from simulator.units import (
    show_days,
    show_days_span,
    show_percent,
    show_seconds,
    show_seconds_span,
    show_signed_percent,
    show_usd,
    show_usd_change,
    show_usd_span,
)

if TYPE_CHECKING:
    from simulator.cost.step import Estimate
    from simulator.questions.versus.answer import Versus
    from simulator.questions.versus.fabrics import FabricChoice, FabricChoices
    from simulator.questions.versus.releases import ReleaseChoices, ReleaseRow
    from simulator.questions.versus.what_if import WhatIf
    from simulator.scenario import Scenario
    from simulator.search.best_layout import BestLayout
    from simulator.search.certainty import Certainty
    from simulator.search.outcome import Outcome


Words = Annotated[
    list[str],
    typer.Argument(
        metavar="[SCENARIO] A B",
        help="A scenario file, unless --model, --cluster and --gpus make one; and two sides, each"
        " layout fields such as tp=4 or tp=4,pp=8.",
    ),
]
Defaults = Annotated[
    bool,
    typer.Option(
        "--defaults",
        help="Give what a side does not say its stated default, as predict does; it is searched"
        " otherwise.",
    ),
]


Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--change",
        metavar="NAME=VALUE",
        help="network.adapter=0.5, memory=+20%, network.adapters=4, training.global_batch=4096;"
        " may be repeated, all are made together.",
    ),
]
Fabrics = Annotated[
    bool,
    typer.Option(
        "--fabrics",
        help="Try fabrics in place of changes: 1 to 8 adapters a server of 100 to 800 Gbit/s, rails"
        " or not, over-subscription 1 to 8, fast domain 8 or 72; time and dollars of each.",
    ),
]


Releases = Annotated[
    bool,
    typer.Option(
        "--releases",
        help="Try every release of the software's framework that is known in place of changes: what"
        " an upgrade gains, its memory, and the measured runs behind it.",
    ),
]


@question("versus", "versus run.toml tp=4,pp=4 tp=8,pp=2")
def ask_versus(
    *,
    words: Words,
    options: SearchOptions,
    defaults: Defaults = False,
) -> Reply:
    """Compare two layouts term by term, with the chance that each is the faster one.

    Exit 0: done; 1: nothing of a side fits; 2: bad input.
    """
    from simulator.questions.versus.answer import parse_side, versus

    sides = [word for word in words if "=" in word]
    files = [word for word in words if "=" not in word]
    if len(sides) != 2 or len(files) > 1:
        rule = "must be two sides such as tp=4 tp=8, after a scenario file if there is one"
        raise InputError(problem("command line", "arguments", rule, " ".join(words)))
    a, b = (parse_side(text) for text in sides)
    described = options.scenario(Path(files[0]) if files else None)
    with waiting("searching both"):
        answer = versus(described, a, b, search=not defaults)
    return Reply(answer, versus_screen)


@question(
    "what-if",
    "what-if run.toml --change network.adapter=0.5 --change memory=+20%",
    "what-if run.toml --releases",
)
def ask_what_if(
    *,
    scenario: ScenarioFile = None,
    options: SearchOptions,
    limits: Limits,
    change: Changes = None,
    fabrics: Fabrics = False,
    releases: Releases = False,
) -> Reply:
    """Say what a change would do: the best layout before and after, both searched.

    Exit 0: done; 1: nothing fits, before or after; 2: bad input.
    """
    from simulator.questions.versus.what_if import what_if

    if fabrics and releases:
        raise InputError("command line: --releases: must be left out with --fabrics")
    described = limits.put_on(options).scenario(scenario)
    if fabrics:
        return _fabrics(described, change)
    if releases:
        return _releases(described, change)
    with waiting("searching twice"):
        answer = what_if(described, change or ())
    return Reply(answer, what_if_screen)


def _releases(scenario: Scenario, changes: list[str] | None) -> Reply:
    """Price the scenario on every release of its framework."""
    from simulator.questions.versus.releases import release_choices

    if changes:
        raise InputError("arguments: --change: must be left out with --releases")
    with waiting("pricing releases"):
        answer = release_choices(scenario)
    return Reply(answer, releases_screen)


def _fabrics(scenario: Scenario, changes: list[str] | None) -> Reply:
    """Price the scenario on every candidate fabric."""
    from simulator.questions.versus.fabrics import fabric_choices

    if changes:
        raise InputError("arguments: --change: must be left out with --fabrics")
    with waiting("pricing fabrics"):
        answer = fabric_choices(scenario)
    return Reply(answer, fabrics_screen)


_MOST = 12


def versus_screen(answer: Versus) -> Iterator[RenderableType]:
    """Give two layouts of one run."""
    from simulator.planner.assumptions import ASSUMED, assumption_lines

    estimate = answer.estimate
    yield heading(answer.scenario)
    sides = [_words(side) for side in answer.sides]
    yield ""
    yield Text(answer.verdict, style="bold")
    yield notes("", [_line(f"{name} ({sides[i]})", answer, i) for i, name in enumerate("ab")])
    yield notes("Whole run", whole_runs(dict(zip("ab", answer.predictions, strict=True)), answer))
    yield notes(ASSUMED, assumption_lines(answer.predictions[answer.faster]))
    yield ""
    yield term_table({f"a: {sides[0]}": (estimate, 0), f"b: {sides[1]}": (estimate, 1)})
    yield notes(CAVEATS, answer.caveats)


def what_if_screen(answer: WhatIf) -> Iterator[RenderableType]:
    """Give the answers before and after a change."""
    from simulator.planner.assumptions import ASSUMED, assumption_lines

    before, after = answer.before.estimate, answer.after.estimate
    yield heading(answer.before.scenario)
    yield ""
    yield Text(answer.verdict, style="bold")
    lines = [
        f"before: {_step(before)}, {before.verdict_word()}, {before.layouts.describe()}",
        f"after:  {_step(after)}, {after.verdict_word()}, {after.layouts.describe()}",
    ]
    columns = {"before": (before, 0), "after": (after, 0)}
    if answer.same is not None:
        same = answer.same.estimate
        lines.append(f"with the layout of before: {_step(same)}, {same.verdict_word()}")
        if same.layouts.describe() != after.layouts.describe():
            columns["layout of before"] = (same, 0)
    yield notes("", lines)
    if answer.same is None:
        words = f"the layout of before cannot run then: {answer.same_reason}"
        yield Text(words, style=NO_FIT)
    yield notes("Whole run", whole_runs({"before": answer.before, "after": answer.after}, answer))
    yield notes(ASSUMED, assumption_lines(answer.before))
    yield ""
    yield term_table(columns)
    yield notes(CAVEATS, answer.caveats)


def whole_runs(sides: Mapping[str, BestLayout], answer: Versus | WhatIf) -> list[str]:
    """Days and money of both with P10 to P90, what to plan for, and the difference."""
    from simulator.report.wording import goal_words, planned_totals_words

    days, usd = answer.days_change, answer.usd_change
    if days["p50"] is None:
        return []
    lines = []
    for name, side in sides.items():
        totals = _totals(side.estimate, side.outcome, side.certainty)
        goals = goal_words(side.scenario.goal, side.goal_chances)
        lines.append("; ".join([f"{name}: {totals}", planned_totals_words(side), *goals]))
    (first, side), (last, _) = sides.items()
    words = f"{last} less {first}: {_difference('time', days, _days_change)}"
    if usd["p50"] is not None:
        mark = side.outcome.price.mark
        words += f", {_difference('money', usd, show_usd_change, mark)}"
    lines.append(words)
    if side.planning_factor is not None:
        lines.append(f"plan for: {side.planning_factor.sentence()}")
    return lines


def _difference(
    what: str, span: Mapping[str, float | None], show: Callable[[float], str], mark: str = ""
) -> str:
    """A difference with its P10 to P90 and whether that holds 0, marked where a price is assumed.

    What no error bears on, such as another price of the same step, has no range.
    """
    from simulator.questions.versus.what_if import error_words

    low, middle, high = (value or 0.0 for value in span.values())
    if low == high:
        return f"{show(middle)}{mark}" if middle else f"{what} unchanged"
    sure = error_words(low <= 0.0 <= high)
    return f"{show(middle)}{mark} ({show(low)} to {show(high)}, {sure})"


def _days_change(days: float) -> str:
    return f"{'-' if days < 0.0 else '+'}{show_days(abs(days))}"


def _totals(estimate: Estimate, outcome: Outcome, sure: Certainty) -> str:
    """Days and money of a layout with P10 to P90, at which price."""
    from simulator.economics.price import MARK
    from simulator.search.outcome import spans

    whole, days, usd = spans(estimate, outcome, sure), float(outcome.days[0]), float(outcome.usd[0])
    low, high = (float(end[0]) for end in whole.days)
    words = show_days_span(days, low, high)
    if not isfinite(usd):
        return f"{words}, no price known"
    low, high = (float(end[0]) for end in whole.usd)
    mark = MARK * outcome.price.assumed
    money = f"{show_usd(usd)}{mark} ({show_usd_span(low, high)})"
    return f"{words}, {money} at {outcome.price.words()}"


def _words(side: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in side.items())


def _step(estimate: Estimate) -> str:
    return show_seconds(float(estimate.step_time_s[0]))


def _line(name: str, answer: Versus, i: int) -> str:
    """One side in a line."""
    estimate, sure = answer.estimate, answer.certainty
    span = show_seconds_span(float(sure.p10_s[i]), float(sure.p90_s[i]))
    step = show_seconds(float(estimate.step_time_s[i]))
    return (
        f"{name}: {step} (P10 to P90: {span}), {estimate.verdict_word(i)},"
        f" {estimate.layouts.describe(i)}"
    )


def fabrics_screen(answer: FabricChoices) -> Iterator[RenderableType]:
    """Give fabrics that none beats in time and price; without prices the fastest."""
    yield heading(answer.scenario)
    front = answer.front()
    words = f"{len(front)} of them have no other that is as fast with a cheaper network"
    if not answer.priced:
        words = f"no prices are known: {len(front)} have no other that is as fast with fewer bits"
    yield f"\n{len(answer.rows)} fabrics; {words}\n"
    yield _fabrics_table(front[:_MOST], answer.rows[0].step_time_s)
    yield notes(CAVEATS, answer.caveats)


def releases_screen(answer: ReleaseChoices) -> Iterator[RenderableType]:
    """Give every release, oldest first."""
    scenario = answer.prediction.scenario
    yield heading(scenario)
    yield f"\n{answer.prediction.estimate.layouts.describe()} on every release\n"
    unit, scale = seconds_like(answer.prediction.step_time_s)
    mark = answer.prediction.outcome.price.mark
    yield table_of(
        answer.rows,
        ("release", lambda row: f"{row.release}{' (here)' * row.here}"),
        (f"step ({unit})", lambda row: amount(scale * row.step_time_s) if row.step_time_s else "-"),
        ("gain", lambda row: _gain(row)),
        ("GiB", lambda row: gib(row.memory_total_bytes) if row.memory_total_bytes else ""),
        ("fit", lambda row: row.memory_verdict or "cannot run"),
        (f"USD{mark}", lambda row: f"{row.usd:+,.0f}" if row.usd else ""),
        ("measured runs", lambda row: _behind(row)),
        (
            "its best",
            lambda row: _best(row, scale),
        ),
        ("layout", lambda row: row.best_layout or ""),
        left=("release", "fit", "measured runs", "layout"),
    )
    yield ""
    close = [row.release for row in answer.rows if row.within_error and not row.here]
    if close:
        yield notes("As far apart as releases that do the same", [", ".join(close)])
    yield notes("Cannot run there", [f"{r.release}: {r.reason}" for r in answer.rows if r.reason])
    yield notes("What each is", [f"{row.release}: {row.notes}" for row in answer.rows])
    yield notes(CAVEATS, answer.caveats)


def _best(row: ReleaseRow, scale: float) -> str:
    return "" if row.best_step_time_s is None else amount(scale * row.best_step_time_s)


def _gain(row: ReleaseRow) -> str:
    return "" if row.here or row.step_time_s is None else show_signed_percent(row.gain)


def _behind(row: ReleaseRow) -> str:
    card = row.evidence
    if card is None:
        return ""
    expected = "" if card.mean_error is None else f", {show_percent(card.mean_error)} off expected"
    return f"{card.grade}: {card.runs}{expected}"


def _fabrics_table(rows: Sequence[FabricChoice], best_s: float) -> Table:
    unit, scale = seconds_like(best_s)
    return table_of(
        rows,
        ("adapters", lambda row: f"{row.adapters} x {row.gbps} Gbit/s"),
        ("narrow", lambda row: f"{row.oversubscription}:1"),
        ("rails", lambda row: "yes" if row.rails else "no"),
        ("domain", lambda row: f"{row.domain}"),
        (f"step ({unit})", lambda row: amount(scale * row.step_time_s)),
        ("slower", lambda row: show_percent(row.step_time_s / best_s - 1.0)),
        ("days", lambda row: "" if row.days is None else f"{row.days:,.1f}"),
        ("network USD", lambda row: "" if row.network_usd is None else show_usd(row.network_usd)),
        ("run USD", lambda row: "" if row.usd is None else show_usd(row.usd)),
        ("layout", lambda row: str(row.layout)),
        left=("adapters", "layout"),
    )
