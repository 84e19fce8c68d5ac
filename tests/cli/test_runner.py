"""The runner of questions: options in, document or screen out, files, exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import BAD_INPUT, INFEASIBLE, Json
from simulator.cli.runner import Question, Reply
from simulator.errors import InputError
from simulator.questions.registry import GROUPS, QUESTIONS, load


class Answer:
    def __init__(self, words: str) -> None:
        self.words = words

    def document(self) -> dict[str, Any]:
        return {"words": self.words}


def screen(answer: Answer) -> Iterator[Any]:
    yield Text(answer.words)
    yield ""
    yield Text("x" * 300, no_wrap=True)


def answered(*, options: ScenarioOptions, number: int = 1) -> Reply:
    """Answer."""
    if number == 3:
        raise InputError(["here: wrong", "there: wrong"])
    words = f"{options.model} {number}"
    return Reply(Answer(words), screen, write=lambda _: ["Written: a"], feasible=number == 1)


def knowing(*, as_json: Json = False) -> Reply:
    """Answer, knowing how."""
    return Reply(as_json, lambda _: [], lambda shown: {"as_json": shown})


def silent() -> int:
    """Print nothing."""
    return 7


def run(ask: Any, *words: str) -> tuple[int, str, str]:
    program = typer.Typer(add_completion=False)
    program.command()(Question(name="ask", ask=ask, examples=("ask",)).command())
    result = CliRunner().invoke(program, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_a_screen_its_files_and_options_of_a_group() -> None:
    code, out, err = run(answered, "--model", "m")
    assert (code, err) == (0, "")
    assert out == f"m 1\n\n{'x' * 300}\nWritten: a\n"


def test_a_document_stands_alone_on_standard_output() -> None:
    code, out, err = run(answered, "--model", "m", "--json")
    assert (code, out, err) == (0, '{\n  "words": "m 1"\n}\n', "Written: a\n")


def test_what_is_not_feasible_is_printed_all_the_same() -> None:
    code, out, _ = run(answered, "--number", "2", "--json")
    assert (code, out) == (INFEASIBLE, '{\n  "words": "None 2"\n}\n')


def test_every_problem_of_the_input_is_named() -> None:
    code, out, err = run(answered, "--number", "3")
    assert (code, out, err) == (BAD_INPUT, "", "here: wrong\nthere: wrong\n")


def test_a_question_may_know_how_it_is_printed_or_print_for_itself() -> None:
    assert run(knowing, "--json")[1] == '{\n  "as_json": true\n}\n'
    assert run(silent) == (7, "", "")
    assert run(silent, "--json")[0] == 2


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_module_registers_the_questions_that_the_list_says(name: str) -> None:
    question = load(name)
    assert (question.name, bool(question.help)) == (name, True)
    group, _, command = name.rpartition(" ")
    assert command and group in {"", *GROUPS}
