"""The Python face: `plan`, `predict`, `simulate`, `compare`, `size` from a file, keywords or both.

The command line goes through the same door (:func:`simulator.assembly.assemble`): a flag and a
keyword mean the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.assembly import SaidSoftware, Source, assemble, left_open
from simulator.economics.ownership import Use, load_page
from simulator.economics.quotes import quotes_on
from simulator.economics.rent_or_buy_cluster import rent_or_buy_cluster
from simulator.errors import InputError
from simulator.goal import CONFIDENCE
from simulator.hardware.cluster import load_cluster
from simulator.planner.prediction import Prediction
from simulator.planner.prediction import predict as predict_scenario
from simulator.units import DAY_S
from simulator.workload.recipe import Workload

if TYPE_CHECKING:
    from typing import Unpack

    from simulator.economics.ownership import Cooling, RentOrBuy
    from simulator.events.played import SimulatedStep
    from simulator.events.sharing.contended import Network
    from simulator.events.simulated_step import Deviation, Jitter
    from simulator.planner.mixed_plan import MixedPlan
    from simulator.planner.mixed_prediction import MixedPrediction
    from simulator.planner.plan import Plan
    from simulator.planner.simulated_run import SimulatedRun
    from simulator.questions.admit.answer import Admission
    from simulator.questions.calibrate.next_measurement import MeasurementPlan
    from simulator.questions.compare.answer import Comparison
    from simulator.questions.diagnose.answer import Diagnoses
    from simulator.questions.distillation.answer import Distilled
    from simulator.questions.job_schedule.answer import JobSchedule
    from simulator.questions.lint.answer import Lints
    from simulator.questions.parameter_server.answer import Served
    from simulator.questions.power.answer import PowerChoices
    from simulator.questions.rl.answer import PricedRL
    from simulator.questions.sites.answer import SeveralSites
    from simulator.questions.size.answer import Sized
    from simulator.questions.sparse.answer import Recommended
    from simulator.questions.sweep.answer import Sweep
    from simulator.questions.versus.answer import Versus
    from simulator.questions.versus.fabrics import FabricChoices
    from simulator.questions.versus.releases import ReleaseChoices
    from simulator.questions.versus.what_if import WhatIf
    from simulator.reinforcement.split_search import By
    from simulator.scenario import Scenario
    from simulator.scenario_keywords import RunKeywords, ScenarioKeywords


def _scenario(
    scenario: Source,
    fields: Mapping[str, Any],
    model: str | Workload | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: SaidSoftware = None,
    *,
    several: bool = False,
) -> Scenario:
    """Make the scenario of what every face takes: a file, names, fields, or a mixture."""
    names = {"model": model, "cluster": cluster, "gpus": gpus, "software": software}
    return assemble(scenario, names, fields, several=several)


def predict(
    scenario: Source = None,
    *,
    model: str | Workload | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: SaidSoftware = None,
    **given: Unpack[ScenarioKeywords],
) -> Prediction | MixedPrediction:
    """Predict step time, memory and cost of one layout.

    On servers of several kinds, [[cluster.groups]], its step is played on discrete events.

    Parameters
    ----------
    scenario : path or Scenario, optional
        A scenario file. Without one, `model`, `cluster` and `gpus` make a scenario.
    model : str or Workload, optional
        A model of the zoo, the path of a Hugging Face config.json, or a workload whose recipe
        stands for [training] (``Workload.from_torch``).
    cluster, software : str, optional
        Profile names or paths. ``software`` may be a mapping of the fields of [software] instead,
        "name" among them: ``software={"dispatcher": "hybridep", "overlap.expert": True}``.
    gpus : int, optional
        Accelerators of the run.
    **given
        Any field of [training], [layout] or [goal]: ``tp=4``, ``sequence_length=4096``; and
        ``run=`` and ``economics=``, mappings of the fields of [run] and [economics]:
        ``run={"set": "mature", "spares": {"hot": 2}}``, ``economics={"basis": "spot"}``.

    Raises
    ------
    InputError
        With every problem of the input, or with the reason why the layout cannot run.

    Examples
    --------
    >>> p = predict(model="llama-3.1-70b", cluster="dgx-h100", gpus=64, tp=4, pp=4, vpp=5)
    >>> p.estimate.layouts.describe(), p.defaults["sharding"]
    ('tp4 pp4 vpp5 dp4 mb1 sp zero1', 'zero1')
    """
    made = _scenario(scenario, given, model, cluster, gpus, software)
    if made.cluster.kinds:
        from simulator.planner.mixed_prediction import predict_mixed  # brings the events along

        return predict_mixed(made)
    return predict_scenario(made)


def plan(
    scenario: Source = None,
    *,
    model: str | Workload | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: SaidSoftware = None,
    keep: int = 64,
    progress: Callable[[int, int], None] | None = None,
    **given: Unpack[ScenarioKeywords],
) -> Plan | MixedPlan:
    """Search all layouts and rank them; arguments as in :func:`predict`, layout fields are pinned.

    On servers of several kinds, [[cluster.groups]], the answer is how to use them, best first:
    stages or shares of the batch placed by capability, and each kind alone.

    Raises
    ------
    InputError
        With every problem of the input.
    InfeasibleError
        If no layout can run and fit, with the nearest miss.

    Examples
    --------
    >>> best = plan(model="llama-3.1-8b", cluster="dgx-h100", gpus=8, global_batch=64)
    >>> bool(best.estimate.fits[0])
    True
    """
    from simulator.planner.batch_choices import plan_over  # a prediction needs no search

    made = _scenario(scenario, given, model, cluster, gpus, software, several=True)
    if made.cluster.kinds:
        from simulator.planner.mixed_plan import plan_mixed

        return plan_mixed(made)
    return plan_over(made, keep=keep, progress=progress)


def simulate(
    scenario: Source = None,
    *,
    model: str | Workload | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: SaidSoftware = None,
    actions: str | os.PathLike[str] | None = None,
    deviations: Sequence[Deviation] = (),
    network: Network | None = None,
    beside: Sequence[Source] = (),
    jitter: Jitter | None = None,
    **given: Unpack[ScenarioKeywords],
) -> SimulatedStep:
    """Play one step of one layout, action by action; other arguments as in :func:`predict`.

    Without any layout field it is the best that :func:`plan` finds.

    Parameters
    ----------
    actions : path, optional
        Actions of every rank, in place of the layout's schedule (``events/step/user_actions.py``).
    deviations : sequence of Deviation, optional
        Slow GPUs, weaker links, other servers, loaded experts (``simulator.Deviation``).
    network : Network, optional
        Worn or lost links, and whether traffic shares links where it meets
        (``simulator.Network``).
    beside : sequence of path or Scenario, optional
        Other jobs on other servers of the same fabric, whose traffic shares its switches.
    jitter : Jitter, optional
        How much durations vary (``simulator.Jitter``).

    Raises
    ------
    InputError
        With every problem of the input.

    Examples
    --------
    The last of four stages takes 20 % longer, and all wait for it.

    >>> from simulator import Deviation
    >>> names = dict(model="llama-3.1-8b", cluster="dgx-h100", gpus=8, tp=2, pp=4)
    >>> plain = simulate(**names, global_batch=16)
    >>> slow = simulate(**names, global_batch=16, deviations=[Deviation(stage=3, compute=1.2)])
    >>> 1.1 < slow.step_time_s / plain.step_time_s < 1.2
    True
    """
    from simulator.events.simulated_step import simulate as play  # brings the events along
    from simulator.events.step.user_actions import read_actions
    from simulator.planner.simulated import neighbour_job, predict_played

    made = _scenario(scenario, given, model, cluster, gpus, software)
    prediction = predict_played(made, search=actions is None)
    made = prediction.scenario
    return play(
        prediction.estimate.layouts,
        made.workload,
        made.cluster,
        made.software,
        deviations=deviations,
        network=network,
        jitter=jitter,
        beside=[neighbour_job(described) for described in beside],
        table=None if actions is None else read_actions(Path(actions)),
    )


def simulate_run(
    scenario: Source = None,
    *,
    seeds: int | None = None,
    first_seed: int = 0,
    incidents: str | os.PathLike[str] | None = None,
    model: str | Workload | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: SaidSoftware = None,
    **given: Unpack[ScenarioKeywords],
) -> SimulatedRun:
    """Play whole runs of one layout, with their failures; other arguments as in :func:`predict`.

    Without any layout field it is the best that :func:`plan` finds.

    Parameters
    ----------
    seeds, first_seed : int
        Runs, with numbers of their own from `first_seed` on; 1,000 unless said.
    incidents : path, optional
        A table of incidents (`date,cause`) whose rates stand in place of those of [run].

    Raises
    ------
    InputError
        With every problem of the input.
    InfeasibleError
        If the run never ends, with what would let it.

    Examples
    --------
    Servers that fail ten times as often cost a run of a month a tenth of its time.

    >>> names = dict(model="llama-3.1-8b", cluster="dgx-h100", gpus=256, tp=2, global_batch=512)
    >>> found = simulate_run(**names, tokens=2e12, seeds=20, run={"rate_factor": 10})
    >>> 0.85 < found.goodput < 0.95, len(found.to_frame("runs"))
    (True, 20)
    """
    from simulator.planner.simulated_run import simulate_run as play  # brings the events along

    log = None if incidents is None else Path(incidents)
    made = _scenario(scenario, given, model, cluster, gpus, software)
    return play(made, seeds=seeds, first_seed=first_seed, incidents=log)


def compare(
    scenario: Source = None,
    *,
    clusters: Sequence[str] | str | None = None,
    gpus: Sequence[int] | int | str | None = None,
    deadline_days: float | None = None,
    budget_usd: float | None = None,
    confidence: float = CONFIDENCE,
    prices: Mapping[str, float] | None = None,
    offers: str | Path | None = None,
    region: str | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    model: str | Workload | None = None,
    software: SaidSoftware = None,
    **given: Unpack[RunKeywords],
) -> Comparison:
    """Find the best layout on every cluster and size; other arguments as in :func:`predict`.

    Parameters
    ----------
    clusters : sequence of str, or str
        Cluster profiles, by name or path; ``"h100"`` for all with such accelerators, ``"all"``; the
        scenario's own, or those of its several kinds of servers, unless given. Servers of several
        kinds stand first, at their own size.
    gpus : int, sequence of int, or str
        Accelerators: ``512``, ``[64, 512]`` or ``"64..4096"``, which doubles; two doublings around
        the scenario's own number unless given.
    offers : path, optional
        A table of offers, each row compared at its own price; "published" is the shipped one.
    deadline_days, budget_usd, confidence, prices, region, jobs, progress
        See :func:`simulator.questions.compare.answer.compare_clusters`.

    Raises
    ------
    InputError
        With every problem of the input.

    Examples
    --------
    >>> found = compare(model="llama-3.2-1b", clusters=["dgx-h100", "dgx-a100"], gpus=[8],
    ...                 tokens=1e10, global_batch=64, micro_batch=1, pp=1)
    >>> [row.cluster for row in found.at_equal_gpus()[8]]
    ['dgx-h100', 'dgx-a100']
    """
    from simulator.questions.compare.answer import (
        compare_clusters,
        first_that_holds,
        own_clusters,
    )
    from simulator.questions.compare.gpu_counts import parse_counts

    wanted = clusters.split(",") if isinstance(clusters, str) else list(clusters or ())
    quotes, wanted = quotes_on(offers, wanted, where="arguments")
    counts = [gpus] if isinstance(gpus, int) else gpus
    lacks, first = left_open(scenario), None
    if lacks:
        text = counts if isinstance(counts, str) or counts is None else ",".join(map(str, counts))
        first = parse_counts(text, where="arguments", field="gpus")[0] if text else None
    cluster = first_that_holds(wanted, first) if "cluster" in lacks else None
    made = _scenario(scenario, given, model, cluster, first if "gpus" in lacks else None, software)
    return compare_clusters(
        made,
        wanted or own_clusters(made),
        counts,
        deadline_days=deadline_days,
        budget_usd=budget_usd,
        confidence=confidence,
        prices=prices,
        quotes=quotes,
        region=region,
        jobs=jobs,
        progress=progress,
    )


def size(
    scenario: Source = None,
    *,
    deadline_days: float | None = None,
    budget_usd: float | None = None,
    confidence: float = 0.9,
    prices: Mapping[str, float] | None = None,
    region: str | None = None,
    law: str | None = None,
    largest: int | None = None,
    jobs: int | None = None,
    model: str | Workload | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: SaidSoftware = None,
    **given: Unpack[RunKeywords],
) -> Sized:
    """Find how many accelerators a run needs; other arguments as in :func:`predict`.

    Parameters
    ----------
    deadline_days, budget_usd, confidence, prices, region, law, largest, jobs
        See :func:`simulator.questions.size.answer.size_run`.
    gpus : int, optional
        The size, where it is known: what it takes, and what the limits buy on it.

    Raises
    ------
    InputError
        With every problem of the input.

    Examples
    --------
    >>> found = size(model="llama-3.2-1b", cluster="dgx-h100", tokens=1e11, global_batch=256,
    ...              tp=1, pp=1, cp=1, micro_batch=4, deadline_days=10, largest=64, jobs=1)
    >>> found.question, found.answer.gpus
    ('fewest', 8)
    """
    from simulator.economics.scaling_law import USUAL_LAW
    from simulator.questions.size.answer import size_run

    servers = (gpus or 8) if "gpus" in left_open(scenario) else None
    return size_run(
        _scenario(scenario, given, model, cluster, servers, software),
        gpus=gpus,
        deadline_days=deadline_days,
        budget_usd=budget_usd,
        confidence=confidence,
        prices=prices,
        region=region,
        law=law or USUAL_LAW,
        largest=largest,
        jobs=jobs,
    )


def versus(
    scenario: Source = None,
    a: Mapping[str, Any] | str = "",
    b: Mapping[str, Any] | str = "",
    *,
    search: bool = True,
    model: str | Workload | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: SaidSoftware = None,
    **given: Unpack[ScenarioKeywords],
) -> Versus:
    """Compare two layouts term by term; other arguments as in :func:`predict`.

    Parameters
    ----------
    a, b : mapping or str
        Layout fields of each side: ``{"tp": 4}`` or ``"tp=4,pp=8"``.
    search : bool
        Search what neither says; otherwise take the stated defaults.

    Raises
    ------
    InputError
        With every problem of the input.
    InfeasibleError
        If nothing of a side fits.

    Examples
    --------
    >>> names = dict(model="llama-3.1-8b", cluster="dgx-h100", gpus=16, global_batch=64)
    >>> found = versus(None, {"tp": 4, "pp": 1}, {"tp": 8, "pp": 1}, search=False, **names)
    >>> found.estimate.layouts.describe(0), found.chance_a_faster > 0.9, found.tie
    ('tp4 dp4 mb1 sp zero1', True, False)
    """
    from simulator.questions.versus.answer import parse_side
    from simulator.questions.versus.answer import versus as compared

    sides = (parse_side(x, where="arguments") if isinstance(x, str) else dict(x) for x in (a, b))
    return compared(
        _scenario(scenario, given, model, cluster, gpus, software), *sides, search=search
    )


def diagnose(
    scenario: Source = None,
    *,
    log: str | os.PathLike[str] | None = None,
    trace: str | os.PathLike[str] | None = None,
    step_time_s: float | None = None,
    model: str | Workload | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: SaidSoftware = None,
    **given: Unpack[ScenarioKeywords],
) -> Diagnoses:
    """Find why a run is slower than predicted; other arguments as in :func:`predict`.

    Parameters
    ----------
    log : path, optional
        What the trainer printed.
    trace : path, optional
        A profiled step of one rank.
    step_time_s : float, optional
        The measured step, in seconds, where there is neither.

    Raises
    ------
    InputError
        With every problem of the input.

    Examples
    --------
    >>> run = dict(model="llama-3.1-8b", cluster="dgx-h100", gpus=8, global_batch=64, tp=2, pp=1)
    >>> answer = diagnose(None, step_time_s=1.02 * predict(None, **run).step_time_s, **run)
    >>> answer.nothing_wrong > answer.causes[0].probability
    True
    """
    from simulator.questions.diagnose.answer import diagnose as weighed
    from simulator.questions.diagnose.answer import read_run

    described = _scenario(scenario, given, model, cluster, gpus, software)
    if log is None and trace is None and step_time_s is None:
        raise InputError("diagnose: must be given log, trace or step_time_s")
    paths = [None if path is None else Path(path) for path in (log, trace)]
    return weighed(*read_run(described, paths[0], paths[1], step_time_s))


def admit(
    file: str | os.PathLike[str],
    *beside: str | os.PathLike[str],
    within_days: float | None = None,
    budget_usd: float | None = None,
    model: str | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: str | None = None,
    sets: Sequence[str] = (),
) -> Admission:
    """Say whether a job may start as it is asked for.

    Parameters
    ----------
    file : path
        An sbatch script, a TrainJob, PyTorchJob, Job or TrainingWorkload, a task of SkyPilot.
    beside : paths
        What its script reads.
    within_days : float, optional
        Days that it has; what its file says unless given.
    budget_usd : float, optional
        Most that it may cost.
    sets : sequence of str
        ``section.field=value``, above what the file says.

    Raises
    ------
    InputError
        With every problem of the files.
    """
    from simulator.questions.admit.answer import admit as decided

    return decided(
        Path(file),
        {"model": model, "cluster": cluster, "gpus": gpus, "software": software},
        sets,
        beside=[Path(path) for path in beside],
        limit_s=None if within_days is None else within_days * DAY_S,
        budget_usd=budget_usd,
    )


def lint(
    *files: str | os.PathLike[str],
    model: str | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: str | None = None,
    sets: Sequence[str] = (),
) -> Lints:
    """Say what a launch leaves out or sets that costs; other arguments as in :func:`admit`.

    Parameters
    ----------
    files : paths
        The launch and what it reads.

    Raises
    ------
    InputError
        With every problem of the files.
    """
    from simulator.questions.lint.answer import lint as priced

    names = {"model": model, "cluster": cluster, "gpus": gpus, "software": software}
    return priced([Path(path) for path in files], names, sets)


def measurements(
    scenario: Source = None,
    *have: str | os.PathLike[str],
    model: str | Workload | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: SaidSoftware = None,
    **given: Any,
) -> MeasurementPlan:
    """Rank measurements by how much each narrows a prediction; arguments as in :func:`predict`.

    Parameters
    ----------
    have : paths
        Documents of `foreshard measure` of this machine.

    Raises
    ------
    InputError
        With every problem of the input.
    """
    from simulator.measured.measurements import read_measurements
    from simulator.planner.simulated import predict_best
    from simulator.questions.calibrate.next_measurement import plan_measurements

    described = _scenario(scenario, given, model, cluster, gpus, software)
    return plan_measurements(
        predict_best(described), [read_measurements(Path(path)) for path in have]
    )


def releases(
    scenario: Source = None,
    *,
    search: bool = True,
    model: str | Workload | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: SaidSoftware = None,
    **given: Any,
) -> ReleaseChoices:
    """Price a run on every release of its framework; other arguments as in :func:`predict`.

    Parameters
    ----------
    search : bool
        Look for the fastest layout on each as well.

    Raises
    ------
    InputError
        With every problem of the input; if one release alone is known.
    """
    from simulator.questions.versus.releases import release_choices

    described = _scenario(scenario, given, model, cluster, gpus, software)
    return release_choices(described, search=search)


def power(
    scenario: Source = None,
    *,
    cap_kw: float,
    model: str | Workload | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: SaidSoftware = None,
    **given: Any,
) -> PowerChoices:
    """Find how to run under a cap of power; other arguments as in :func:`predict`.

    Parameters
    ----------
    cap_kw : float
        Of the hall at the meter, in kW.

    Raises
    ------
    InputError
        With every problem of the input.
    InfeasibleError
        If nothing fits, or nothing stays under the cap.
    """
    from simulator.questions.power.answer import power_choices

    return power_choices(_scenario(scenario, given, model, cluster, gpus, software), cap_kw)


def what_if(
    scenario: Source = None,
    changes: Sequence[str] = (),
    *,
    model: str | Workload | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: SaidSoftware = None,
    **given: Unpack[ScenarioKeywords],
) -> WhatIf:
    """Find the best layout before and after some changes; other arguments as in :func:`predict`.

    Parameters
    ----------
    changes : sequence of str
        ``"network.adapter=0.5"``, ``"memory=+20%"``, ``"training.global_batch=4096"``: see
        :func:`simulator.questions.versus.what_if.parse_changes`.

    Raises
    ------
    InputError
        With every problem of the input.
    InfeasibleError
        If nothing fits, before or after.

    Examples
    --------
    >>> names = dict(model="llama-3.2-1b", cluster="dgx-h100", gpus=8, global_batch=64, pp=1, cp=1)
    >>> 1.0 < what_if(None, ["matrix=0.5"], **names).ratio < 2.0
    True
    """
    from simulator.questions.versus.what_if import what_if as changed

    return changed(_scenario(scenario, given, model, cluster, gpus, software), changes)


def fabrics(
    scenario: Source = None,
    *,
    model: str | Workload | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: SaidSoftware = None,
    **given: Unpack[ScenarioKeywords],
) -> FabricChoices:
    """Price a run on candidate fabrics (`what-if --fabrics`); arguments as in :func:`predict`.

    Adapters, their rate, rails, over-subscription and fast domain; the network is paid for as
    [economics.own] says, or the accelerator's page of prices.

    Raises
    ------
    InputError
        With every problem of the input.
    InfeasibleError
        If nothing runs and fits on any.
    """
    from simulator.questions.versus.fabrics import fabric_choices

    return fabric_choices(_scenario(scenario, given, model, cluster, gpus, software))


def rent_or_buy(
    cluster: str,
    gpus: int,
    *,
    page: str | None = None,
    in_use: float = 1.0,
    goodput: float = 1.0,
    months: int = 48,
    busy: float | None = None,
    usd_per_gpu_hour: float | None = None,
    cooling: Cooling = "air",
) -> RentOrBuy:
    """Compare renting a cluster with buying it, month by month.

    Parameters
    ----------
    cluster : str
        A cluster profile, by name or path.
    page : str, optional
        A page of prices (``hardware_profiles/rent_or_buy``), by name or path; that of the
        accelerator unless given.
    in_use : float
        Share of the hours in which a job runs.
    goodput : float
        Share of a job's time that is useful.
    months : int
        How long, 1 to 240.
    busy : float, optional
        Share of a job's time in which accelerators compute; as the page says unless given.
    usd_per_gpu_hour : float, optional
        What an hour costs on demand, in place of the page's; reserved and spot are less by the
        page's discounts.
    cooling : str
        ``"air"`` or ``"liquid"``.

    Raises
    ------
    InputError
        If a name is unknown, a number makes no sense, or the accelerator has no page.
    """
    where = "arguments"
    machines = load_cluster(cluster, gpus, where=where)
    use = Use(gpus=gpus, in_use=in_use, goodput=goodput, months=months, cooling=cooling)
    chosen = None if page is None else load_page(page, where=where)
    return rent_or_buy_cluster(
        machines, use, page=chosen, busy=busy, usd_per_gpu_hour=usd_per_gpu_hour, where=where
    )


def sweep(
    grid: str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    backend: str = "dask",
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Search every point of a grid file (:func:`simulator.questions.sweep.answer.read_grid`).

    Parameters
    ----------
    folder : path, optional
        Where results are kept point by point, so that an interrupted sweep goes on.
    jobs, scheduler, backend, progress
        See :func:`simulator.questions.sweep.answer.sweep_grid`.

    Raises
    ------
    InputError
        With every problem of the file; what is wrong with a single point is said in its row.
    """
    from simulator.questions.sweep.answer import read_grid, sweep_grid

    place = None if folder is None else Path(folder)
    return sweep_grid(
        read_grid(Path(grid)),
        folder=place,
        jobs=jobs,
        scheduler=scheduler,
        backend=backend,
        progress=progress,
    )


