"""What a launch leaves out or sets that costs: seconds, bytes and money of each in this very job.

The rules stand in ``hardware_profiles/lints.toml``. Each is priced as the job without it against
the job with it, in the same layout, by the same model as the job itself; of what files do not say
and the prediction does not know, both sides are priced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from simulator import catalogue
from simulator.answers import Answer, Encoded
from simulator.cost.step import evaluate
from simulator.dotted_fields import put
from simulator.errors import InfeasibleError, InputError
from simulator.files import read_records, read_toml, record
from simulator.frames import DataFrame, frame_of_rows
from simulator.interop.dialects.settings import EVERY_STEPS
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from simulator.interop.launch_files.recognising import LAUNCH_FILE_LIMIT_BYTES
from simulator.plain_files import read_text
from simulator.planner.changes import machine_with
from simulator.planner.prediction import Prediction, predict
from simulator.records import dataclass
from simulator.scenario import make_scenario
from simulator.search.with_failures import priced

_LEAST_STEP = 5e-4
"""Share of the step below which a change is none."""

_LEAST_BYTES = 50 * 2**20

_COMMENT = re.compile(r"^\s*(#(?!SBATCH)|//).*$", re.M)
_ENTRY = r"name:\s*[\"']?(?:{name})[\"']?\s*\n\s*value:\s*[\"']?([^\"'\n#]*)"
"""A variable of a container, as Kubernetes has it."""
_ASSIGNED = (
    r"(?<![\w-])(?:--|)(?:{name})[\"']?\]?[ \t]*(?:=|:|[ \t](?=[\w\"'^]))[ \t]*[\"']?"
    r"([^\"'\s;#&|\\]+)"
)
_NO_CHECKPOINTS = r"checkpoint\.enable(?:_checkpoint)?"
"""Of torchtitan: false where nothing is written."""
_UNSET = r"unset\s[^\n;]*\b(?:{name})\b"


@record
class Rule:
    """One rule, as ``lints.toml`` describes it."""

    says: str
    advice: str
    source: str
    files: str = ""
    variable: str = ""
    key: str = ""
    wants: str = ""
    unwanted: str = ""
    better: dict[str, Any] = field(default_factory=dict)
    worse: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, float] = field(default_factory=dict)
    software: dict[str, str] = field(default_factory=dict)
    layouts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    adapters: bool = False
    interval: bool = False
    bound: Literal["", "at most", "at least"] = ""
    unpriced: str = ""
    needs: str = ""
    platforms: tuple[str, ...] = ()
    not_on: tuple[str, ...] = ()
    least: dict[str, int] = field(default_factory=dict)
    sharding: tuple[str, ...] = ()
    servers: bool = False

    @property
    def looks_for(self) -> str:
        """Names of variables or keys in the files; blank where the prediction knows."""
        return self.variable or self.key


@lru_cache(maxsize=1)
def rules() -> dict[str, Rule]:
    """Every rule by its name."""
    path = catalogue.folder("hardware_profiles") / "lints.toml"
    return read_records(Rule, path, "rules")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lint(Encoded):
    """One thing that costs, and what."""

    name: str
    says: str
    stands: str
    """What the files say of it; blank where nothing."""
    advice: str
    change: dict[str, Any]
    """Fields of the scenario that it comes to."""
    bound: str
    """at most, at least, or blank."""
    step_s: float | None
    """Seconds a step that it costs; negative: the change pays in memory alone. None: no price."""
    memory_bytes: float | None
    """Bytes on the fullest device that it costs."""
    days: float | None
    usd: float | None
    """Of the whole run; None where its length or price is not known."""
    verdict: str | None
    """FITS, TIGHT or OOM with the change."""
    unpriced: str
    """Why it has no price."""
    source: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Lints(Answer):
    """A launch, and what of it costs."""

    COMMAND: ClassVar[str] = "lint"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("lints", "as_they_should_be", "step_time_s=prediction.step_time_s"),
        *("memory_bytes=prediction.memory_bytes", "from=imported", "caveats"),
    )

    imported: Imported
    prediction: Prediction
    lints: tuple[Lint, ...]
    """What costs most seconds first; then bytes; then what has no price."""
    as_they_should_be: tuple[str, ...]
    """Rules of which the files say what they want."""

    @property
    def line(self) -> str:
        """All of it in a few words."""
        gained = sum(lint.step_s or 0.0 for lint in self.lints if (lint.step_s or 0.0) > 0.0)
        share = 100.0 * gained / self.prediction.step_time_s
        return f"{len(self.lints)} things that cost, one by one {share:.1f} % of the step"

    @property
    def caveats(self) -> tuple[str, ...]:
        """What it leaves out."""
        return (
            "Each is priced alone: two that hide behind the same compute bring less together.",
            "Variables that a container, a module or the site sets elsewhere are not seen.",
        )

    def to_frame(self) -> DataFrame:
        """One row per thing that costs."""
        names = ("name", "says", "stands", "advice", "step_s", "memory_bytes", "usd", "verdict")
        return frame_of_rows([{n: getattr(lint, n) for n in names} for lint in self.lints])


def lint(
    files: Iterable[Path | str],
    names: Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
) -> Lints:
    """Price what a launch leaves out or sets.

    Raises
    ------
    InputError
        As :func:`simulator.interop.launch_files.merging.import_launch`; or where the layout cannot
        run.
    """
    overrides = list(overrides)
    imported = import_launch(files, names, overrides)
    files = imported.paths
    text = "\n".join(_COMMENT.sub("", read_text(path, LAUNCH_FILE_LIMIT_BYTES)) for path in files)
    text += "\n" + "\n".join(line for path in files for line in _dotted(path))
    now = _at_its_interval(imported.predicted(), text, overrides)
    kinds = " ".join(reading.kind for reading in imported.readings)
    kept: list[str] = []
    listed: list[Lint] = []
    for name, rule in rules().items():
        if not _applies(rule, now, kinds):
            continue
        value = value_in(text, rule.looks_for) if rule.looks_for else None
        if rule.looks_for and not _wrong(rule, value):
            if value is not None:
                kept.append(name)
            continue
        priced_now = list(_priced(name, rule, now, value))
        listed += priced_now
        said = now.scenario.run.checkpoints.every_steps
        if rule.interval and not priced_now and value == str(said):
            kept.append(name)
    order = {id(item): place for place, item in enumerate(listed)}
    listed.sort(key=lambda x: (x.step_s is None, -(x.step_s or 0.0), -(x.memory_bytes or 0.0),
                               order[id(x)]))  # fmt: skip
    return Lints(
        imported=imported, prediction=now, lints=tuple(listed), as_they_should_be=tuple(kept)
    )


def _dotted(path: Path | str) -> Iterator[str]:
    """Settings of a TOML file with their sections, as ``checkpoint.interval = 500``."""
    if Path(path).suffix != ".toml":
        return
    for section, fields in read_toml(Path(path)).items():
        if isinstance(fields, Mapping):
            for name, value in fields.items():
                if isinstance(value, (bool, int, str)):
                    yield f"{section}.{name} = {value}"


def _at_its_interval(now: Prediction, text: str, overrides: Iterable[str]) -> Prediction:
    """The run with checkpoints as far apart as its files say, unless options say otherwise."""
    asked = any(item.strip().startswith("run.checkpoints") for item in overrides)
    (rule,) = (rule for rule in rules().values() if rule.interval)
    value = value_in(text, rule.looks_for)
    off = value_in(text, _NO_CHECKPOINTS)
    stated = now.scenario.run.checkpoints
    free = stated.every_steps is None and stated.interval_s is None
    if asked or not free or not re.fullmatch(r"0*[1-9]\d*", value or "") or _is_off(off):
        return now
    return _with(now, {EVERY_STEPS: int(value or 0)}) or now


def _is_off(value: str | None) -> bool:
    return value is not None and value.lower() == "false"


def value_in(text: str, names: str) -> str | None:
    """Last value that a text gives a variable or key; None where it gives none.

    >>> value_in("export NCCL_IB_DISABLE=1", "NCCL_IB_DISABLE")
    '1'
    >>> value_in("run --save-interval 500 --x", "save[-_]interval")
    '500'
    """
    if re.search(_UNSET.format(name=names), text):
        return None
    ways = (_ENTRY, _ASSIGNED)
    matches = [m for way in ways for m in re.finditer(way.format(name=names), text)]
    return max(matches, key=lambda m: m.start()).groups()[-1].strip() if matches else None


def _applies(rule: Rule, now: Prediction, kinds: str) -> bool:
    """Whether a launch of its kind, device and layout can have it."""
    cluster, layout = now.scenario.cluster, now.layout
    device = cluster.accelerator
    wrong = (
        bool(rule.files) and not re.search(rule.files, kinds),
        bool(rule.platforms) and device.platform not in rule.platforms,
        device.generation in rule.not_on,
        rule.servers and cluster.gpus <= cluster.node.accelerators,
        any(int(layout[name]) < degree for name, degree in rule.least.items()),
        bool(rule.sharding) and layout["sharding"] not in rule.sharding,
        bool(rule.software) and now.scenario.software.name not in rule.software,
    )
    return not any(wrong)


def _wrong(rule: Rule, value: str | None) -> bool:
    if rule.wants:
        return value is None or not re.search(rule.wants, value)
    return value is not None and re.search(rule.unwanted, value) is not None


def _priced(name: str, rule: Rule, now: Prediction, value: str | None) -> Iterator[Lint]:
    """A rule that a launch breaks, with its price; none where it changes nothing."""
    head: dict[str, Any] = {
        **{"name": name, "says": rule.says, "advice": rule.advice, "source": rule.source},
        **{"bound": rule.bound, "stands": value or ""},
    }
    why = rule.unpriced
    if rule.needs and rule.needs not in now.scenario.document:
        why = f"a section [{rule.needs}] says what there is to load (--set {rule.needs}.kind=...)"
    if why:
        yield _lint(head, {}, None, None, why)
        return
    for change, before, after in _sides(rule, now, value):
        if before is None or after is None:
            continue
        made = _lint(head, change, before, after, "")
        gains = (made.step_s or 0.0) > _LEAST_STEP * now.step_time_s
        if gains or (made.memory_bytes or 0.0) > _LEAST_BYTES:
            yield made


def _sides(
    rule: Rule, now: Prediction, value: str | None
) -> Iterator[tuple[dict[str, Any], Prediction | None, Prediction | None]]:
    """Changes that a rule proposes, each with the run before and after it."""
    if rule.interval:
        stated = now.scenario.run.checkpoints.every_steps  # None where nothing is written
        yield from _intervals(now, int(value or 0) if stated else 0)
    elif rule.adapters:
        yield from _adapters(now, value or "")
    elif rule.machine:
        yield {}, _on_machine(now, rule.machine), now
    elif rule.software:
        change = {"cluster.software": rule.software[now.scenario.software.name]}
        yield change, now, _with(now, change)
    elif rule.layouts:
        yield from _layouts(now, rule.layouts)
    else:
        before = _with(now, rule.worse) if rule.worse else now
        after = _with(now, rule.better) if rule.better else now
        yield rule.better, before, after


def _with(now: Prediction, fields: Mapping[str, Any]) -> Prediction | None:
    """The same layout with some fields of the scenario otherwise; None where it cannot run.

    A field that becomes None is as if it were not said.
    """
    scenario = now.scenario
    document: dict[str, Any] = {**scenario.document, "layout": _same_layout(now, fields)}
    for name, said in fields.items():
        put(document, name, list(said) if isinstance(said, tuple) else said, where=scenario.where)
    try:
        architecture = scenario.workload.architecture
        return predict(make_scenario(document, where=scenario.where, architecture=architecture))
    except (InputError, InfeasibleError):
        return None


def _same_layout(now: Prediction, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What was pinned, without what a change of recomputation makes of it."""
    changes = any(name.startswith("layout.recompute") for name in fields)
    gone = {"recompute_layers", "recompute_modules"} if changes else set()
    return {name: value for name, value in now.scenario.pinned.items() if name not in gone}


