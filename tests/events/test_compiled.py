"""Functions as Python has them, as numba compiles them and as compiled ahead: the same numbers."""

import copy
import ctypes
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
import pytest

from simulator import Jitter, Network, api, compiled
from simulator.compiled import PLAIN, PLAIN_UNCOMPILED, Compiled, flatten, short, within
from simulator.events.engine import engine, fair_shares, graph
from simulator.events.engine.engine import longest_path
from simulator.events.engine.fair_shares import fair_rates
from simulator.events.step import programs, unfold
from simulator.events.step.programs import program, step_graph
from workshop.ahead_of_time import laid_out

ROOT = Path(__file__).parents[2]


@within
def doubled(value):  # type: ignore[no-untyped-def]
    return 2.0 * value


@short
def doubles_into(values, sums):  # type: ignore[no-untyped-def]
    for value in values:
        sums[0] += doubled(value)


def doubled_sum(count: int) -> float:
    sums = np.zeros(1)
    doubles_into(np.ones(count), sums)
    return float(sums[0])


def test_little_work_runs_as_it_is_and_more_is_compiled() -> None:
    assert doubled_sum(3) == 6.0
    assert doubles_into._made is None
    assert doubled_sum(PLAIN + 1) == 2.0 * (PLAIN + 1)
    assert doubles_into._made is None  # machine code of it there is none
    assert doubled_sum(PLAIN_UNCOMPILED) == 2.0 * PLAIN_UNCOMPILED
    assert doubles_into._made is not None
    assert doubled_sum(3) == 6.0


