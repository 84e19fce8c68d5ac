"""`--from FILE...` of plan and predict: launch scripts and trainer configurations as a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.options import check_out, print_line, writing
from simulator.cli.runner import Reply
from simulator.errors import InputError, problem

if TYPE_CHECKING:
    from simulator.cli.option_groups import ScenarioOptions
    from simulator.interop.launch_files.advising import Advice
    from simulator.interop.launch_files.imported import Imported

ScenarioFiles = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[SCENARIO]", help="Scenario file (TOML, YAML)."),
]
FromFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--from",
        metavar="FILE...",
        help="Launch script, trainer configuration, config.json, sbatch head, nvidia-smi topo -m,"
        " log, trace:"
        " what they say becomes the scenario, with the files that they name in their folders."
        " Several files may follow, and --from be repeated.",
    ),
]


def sorted_files(
    scenarios: list[Path] | None, launch: list[Path] | None
) -> tuple[Path | None, list[Path]]:
    """Tell the scenario file from launch files, which may stand where it does after ``--from``."""
    if launch:
        return None, [*launch, *(scenarios or [])]
    if scenarios and len(scenarios) > 1:
        rule = "must be one scenario file; several files of a launch go with --from"
        shown = " ".join(map(str, scenarios))
        raise InputError(problem("command line", "arguments", rule, shown))
    return (scenarios[0] if scenarios else None), []


def imported(files: list[Path], options: ScenarioOptions, *, as_json: bool) -> Imported:
    """Read launch files; what was not understood goes to the screen, or beside the document."""
    from simulator.interop.launch_files.merging import import_launch
    from simulator.questions.predict.from_files_screen import reading_lines

    found = import_launch(files, options.named, options.overrides or ())

    for line in reading_lines(found):
        print_line(line, err=as_json)
    return found


def refuse_of_search(options: Mapping[str, Any]) -> None:
    """Refuse options of the ranking and its report beside ``plan --from``, which writes neither.

    Raises
    ------
    InputError
        With every one that is given, and what does it instead.
    """
    wrong = [option for option, value in options.items() if value]
    if not wrong:
        return
    rule = "cannot be given together with --from, whose answer is about the launch at hand"
    plays = "; predict --from FILE --trace TRACE.json plays its layout"
    more = plays if "--trace" in wrong else ""
    raise InputError(f"{', '.join(wrong)}: {rule}, not a ranking of layouts{more}")


def advice(
    files: list[Path],
    options: ScenarioOptions,
    *,
    out: Path | None,
) -> Reply:
    """Answer `plan --from`: what it takes, the cheapest changes, the changed files in `out`."""
    from simulator.cli.screen import waiting
    from simulator.interop.launch_files.advising import advise
    from simulator.questions.predict.from_files_screen import advice_screen

    check_out("--out", out, folder=True)
    with waiting("reading, predicting and changing"):
        answer = advise(files, options.named, options.overrides or ())
    return Reply(
        answer,
        advice_screen,
        write=None if out is None else partial(_write, folder=out),
        feasible=answer.prediction.fits or bool(answer.changes),
    )


def _write(advice: Advice, folder: Path) -> list[str]:
    """Write the files of every change into a folder of its own."""
    from simulator.plain_files import write_files

    contents = {
        folder / f"change-{number}" / Path(path).name: text.encode()
        for number, files in enumerate(advice.changed, 1)
        for path, text in files.items()
    }
    with writing(folder, "--out"):
        write_files(contents)
    return [f"Changed files: {', '.join(map(str, contents))}"] if contents else []