def _on_machine(now: Prediction, factors: Mapping[str, float]) -> Prediction:
    """The same layout on a machine that is slower."""
    scenario = now.scenario
    cluster, software = machine_with((scenario.cluster, scenario.software), *factors.items())
    slower = replace(scenario, cluster=cluster, software=software)
    estimate = evaluate(now.estimate.layouts, scenario.workload, cluster, software)
    return replace(now, scenario=slower, estimate=estimate, outcome=priced(estimate, slower))


def _layouts(
    now: Prediction, choices: Mapping[str, Iterable[str]]
) -> Iterator[tuple[dict[str, Any], Prediction | None, Prediction | None]]:
    """Of every layout field the other choice that FITS and is the fastest."""
    for name, words in choices.items():
        priced_words = [
            (word, after)
            for word in words
            if now.layout[name] != word
            and (after := _with(now, {f"layout.{name}": word})) is not None
            and after.memory_verdict == "FITS"
        ]
        if priced_words:
            word, after = min(priced_words, key=lambda item: item[1].step_time_s)
            yield {f"layout.{name}": word}, now, after


def _adapters(
    now: Prediction, value: str
) -> Iterator[tuple[dict[str, Any], Prediction | None, Prediction | None]]:
    """NCCL_IB_HCA: a list of adapters with their numbers; prefixes alone stand for all."""
    listed = [word for word in re.split(r"[,\s]+", value.lstrip("=")) if word]
    there = now.scenario.cluster.node.scale_out.adapters
    if value.startswith("^"):
        used = there - len(listed)
    elif len(listed) > 1 or re.search(r"_\d+(:\d+)?$", listed[0]):
        used = len({word.partition(":")[0] for word in listed})
    else:
        return
    if 0 < used < there:
        yield {}, _on_machine(now, {"network.adapters": used}), now