@pytest.mark.parametrize(
    ("schedule", "pp", "vpp"), [("1f1b", 4, 1), ("interleaved", 4, 2), ("zb_v", 3, 2)]
)
def test_a_step_is_the_same_both_ways(
    schedule: str, pp: int, vpp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = program(schedule, pp, 2 * pp, vpp)
    seconds = np.random.default_rng(1).random((pp, made.chunks, 4))
    found = []
    for plain in (np.inf, 0):
        for module, name in (
            *((unfold, name) for name in ("_number", "_describe", "_fill")),
            (engine, "_sweep"),
            (graph, "_fault"),
        ):
            known = getattr(module, name).function
            monkeypatch.setattr(module, name, Compiled(known, plain))
        step = step_graph(made, seconds, 0.01)
        found.append((step.graph, step.task_of_send, longest_path(step.graph)))
    (one, sends, times), (other, other_sends, other_times) = found
    for name in ("duration_s", "stream", "first", "predecessor"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert np.array_equal(sends, other_sends)
    for name in ("start_s", "end_s", "cause"):
        assert getattr(times, name).tobytes() == getattr(other_times, name).tobytes()


@pytest.fixture(scope="module")
def ahead() -> dict[str, Any]:
    """The functions of this checkout, compiled anew where its file is of another text."""
    if not compiled.machine_code():
        subprocess.run([sys.executable, "-m", "workshop.ahead_of_time"], cwd=ROOT, check=True)
        compiled.machine_code.cache_clear()
    return compiled.machine_code()


def arrays(given: Any) -> Iterator[bytes]:
    for value in given:
        if isinstance(value, tuple):
            yield from arrays(value)
        elif isinstance(value, np.ndarray):
            columns = (
                value.dtype.names or ()
            )  # what lies between the fields of a record is nobody's
            yield from (value[x].tobytes() for x in columns) if columns else [value.tobytes()]


GPT3 = {
    **{"model": "gpt3-175b", "cluster": "dgx-a100", "tokens": 1e10},
    **{"sequence_length": 2048, "tp": 8, "micro_batch": 1},
}
STEP = {"_number", "_describe", "_fill", "_fault", "_sweep"}
QUESTIONS = {
    "a step": (
        lambda large: api.simulate(**GPT3, pp=8, gpus=128, global_batch=64, vpp=3),
        STEP,
    ),
    "tasks that vary": (
        lambda large: api.simulate(
            **GPT3, pp=8, gpus=128, global_batch=32, jitter=Jitter(spread=0.05)
        ),
        STEP | {"_newton"},
    ),
    "links that are shared": (
        lambda large: api.simulate(
            **GPT3,
            **({"pp": 8, "gpus": 128, "global_batch": 32} if large else
               {"pp": 2, "gpus": 32, "global_batch": 16}),
            network=Network(contention=True),
        ),
        STEP | {"_link", "run_events", "_mix_into", "_refine", "_run"},
    ),
    "whole runs": (
        lambda large: api.simulate_run(
            ROOT / "examples/llama-3.1-8b.toml", seeds=40 if large else 4, tp=2
        ),
        {"play"},
    ),
    "a layout": (
        lambda large: api.predict(**GPT3, pp=8, gpus=128, global_batch=96, vpp=4),
        {"_played"},
    ),
    "rates": (
        lambda large: fair_rates([10.0, 4.0, 3.0], [0, 2, 3, 4], [0, 1, 0, 1]),
        {"fill"},
    ),
}  # fmt: skip


class FieldsFirst(np.record):
    """An entry of records as compiled code sees it: `shape` is a field of it where it has one."""

    def __getattribute__(self, name: str) -> Any:
        fields = super().__getattribute__("dtype").fields
        return self[name] if name in fields else super().__getattribute__(name)


def with_fields(given: Any) -> Any:
    """Arguments for plain Python: fields of records are read as attributes."""
    if isinstance(given, tuple):
        values = map(with_fields, given)
        return type(given)(*values) if hasattr(given, "_fields") else tuple(values)
    if isinstance(given, np.ndarray) and given.dtype.names:
        return given.view(np.dtype((FieldsFirst, given.dtype)))
    return given


INSIDE = local()


def as_python_has_it(called: Compiled, given: Any) -> Any:
    """What a function and those it calls give uncompiled; hashes run over, as they do compiled."""
    INSIDE.plain = True
    try:
        with np.errstate(over="ignore"):
            return called.function(*with_fields(given))
    finally:
        INSIDE.plain = False


def as_numba_has_it(called: Compiled, given: Any) -> Any:
    return called.dispatcher(*given)


@pytest.mark.parametrize(
    "other", [as_python_has_it, pytest.param(as_numba_has_it, marks=pytest.mark.evidence)]
)
@pytest.mark.parametrize("name", QUESTIONS)
def test_machine_code_gives_the_same_bits(
    name: str,
    other: Callable[[Compiled, Any], Any],
    ahead: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every call that a command makes is made twice: with what is compiled for this processor.

    Numba, which takes most of a minute to compile all of it, is asked what is large.
    """
    seen = set()

    def both(self: Compiled, *given: Any) -> Any:
        if getattr(INSIDE, "plain", False):
            return self.function(*given)
        again, taken = copy.deepcopy(given), []  # type: ignore[var-annotated]
        machine_code = ahead[self.name]
        assert flatten(given, taken) == machine_code.takes
        answer = machine_code(taken)
        expected = other(self, again)
        assert answer == expected or (expected is None and answer == 0)
        assert list(arrays(given)) == list(arrays(again)), self.name
        seen.add(self.name.rpartition(".")[2])
        return answer

    monkeypatch.setattr(Compiled, "__call__", both)
    ask, functions = QUESTIONS[name]
    ask(other is as_numba_has_it)
    assert seen >= functions


def test_a_file_that_does_not_fit_is_left_alone(
    ahead: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rates = {"capacity": [10.0, 4.0], "first": [0, 2, 3], "link": [0, 1, 0]}
    assert ahead[fair_shares.fill.name].takes
    expected = fair_rates(**rates)
    header, _, code = compiled.MACHINE_CODE.read_bytes().partition(b"\n")
    old = json.loads(header) | {"digest": "0"}
    damaged = code[:-100] + bytes(100)
    texts = [json.dumps(old).encode() + b"\n" + code, header[:99], header + b"\n" + code[:-999]]
    for text in (b"", b"{", b"{}", *texts, header + b"\n" + damaged):
        place = tmp_path / "compiled.bin"
        place.write_bytes(text)
        monkeypatch.setattr(compiled, "MACHINE_CODE", place)
        compiled.machine_code.cache_clear()
        assert compiled.machine_code() == {}
        assert np.array_equal(fair_rates(**rates), expected)
    compiled.machine_code.cache_clear()


@pytest.mark.parametrize("micro_batches", [2, 5000])
def test_a_step_is_played_without_numba(micro_batches: int, ahead: dict[str, Any]) -> None:
    """A small one without compiled code at all; 1F1B of 3 s on two equal stages, by hand."""
    assert ahead
    script = f"""
import sys
from {programs.__name__} import program, step_graph
from {engine.__name__} import longest_path
step = step_graph(program("1f1b", 2, {micro_batches}), [[[1.0, 2.0, 0.0, 0.0]]] * 2)
print(longest_path(step.graph).makespan_s)
print("numba" in sys.modules, "llvmlite" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    by_llvm = str(micro_batches > 2 and b'"places"' not in compiled.MACHINE_CODE.read_bytes())
    assert done.stdout.split() == [str(3.0 * (micro_batches + 1)), "False", by_llvm]


TABLE = """
@table = {kind} [3 x double] [double 1.0, double 8.0, double 64.0]
declare double @log(double)
define i32 @logarithm(ptr %answer, ptr %error, i64 %row) nounwind {{
  %place = getelementptr [3 x double], ptr @table, i64 0, i64 %row
  %value = load double, ptr %place
  %natural = call double @log(double %value)
  %one = call double @log(double 2.0)
  %power = fdiv double %natural, %one
  %rounded = fadd double %power, 0.5
  %whole = fptosi double %rounded to i64
  store i64 %whole, ptr %answer
  ret i32 0
}}
"""
"""Powers of two, from a table in the code and a function of C's library."""


def object_of(text: str, model: str) -> bytes:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    made: bytes = target.create_target_machine(codemodel=model).emit_object(
        llvm.parse_assembly(text)
    )
    return made


@pytest.mark.skipif(not compiled._QUICK, reason="an object file of Linux on x86-64")
def test_code_that_is_laid_out_gives_what_llvm_loads() -> None:
    code = object_of(TABLE.format(kind="constant"), "large")
    laid = laid_out(code)
    assert laid is not None
    image, places, symbols = laid
    assert len(places["places"]) >= 1 and list(places["outside"]) == ["log"]
    begins = {"functions": {"f": (symbols["logarithm"], "i", 1)}, **places}
    loads = {"functions": {"f": ("logarithm", "i", 1)}}
    for address in (
        compiled.placed(image, begins)["f"],
        compiled.loaded(code, loads)["f"],
    ):
        run = compiled._Ahead(address, "i", 1)
        assert [run([ctypes.c_int64(row)]) for row in range(3)] == [0, 3, 6]


@pytest.mark.skipif(not compiled._QUICK, reason="an object file of Linux on x86-64")
def test_code_that_needs_a_linker_is_left_to_llvm() -> None:
    assert laid_out(object_of(TABLE.format(kind="global"), "large")) is None  # written
    assert laid_out(object_of(TABLE.format(kind="constant"), "small")) is None  # near addresses
    assert laid_out(b"\xcf\xfa\xed\xfe" + bytes(100)) is None  # of another system


def test_code_that_may_not_be_run_is_none(
    ahead: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of C's library that is not there; and memory that must not be run."""
    rates = {"capacity": [10.0, 4.0], "first": [0, 2, 3], "link": [0, 1, 0]}
    expected = fair_rates(**rates)
    for library in (object(), type("Library", (), {"mprotect": lambda *_: -1})()):
        monkeypatch.setattr(compiled.ctypes, "CDLL", lambda _, library=library: library)
        compiled.machine_code.cache_clear()
        if b'"places"' in compiled.MACHINE_CODE.read_bytes():
            assert compiled.machine_code() == {}
        assert np.array_equal(fair_rates(**rates), expected)
    monkeypatch.undo()
    compiled.machine_code.cache_clear()
