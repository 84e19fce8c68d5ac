"""`foreshard simulate`: one layout simulated on discrete events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.decision_options import Trace, check_trace, title
from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import (
    ScenarioFile,
    check_out,
    print_line,
    writing,
)
from simulator.cli.runner import Reply, question
from simulator.cli.screen import waiting
from simulator.errors import InputError, problem
from simulator.questions.simulate.run_command import RunOptions, whole_runs

if TYPE_CHECKING:
    from simulator.events.played import SimulatedStep

Picture = Annotated[
    Path | None,
    typer.Option(
        "--picture",
        metavar="FILE",
        help="Draw who does what when, a row per rank: .png or .svg.",
    ),
]
Actions = Annotated[
    Path | None,
    typer.Option(
        "--actions",
        metavar="FILE",
        help="Actions of every rank (.csv as torch.distributed.pipelining writes it, .toml or"
        " .json) in place of the layout's schedule.",
    ),
]
WriteActions = Annotated[
    Path | None,
    typer.Option(
        "--write-actions",
        metavar="FILE.csv",
        help="Write what the layout's schedule has every rank do, as a table to change and give"
        " back by --actions.",
    ),
]
Deviations = Annotated[
    list[str] | None,
    typer.Option(
        "--deviation",
        metavar="FIELD=VALUE,...",
        help="What is not like the rest: stage, replica (none: all of them); compute (1.2: takes"
        " 20 % longer), scale_up, scale_out (share of its links that is left), expert_load,"
        " cluster. May be repeated.",
    ),
]
Worn = Annotated[
    list[str] | None,
    typer.Option(
        "--worn",
        metavar="LINK=SHARE",
        help="What is left of a link, 0 for a lost one, which traffic goes around:"
        " 'adapter-up 3.1=0.5' is half of what adapter 1 of server 3 sends. May be repeated.",
    ),
]
Contention = Annotated[
    bool,
    typer.Option(
        "--contention",
        help="Let traffic share links where it meets: groups those between switches, by where they"
        " really run; kinds (reductions, sends, experts' tokens, copies) every link they cross."
        " Calls slow the compute beside them when they run.",
    ),
]


Beside = Annotated[
    list[Path] | None,
    typer.Option(
        "--beside",
        metavar="SCENARIO",
        help="Another job on other servers of the same fabric, alternating with those of this one:"
        " its traffic takes its share of the switches. Brings --contention. May be repeated.",
    ),
]
Spread = Annotated[
    float | None,
    typer.Option(
        "--jitter",
        metavar="SIGMA",
        help="Let durations vary: standard deviation of the logarithm of a pass on one GPU, of a"
        " send or collective of one group (0.02: 2 %).",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        help="What --jitter draws from, 0 if not given; the same seed gives the same step.",
    ),
]


Run = Annotated[
    bool,
    typer.Option(
        "--run",
        help="Play whole runs, weeks and months with their failures (\\[run] of the scenario), and"
        " not one step.",
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="N",
        help="Runs that --run plays, 1,000 if not given.",
    ),
]
IncidentLog = Annotated[
    Path | None,
    typer.Option(
        "--incidents",
        metavar="FILE.csv",
        help="With --run: rates of your own, fitted to a table of incidents on as many machines"
        " (columns date and cause).",
    ),
]


@question(
    "simulate",
    "simulate run.toml --deviation stage=3,replica=1,compute=1.2 --picture step.png",
    "simulate run.toml --trace step.json.gz",
    "simulate run.toml --run --seeds 200",
)
def ask(
    *,
    scenario: ScenarioFile = None,
    options: ScenarioOptions,
    actions: Actions = None,
    write_actions: WriteActions = None,
    deviation: Deviations = None,
    worn: Worn = None,
    contention: Contention = False,
    beside: Beside = None,
    jitter: Spread = None,
    seed: Seed = None,
    trace: Trace = None,
    picture: Picture = None,
    run: Run = False,
    seeds: Seeds = None,
    incidents: IncidentLog = None,
) -> Reply:
    r"""Play one training step of one layout, action by action.

    The layout is what the layout section says; without one, the best that plan finds.

    Says what the analytical model of `predict` cannot: who waits for whom, what paces the step,
    when memory is fullest; and what slow GPUs, loaded experts, shared links, durations that vary,
    servers of several kinds ([[cluster.groups]]) or a schedule of your own make of it.
    """
    from simulator.planner.simulated import neighbour_job, predict_played

    described = options.scenario(scenario)
    check_trace(trace)
    _check_ending("--picture", picture, ".png", ".svg")
    of_run = RunOptions(seeds=seeds, seed=seed, incidents=incidents)
    if reply := whole_runs(described, run, of_run, _of_step(locals()), picture):
        return reply
    _check_ending("--write-actions", write_actions, ".csv")
    _check_table(actions, write_actions)
    _check_seed(jitter, seed)
    with waiting("finding the layout"):
        prediction = predict_played(described, search=actions is None)
    row, given = prediction.estimate.layouts, prediction.scenario

    from simulator.events.deviations.deviation_options import (
        parse_deviations,
        parse_link_degradation,
    )
    from simulator.events.sharing.contended import Network
    from simulator.events.simulated_step import Jitter, simulate
    from simulator.events.step.user_actions import layout_actions, read_actions
    from simulator.questions.simulate.answer import StepAndPrediction
    from simulator.questions.simulate.screen import screen

    links = Network(
        link_degradation=parse_link_degradation(worn or (), "--worn"), contention=contention
    )
    uneven = None if jitter is None else Jitter(spread=jitter, seed=seed or 0)
    of_user = None if actions is None else read_actions(actions)
    parts = (row, given.workload, given.cluster, given.software)
    disturbed = any((deviation, worn, contention, beside, jitter is not None))
    with waiting("simulating"):
        step = simulate(
            *parts,
            table=of_user,
            deviations=parse_deviations(deviation or (), given.cluster.gpus, "--deviation"),
            network=links if worn or contention else None,
            jitter=uneven,
            beside=[neighbour_job(path) for path in beside or ()],
        )
        # What a disturbance costs shows beside the same step played without it.
        plain = simulate(*parts, table=of_user).step_time_s if disturbed else None
    table = None if write_actions is None else (write_actions, layout_actions(row))
    _write(step, trace, picture, title(given, prediction.estimate), table)
    return Reply(
        StepAndPrediction(prediction=prediction, step=step, undisturbed_s=plain),
        lambda _: screen(prediction, step, undisturbed_s=plain),
    )


def _of_step(given: dict[str, Any]) -> dict[str, Any]:
    """Options that only one step has, as they were given."""
    names = ("actions", "write_actions", "deviation", "worn", "trace", "contention", "beside")
    return {f"--{name.replace('_', '-')}": given[name] for name in (*names, "jitter")}


def _check_ending(option: str, path: Path | None, *endings: str) -> None:
    if path is not None and (path.suffix not in endings or path.is_dir()):
        rule = f"must be a file that ends in {' or '.join(endings)}"
        raise InputError(problem("arguments", option, rule, str(path)))
    check_out(option, path)


def _check_table(actions: Path | None, write_actions: Path | None) -> None:
    if actions is not None and write_actions is not None:
        rule = "must come without --actions: it writes the layout's own schedule"
        raise InputError(problem("arguments", "--write-actions", rule, str(write_actions)))


def _check_seed(jitter: float | None, seed: int | None) -> None:
    if seed is not None and jitter is None:
        raise InputError(problem("arguments", "--seed", "must come with --jitter", seed))


def _write(
    step: SimulatedStep,
    trace: Path | None,
    picture: Path | None,
    about: str,
    table: tuple[Path, str] | None,
) -> None:
    """Write what was asked for, all of it or nothing."""
    contents: dict[Path, bytes] = {}
    with waiting("writing"):
        if trace is not None:
            from simulator.interop.traces.perfetto import trace_bytes

            packed = trace.name.endswith(".gz")
            contents[trace] = trace_bytes(step, gzipped=packed, title=about)
        if picture is not None:
            from simulator.report.canvas import file_bytes
            from simulator.report.pipeline_picture import pipeline_picture

            drawn = pipeline_picture(step, title=about)
            contents[picture] = file_bytes(drawn, picture.suffix)
        if table is not None:
            contents[table[0]] = table[1].encode()
        if not contents:
            return
        from simulator.plain_files import write_files

        with writing(", ".join(map(str, contents))):
            write_files(contents)
    named = (("Trace", trace), ("Picture", picture), ("Actions", table and table[0]))
    for word, path in named:
        if path is not None:
            print_line(f"{word}: {path}", err=True)