def _intervals(
    now: Prediction, steps: int
) -> Iterator[tuple[dict[str, Any], Prediction | None, Prediction | None]]:
    """Checkpoints so many steps apart, and the best number of steps."""
    stated = now.scenario.run.checkpoints
    if not steps or stated.interval_s is not None or stated.every_steps not in (None, steps):
        return  # an option says another
    before = now if stated.every_steps else _with(now, {EVERY_STEPS: steps})
    after = now if stated.every_steps is None else _with(now, {EVERY_STEPS: None})
    best = None if after is None else after.checkpoint.every_steps
    if before is not None and best is not None:
        yield {EVERY_STEPS: max(round(best), 1)}, before, after


def _lint(
    head: Mapping[str, Any],
    change: dict[str, Any],
    before: Prediction | None,
    after: Prediction | None,
    unpriced: str,
) -> Lint:
    if before is None or after is None:
        names = ("step_s", "memory_bytes", "days", "usd", "verdict")
        nothing: dict[str, Any] = dict.fromkeys(names)
        return Lint(**head, change=change, unpriced=unpriced, **nothing)
    return Lint(
        **head,
        change=change,
        unpriced="",
        step_s=_real_step_s(before) - _real_step_s(after),
        memory_bytes=before.memory_bytes - after.memory_bytes,
        days=_less(before.days, after.days),
        usd=_less(before.usd, after.usd),
        verdict=after.memory_verdict,
    )


def _real_step_s(prediction: Prediction) -> float:
    """Wall time of the run for each of its steps: with failures, checkpoints and slow steps."""
    goodput = float(prediction.outcome.goodput[0])
    return prediction.step_time_s / goodput if math.isfinite(goodput) and goodput else math.inf


def _less(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else before - after