def several_sites(scenario: Source, **given: Unpack[ScenarioKeywords]) -> SeveralSites:
    """Find what a run takes over the places of its [sites]; other arguments as in :func:`predict`.

    Raises
    ------
    InputError
        With every problem of the input.
    """
    from simulator.questions.sites.answer import several_sites as found

    return found(_scenario(scenario, given))


def distil(scenario: Source, **given: Unpack[ScenarioKeywords]) -> Distilled:
    """Find what a step takes with the teacher of [distillation]; arguments as in :func:`predict`.

    Raises
    ------
    InputError
        With every problem of the input.
    InfeasibleError
        If not even the student fits.
    """
    from simulator.questions.distillation.answer import distil as found

    return found(_scenario(scenario, given))


def rl(
    scenario: Source = None,
    *,
    model: str | Workload | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    software: SaidSoftware = None,
    by: By = "time",
    search: bool = True,
    progress: Callable[[int, int], None] | None = None,
    **given: Unpack[ScenarioKeywords],
) -> PricedRL:
    """Find what a step of [rl] takes, and the best split of its accelerators.

    Parameters
    ----------
    by : time, usd or throughput
        What the best split is best in: time or money of an update, or tokens per accelerator.
    search : bool
        Whether splits besides the scenario's own are tried.
    progress : callable, optional
        Told how many splits are done, of how many.
    **given
        As in :func:`predict`; and ``rl=``, a mapping of the fields of [rl].

    Raises
    ------
    InputError
        With every problem of the input.
    """
    from simulator.questions.rl.answer import rl as price_rl

    made = _scenario(scenario, given, model, cluster, gpus, software)
    return price_rl(made, by=by, search=search, progress=progress)


