"""Tools for agents: each runs the command of its name in a process of its own.

So a tool means what the command means, says what it says (caveats, assumptions, errors), and an
agent that gives up ends the work: the process is killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from anyio import fail_after, run_process
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from simulator._version import __version__
from simulator.cli.options import INFEASIBLE
from simulator.errors import did_you_mean
from simulator.questions.registry import HELP
from simulator.quoting import option_word
from simulator.sections import fields_named

LIMIT_S = 600.0
"""Longest that one tool may take."""

WIDTH = 100
"""Columns of a screen."""

INSTRUCTIONS = """\
Foreshard predicts what training a model on a GPU cluster takes: step time, memory, days, USD, and
how sure that is. Start with `plan` (the best layout for a model, a cluster and a number of GPUs) or
`compare` (clusters against each other); `predict` is one layout term by term; `catalogue` lists the
names of models and clusters, and the fields that `fields` may set. Answers end with their caveats
and assumptions: pass them on."""

Scenario = Annotated[
    str | None, Field(description="Path of a scenario file (TOML or YAML), or its TOML text.")
]
Model = Annotated[
    str | None,
    Field(description="Model of the zoo, such as llama-3.1-70b, or path of a config.json."),
]
Cluster = Annotated[str | None, Field(description="Cluster profile, such as dgx-h100 or aws-p5.")]
Gpus = Annotated[int | None, Field(description="Accelerators of the run.")]
Fields = Annotated[
    dict[str, str | int | float | bool] | None,
    Field(
        description="Any other field of a scenario by its dotted name: {'training.tokens': '15T',"
        " 'training.global_batch': 2048, 'layout.tp': 8, 'goal.deadline_days': 240}."
    ),
]
Json = Annotated[bool, Field(description="Answer with the JSON document in place of the screen.")]


class Server(MCPServer[Any]):
    """A server that refuses arguments which a tool does not have: they would change nothing."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool by name.

        Raises
        ------
        ToolError
            With every argument that is unknown or missing, or what the tool itself raises.
        """
        if (tool := TOOLS.get(name)) is not None:
            known = signature(tool).parameters
            wrong = [_unknown(name, argument, known) for argument in arguments.keys() - known]
            wrong += [
                f"{name}: {parameter.name}: needed"
                for parameter in known.values()
                if parameter.default is Parameter.empty and parameter.name not in arguments
            ]
            if wrong:
                raise ToolError("\n".join(sorted(wrong)))
        return await super().call_tool(name, arguments, context)


def server() -> Server:
    """Make the server with its tools."""
    made = Server("foreshard", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    for name, tool in TOOLS.items():
        made.tool(description=HELP.get(name, tool.__doc__))(tool)
    return made


def _unknown(tool: str, argument: str, known: Collection[str]) -> str:
    """Say that a tool has no such argument, and where a field of that name goes."""
    words = f"{tool}: {argument}: no such argument"
    if (places := fields_named(argument)) and "fields" in known:
        return f"{words} (give it in fields, as {' or '.join(map(repr, places))})"
    return f"{words}{did_you_mean(argument, known)}"


async def plan(
    scenario: Scenario = None,
    model: Model = None,
    cluster: Cluster = None,
    gpus: Gpus = None,
    fields: Fields = None,
    json: Json = False,
) -> str:
    """Find the best layouts for a model, a cluster and a goal; layout fields are pinned."""
    said = _said(fields, model=model, cluster=cluster, gpus=gpus)
    return await _run("plan", scenario, [*said, "--no-report"], json=json)


async def predict(
    scenario: Scenario = None,
    model: Model = None,
    cluster: Cluster = None,
    gpus: Gpus = None,
    fields: Fields = None,
    json: Json = False,
) -> str:
    """Predict step time, memory and cost of one layout."""
    said = _said(fields, model=model, cluster=cluster, gpus=gpus)
    return await _run("predict", scenario, said, json=json)


async def compare(
    clusters: Annotated[
        list[str], Field(description="Cluster profiles, such as [dgx-h100, gb200-nvl72].")
    ],
    gpus: Annotated[
        str | None, Field(description="Numbers of GPUs: '64,512', or a range: '64..4096'.")
    ] = None,
    scenario: Scenario = None,
    model: Model = None,
    fields: Fields = None,
    deadline: Annotated[str | None, Field(description="Such as '90d'.")] = None,
    budget: Annotated[str | None, Field(description="Such as '5M' (USD).")] = None,
    json: Json = False,
) -> str:
    """Compare clusters and sizes for one run."""
    limits = {"gpus": gpus, "deadline": deadline, "budget": budget}
    said = _said(fields, model=model, clusters=",".join(clusters), **limits)
    return await _run("compare", scenario, said, json=json)


async def size(
    scenario: Scenario = None,
    model: Model = None,
    cluster: Cluster = None,
    fields: Fields = None,
    deadline: Annotated[str | None, Field(description="Such as '90d'.")] = None,
    budget: Annotated[str | None, Field(description="Such as '5M' (USD).")] = None,
    json: Json = False,
) -> str:
    """Find the fewest GPUs for a deadline, or the soonest end for a budget."""
    said = _said(fields, model=model, cluster=cluster, deadline=deadline, budget=budget)
    return await _run("size", scenario, said, json=json)


async def explain(
    term: Annotated[
        str, Field(description="A term of the step or a kind of memory: gemm, dp, activations.")
    ],
) -> str:
    """Explain a term of the step time or a kind of memory: formula, source, figures."""
    return await _run("explain", None, ["--", term])


async def catalogue(
    of: Annotated[str, Field(pattern="^(models|clusters|accelerators|software|fields)$")],
) -> str:
    """List names: models of the zoo, clusters, accelerators, software, or fields of a scenario."""
    words = [of] if of in ("models", "fields") else ["profiles", "list", of]
    return await _run(words[0], None, words[1:])


TOOLS: Mapping[str, Callable[..., Coroutine[Any, Any, str]]] = {
    tool.__name__: tool for tool in (plan, predict, compare, size, explain, catalogue)
}
"""Every tool by its name."""


def _said(fields: Mapping[str, Any] | None, **options: str | int | None) -> list[str]:
    """Write arguments as options of the command."""
    words = [f"--{name}={value}" for name, value in options.items() if value is not None]
    for name, value in (fields or {}).items():
        words += ["--set", f"{name}={option_word(value)}"]
    return words


@contextmanager
def _file(scenario: str | None) -> Iterator[list[str]]:
    """Give the path of a scenario; of a text, that of a file with it."""
    if scenario is None or not ("\n" in scenario.strip() or "=" in scenario):
        yield [] if scenario is None else [scenario]
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.toml"
        path.write_text(scenario)
        yield [str(path)]


async def _run(command: str, scenario: str | None, words: list[str], *, json: bool = False) -> str:
    """Run a command and return what it prints.

    Raises
    ------
    ToolError
        With its message, if the input is wrong or it takes longer than `LIMIT_S`.
    """
    environment = {**os.environ, "COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    with _file(scenario) as path:
        line = [sys.executable, "-m", "simulator", command, *["--json"] * json, *words]
        line += ["--", *path] if path else []
        try:
            with fail_after(LIMIT_S):
                done = await run_process(line, check=False, env=environment)
        except TimeoutError:
            raise ToolError(f"{command}: took longer than {LIMIT_S:.0f} s") from None
    printed, problems = done.stdout.decode(), done.stderr.decode()
    if done.returncode not in (0, INFEASIBLE):
        raise ToolError(problems.strip() or f"{command}: ended with {done.returncode}")
    return printed if printed.strip() else problems
