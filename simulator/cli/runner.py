"""One runner for every question: options in, a document or a screen out, files, exit code.

A question is a function under :func:`question`: its parameters are the options, its docstring is
the help, and it returns a :class:`Reply`. Errors, ``--json`` and exit codes are the runner's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, Signature, getdoc, signature
from typing import Any, TypeVar, get_type_hints

import typer

from simulator.cli.option_groups import with_option_groups
from simulator.cli.options import (
    INFEASIBLE,
    Json,
    errors_as_exit_codes,
    print_json,
    print_line,
)
from simulator.records import dataclass


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and what is made of it where it is printed."""

    answer: Any
    screen: Callable[[Any], Iterable[Any]]
    """Makes texts, tables and notes of the answer, in their order."""
    document: Callable[[Any], Mapping[str, Any]] | None = None
    """Makes what ``--json`` prints; the answer's own document unless given."""
    write: Callable[[Any], Iterable[str]] | None = None
    """Writes files once the answer is printed; gives lines that say where they are."""
    feasible: bool = True
    """Whether something fits and meets what is asked; the exit code is 1 otherwise."""
    code: int | None = None
    """Exit code of a question that has codes of its own."""


_Ask = TypeVar("_Ask", bound=Callable[..., Reply | int | None])


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A command: what it is called, the function that answers, lines that show its use."""

    name: str
    """As it is typed; of two words the first is its group."""
    ask: Callable[..., Reply | int | None]
    """Takes the options; gives an exit code or None where it prints for itself."""
    examples: tuple[str, ...]
    """Without the program's name; tests hold the parser to them."""

    @property
    def help(self) -> str:
        """What it does, in paragraphs."""
        return getdoc(self.ask) or ""

    @property
    def epilog(self) -> str:
        """What stands under the help."""
        lines = [f"foreshard {line}" for line in self.examples]
        return "\n\n".join([f"Example{'s' if len(lines) > 1 else ''}:", *lines])

    def command(self) -> Callable[..., None]:
        """Make what typer reads the options of and calls."""
        ask = with_option_groups(self.ask)
        parameters = list(signature(ask).parameters.values())
        knows_json = "as_json" in signature(ask).parameters
        if not knows_json and get_type_hints(self.ask)["return"] is Reply:
            shape = Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)
            parameters.append(shape)

        def command(**options: Any) -> None:
            as_json = options.get("as_json", False)
            if not knows_json:
                options.pop("as_json", None)
            with errors_as_exit_codes():
                reply = ask(**options)
                code = print_answer(reply, as_json=as_json) if isinstance(reply, Reply) else reply
            if code:
                raise typer.Exit(code)

        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {shape.name: shape.annotation for shape in parameters}
        return command


registered: dict[str, Question] = {}
"""Questions whose modules are loaded, by name."""


def question(name: str, *examples: str) -> Callable[[_Ask], _Ask]:
    """Register the function below as the answer to a question, with lines that show its use."""

    def register(ask: _Ask) -> _Ask:
        registered[name] = Question(name=name, ask=ask, examples=examples)
        return ask

    return register


def print_answer(reply: Reply, *, as_json: bool) -> int:
    """Print an answer as a document or a screen, write its files, return the exit code."""
    if as_json:
        make = reply.document or (lambda answer: answer.document())
        print_json(make(reply.answer))
    else:
        from simulator.cli.screen import print_screen

        print_screen(reply.screen(reply.answer))
    for line in reply.write(reply.answer) if reply.write else ():
        print_line(line, err=as_json)
    if reply.code is not None:
        return reply.code
    return 0 if reply.feasible else INFEASIBLE