def schedule(
    jobs: str | os.PathLike[str], *, more: int | None = None, processes: int | None = None
) -> JobSchedule:
    """Find who of the jobs of a file gets which part of its cluster, and when.

    Parameters
    ----------
    more : int, optional
        Say as well what so many more accelerators of each part would bring.

    Raises
    ------
    InputError
        With every problem of the file.
    InfeasibleError
        If a job fits nowhere.
    """
    from simulator.questions.job_schedule.answer import grown, read_jobs, schedule_jobs

    answer = schedule_jobs(read_jobs(Path(jobs)), where=str(jobs), processes=processes)
    return answer if more is None else grown(answer, more, processes=processes)


def recommender(scenario: Source, **given: Unpack[ScenarioKeywords]) -> Recommended:
    """Find what a step of its [sparse] takes; other arguments as in :func:`predict`.

    Raises
    ------
    InputError, InfeasibleError
        With every problem of the input; or where tables are larger than all memory.
    """
    from simulator.questions.sparse.answer import recommender as found

    return found(_scenario(scenario, given))


def parameter_server(
    scenario: Source, *, play: bool = False, seed: int = 0, **given: Unpack[ScenarioKeywords]
) -> Served:
    """Find what a run takes with its [parameter_server]; other arguments as in :func:`predict`.

    With `play`, rounds are played on discrete events beside the closed form.

    Raises
    ------
    InputError
        With every problem of the input.
    """
    from simulator.questions.parameter_server.answer import parameter_server as found
    from simulator.questions.parameter_server.answer import with_play

    answer = found(_scenario(scenario, given))
    return with_play(answer, seed) if play else answer
