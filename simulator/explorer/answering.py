"""Answers to questions: a layout at once, the search behind it, downloads; of bounded memory."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import tempfile
import threading
from collections import OrderedDict
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit

from simulator.answers import encoded, plain
from simulator.cost.step import evaluate
from simulator.errors import InfeasibleError, InputError
from simulator.explorer.asked import Question, key_of, scenario_document, scenario_of_question
from simulator.goal import OFFERED
from simulator.interop.exporting import launch_flags
from simulator.layout.layouts import Layouts
from simulator.layout.plain_words import plain_layout
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.assumptions import assumption_lines
from simulator.planner.layout_row import layout_rows
from simulator.planner.plan import Plan, plan, ranked
from simulator.planner.prediction import Prediction, predict
from simulator.planner.sensitivity import memory_margin
from simulator.planner.variants import other_trainings
from simulator.records import dataclass
from simulator.report.wording import risk_comments
from simulator.scenario import Scenario
from simulator.schedules.registry import usual_codes
from simulator.search.allowed import with_allowed
from simulator.search.candidates import count
from simulator.search.with_failures import priced

# --- layouts of a plan under another scenario --------------------------------------------

MOST = 48
"""Layouts of the plan before that are priced again: together a tenth of a second or less."""

_FRONT = 16
"""Of them those of its front with most free memory, for when the best no longer fit."""


def repriced(before: Plan, scenario: Scenario) -> Plan | None:
    """Price the best and the leanest layouts of a plan for another scenario, pins put over them.

    Where none fits, the one that needs least memory is the answer. The degree of data parallelism
    and what hangs on a pin follow; layouts that cannot run are left out.

    Returns
    -------
    Plan or None
        Its ``found`` is that of the plan before; None if none of the layouts can run.
    """
    setting = scenario.workload, scenario.cluster, scenario.software
    chosen = np.unique(np.r_[before.pareto[-_FRONT:], : min(MOST - _FRONT, len(before.estimate))])
    table = moved(before.estimate.layouts[chosen], scenario)
    table = table[reasons(table, *setting) == FEASIBLE]
    if not len(table):
        return None
    estimate = evaluate(table, *setting)
    fits = np.flatnonzero(estimate.fits)
    estimate = estimate.take(fits if len(fits) else [int(np.argmin(estimate.memory_total_bytes))])
    result = priced(estimate, scenario)
    order = ranked(estimate, result, scenario)
    estimate, result = estimate.take(order), result.take(order)
    return Plan(
        scenario=scenario,
        found=before.found,
        estimate=estimate,
        outcome=result,
        naive=None,
    )


def moved(table: Layouts, scenario: Scenario) -> Layouts:
    """Put a scenario's pins, batch and number of accelerators over layouts; each row once."""
    was, pinned = table, scenario.pinned
    table = table.replace(**pinned, global_batch=scenario.workload.recipe.global_batch)
    dp = np.maximum(scenario.cluster.gpus // (table.tp * table.pp * table.cp), 1)
    vpp = np.where(table.pp == 1, 1, table.vpp)
    gcd = np.gcd(table.micro_batch, np.maximum(table.global_batch // dp, 1))
    follows: dict[str, Any] = {"dp": dp, "vpp": vpp}
    follows["schedule"] = np.where(vpp == was.vpp, was.schedule, usual_codes(vpp))
    whole = was.shard_group == was.dp * was.cp
    follows["shard_group"] = np.where(whole, dp * table.cp, was.shard_group)
    usually = int(True in scenario.software.supports.sequence_parallel)
    newly = np.where(was.tp == 1, usually, was.sequence_parallel)
    follows["sequence_parallel"] = np.where(table.tp == 1, 0, newly)
    for name in ("recompute_layers", "recompute_modules"):
        follows[name] = np.where(table.recompute == was.recompute, getattr(was, name), 0)
    if "micro_batch" not in pinned:
        follows["micro_batch"] = gcd
    follows["cp_a2a"] = np.where(table.cp == was.cp, was.cp_a2a, 1)
    same = (table.pp == was.pp) & (vpp == was.vpp)
    splits = tuple(dict.fromkeys([*was.splits, ()]))
    follows["stages"] = np.where(same, was.stages, splits.index(()))
    table = dataclasses.replace(table, **follows, splits=splits)
    rows = np.stack(list(table.columns().values()), axis=1)
    _, first = np.unique(rows, axis=0, return_index=True)
    return table[np.sort(first)]


_SEARCHES = 1
"""Searches at a time: each takes all processors."""

MOST_LAYOUTS = 8_000_000
"""Layouts of a question that is searched: some ten seconds. DeepSeek-V3 on 2,048 GPUs has half."""

_MICRO_BATCH = 16
"""Micro-batches that are tried in any case."""

_REMEMBERED = 24
"""Plans that are kept."""

_KEEP = 64
"""Layouts of a plan that are ranked for the front and the table."""

_TABLE = 12

_ROW = (
    *("words=described", "layout", "step_time_s", "memory_total_bytes", "days", "usd", "mfu"),
    *("planned_days", "planned_usd", "planned_kwh", "price"),
)
"""A layout of the table and of the front."""


@dataclass
class Answers:
    """Plans that were searched, the oldest forgotten first."""

    plans: OrderedDict[str, Plan | str] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    most_layouts: int = MOST_LAYOUTS
    searching: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(_SEARCHES))

    def now(
        self,
        question: Question,
        near: dict[str, Any] | None = None,
        last: str = "",
    ) -> dict[str, Any]:
        """The answer that needs no search: a known plan's best, else layouts near the last one.

        `last` is the key of the plan that the page shows: its best layouts are priced again. Where
        that plan is not known, `near` is the layout on the page; pins are put over it, and stated
        defaults fill what is not pinned.

        Raises
        ------
        InputError
            If what is asked is wrong, or the pins cannot run.
        """
        scenario = scenario_of_question(question)
        known = self.plans.get(key_of(question))
        if isinstance(known, Plan):
            return {**_described(known), **_ranking(known), **_said(known), "searched": True}
        if isinstance(known, str):
            return {"reason": known, "searched": True}
        before = self.plans.get(last)
        if not isinstance(before, Plan):
            return {**_described(_nearby(scenario, near or {})), "searched": False}
        found = repriced(before, scenario)
        if found is None:
            return {"reason": "none of the last answer's layouts can run so", "searched": False}
        return {**_described(found), **_ranking(found), "searched": False}

    def searched(self, question: Question) -> dict[str, Any]:
        """The best layouts, their front, and the first of them in full."""
        plan = self.plan_of(question)
        if isinstance(plan, str):
            return {"reason": plan, "searched": True}
        return {
            **_described(plan),
            **_ranking(plan),
            "searched": True,
            "key": key_of(question),
            "tried": plan.found.layouts,
            **_said(plan),
            "evidence": list(plan.evidence.sentences()),
        }

    def plan_of(self, question: Question) -> Plan | str:
        """The plan, or why there is none."""
        key = key_of(question)
        with self.lock:
            if key in self.plans:
                self.plans.move_to_end(key)
                return self.plans[key]
        with self.searching:
            if key in self.plans:  # another request searched for it meanwhile
                return self.plans[key]
            found: Plan | str
            try:
                scenario = scenario_of_question(question)
                self._refuse_large(scenario)
                found = plan(scenario, keep=_KEEP)
            except InfeasibleError as error:
                found = str(error)
            finally:
                _give_back()
        with self.lock:
            self.plans[key] = found
            while len(self.plans) > _REMEMBERED:
                self.plans.popitem(last=False)
        return found

    def _refuse_large(self, scenario: Scenario) -> None:
        """Refuse a question whose search would hold all others up."""
        setting = scenario.workload, scenario.cluster, scenario.software
        layouts = count(*setting, with_allowed(scenario), micro=(0, _MICRO_BATCH))
        if layouts > self.most_layouts:
            rule = f"has {layouts:,} layouts, of which this page searches {self.most_layouts:,}"
            raise InputError(f"question: {rule}: pin a field (tp, pp, ep), or ask foreshard plan")

    def otherwise(self, question: Question) -> dict[str, Any]:
        """What each other training takes that software and device have, beside the best layout."""
        found = self._found(question)
        with self.searching:
            others = other_trainings(found.scenario, OFFERED)
        _give_back()
        return {
            "step_time_s": float(found.estimate.step_time_s[0]),
            "others": plain(others),
        }

    def sizes(self, question: Question) -> dict[str, Any]:
        """The same run on other numbers of GPUs and on another cluster, drawn and in words."""
        from simulator.questions.compare.offer import asked_of, offer_of_answer
        from simulator.questions.plan.options import other_offers, searched_offers
        from simulator.report.decision import options_words, three_options, verdict_sentence
        from simulator.report.decision_picture import decision_picture, drawn_offers
        from simulator.report.inline_svg import inline

        plan = self._found(question)
        asked, points = asked_of(plan), other_offers(plan, question.beside)
        with self.searching:
            others = searched_offers(plan, points)
        _give_back()
        offers = [offer_of_answer(plan, asked), *others]
        options = three_options(offers, asked, query=offers[0])
        if not drawn_offers(offers, options, asked):
            return {"said": ["give tokens, and a cluster with a price, for days and money"]}
        chosen = offers, options, asked, ""
        drawn = (decision_picture(*chosen, narrow=phone, svg=True) for phone in (False, True))
        shapes = [figure.svg(head=False) for figure in drawn]
        words = [f"{option.role}: {option.name}, {option.totals}" for option in options]
        return {
            "said": [verdict_sentence(offers[0], asked), options_words(offers, options, asked)],
            "options": words,
            "picture": str(inline(*shapes, alt="Money against days to finish, by GPUs")),
        }

    def scenario_file(self, question: Question) -> str:
        """The question as a scenario file."""
        scenario_of_question(question)  # only what can be read back
        return tomlkit.dumps(scenario_document(question))

    def launch(self, question: Question) -> str:
        """The command of the best layout."""
        answer = self._found(question)
        command = launch_flags(answer.estimate.layouts, answer.scenario)
        return "\n".join([command, *risk_comments(answer), ""])

    def report(self, question: Question) -> bytes:
        """The page of ``foreshard plan``."""
        from simulator.questions.compare.offer import asked_of, offer_of_answer
        from simulator.report.write import write_plan_report

        plan = self._found(question)
        launch = launch_flags(plan.estimate.layouts, plan.scenario)
        asked = asked_of(plan)
        with self.searching, tempfile.TemporaryDirectory() as folder:
            written = write_plan_report(
                plan,
                Path(folder),
                launch=launch,
                asked=asked,
                offers=lambda: [offer_of_answer(plan, asked)],
            )
            page = next(path for path in written if path.suffix == ".html").read_bytes()
        _give_back()
        return page

    def _found(self, question: Question) -> Plan:
        plan = self.plan_of(question)
        if isinstance(plan, str):
            raise InputError(f"question: {plan}")
        return plan


def _described(answer: Plan | Prediction) -> dict[str, Any]:
    """The first layout as the page shows it: what predict's document says, and the HBM line."""
    from simulator.questions.compare.offer import asked_of, offer_of_answer
    from simulator.report.decision import verdict_sentence
    from simulator.report.wording import idle_words

    row, memory = layout_rows(answer)[0], answer.scenario.cluster.accelerator.memory
    asked = asked_of(answer)
    return {
        **row.document(),
        "sentence": verdict_sentence(offer_of_answer(answer, asked), asked),
        "words": row.described,
        "plain": plain_layout(row.layout),
        "verdict": row.memory_verdict,
        "capacity_bytes": float(memory.capacity_bytes),
        "software": answer.scenario.software.name,
        "idle": idle_words(answer.scenario),
    }


def _said(plan: Plan) -> dict[str, Any]:
    """What is said under the verdict of a search."""
    return {"margin": memory_margin(plan), "assumptions": assumption_lines(plan, brief=True)}


def _nearby(scenario: Scenario, near: dict[str, Any]) -> Prediction:
    """The pinned layout with the rest of another one, or with stated defaults."""
    follows = {"dp", "shard_group", "global_batch", "reshard_after_forward"}
    rest = {k: v for k, v in near.items() if k not in follows and k not in scenario.pinned}
    if rest:
        try:
            return predict(scenario, **rest)
        except (InputError, TypeError):
            pass
    return predict(scenario)


def _ranking(plan: Plan) -> dict[str, Any]:
    """Its best layouts and its front."""
    front = [int(i) for i in plan.pareto if i < _KEEP]
    places = sorted({*range(min(_TABLE, len(plan.estimate))), *front})
    rows = {row.rank - 1: encoded(row, _ROW) for row in layout_rows(plan, places)}
    return {"layouts": [rows[i] for i in places[:_TABLE]], "pareto": [rows[i] for i in front]}


def _give_back() -> None:
    """Return what a search has freed to the system: glibc keeps some 200 MiB of it otherwise."""
    with contextlib.suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)
