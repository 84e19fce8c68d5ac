"""``python -m workshop.ahead_of_time``: machine code of what plays schedules, made once by numba.

Every function that Python calls is called here with a small example, so that numba compiles it for
the types of its arrays, for any processor of this kind. What comes out is joined to one object
file beside ``simulator/compiled.py``, which says how it is run. No C compiler and no linker is
asked for. It holds on a newer Python and without numba; a file of another text of the sources is
left alone by the simulator.
"""

from __future__ import annotations

import ast
import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, get_type_hints

Calls = dict[str, tuple[Any, tuple[Any, ...]]]


def main() -> None:
    """Compile, and write the file; with ``--if-changed`` where it is not of this text."""
    from simulator import compiled

    if "--if-changed" in sys.argv[1:] and compiled.machine_code():
        return
    with tempfile.TemporaryDirectory() as folder:
        # before numba is imported: what it kept of this processor has no intermediate code
        os.environ |= {
            "NUMBA_CACHE_DIR": folder,
            "NUMBA_CPU_NAME": "generic",
            "NUMBA_CPU_FEATURES": "",
        }
        code, functions = object_file(calls())
    files = sources(functions)
    header = {"digest": compiled.digest(files), "files": files, "functions": functions}
    compiled.MACHINE_CODE.write_bytes(json.dumps(header).encode() + b"\n" + code)
    print(f"{compiled.MACHINE_CODE}: {len(functions)} functions, {len(code):,} bytes")


def calls() -> Calls:
    """Call every function once; each with what it was given, by name."""
    from simulator.compiled import Compiled

    noted: Calls = {}
    usual = Compiled.__call__

    def note(self: Compiled, *given: Any) -> Any:
        noted[self.name] = (self, given)
        return self.dispatcher(*given)

    Compiled.__call__ = note  # type: ignore[method-assign]
    try:
        _examples()
    finally:
        Compiled.__call__ = usual  # type: ignore[method-assign]
    return noted


def _examples() -> None:
    import numpy as np

    from simulator.cost.pipeline.longest import longest_paths
    from simulator.events.engine.demands import demands
    from simulator.events.engine.engine import longest_path
    from simulator.events.engine.engine import play as shared
    from simulator.events.engine.fair_shares import fair_rates
    from simulator.events.engine.graph import task_graph
    from simulator.events.engine.jitter import slowest_factor
    from simulator.events.network.flows import flows
    from simulator.events.network.routes import Routes
    from simulator.events.network.transfer import transfer
    from simulator.events.run.played_runs import play, room
    from simulator.events.run.run_state import Rules, packed
    from simulator.events.step.programs import program, step_graph
    from simulator.schedules.waits import waits

    costs = np.ones((1, 17, 1), dtype=np.float32)
    longest_paths(waits([("1f1b", 2, 2, 1)]), costs, costs[0, :1])
    longest_path(step_graph(program("1f1b", 2, 2), [[[1.0, 2.0, 0.0, 0.0]]] * 2).graph)
    shared(task_graph([1.0, 0.5], [0, 1]), demands([1.0, 0.5], [1.0], [(0, 0, 1.0), (1, 0, 0.2)]))
    slowest_factor(0.1, 7)
    fair_rates([10.0, 4.0], [0, 2, 3, 4], [0, 1, 0, 1])
    ways = Routes(first=np.array([0, 1, 2]), link=np.array([0, 0]), share=np.ones(2))
    transfer(flows(ways, np.array([1e9, 0.5e9])), np.array([1e9]))
    # a run that ends before it begins
    whole = {"kind", "taken", "lossless", "from_copies", "single"}
    kinds = get_type_hints(Rules).items()
    column: dict[str, Any] = {
        name: np.zeros(1, int if name in whole else float) for name, _ in kinds
    }
    rules = Rules(**column | {name: kind(0) for name, kind in kinds if kind is not Any})
    play(packed(rules), room(rules, np.zeros(1), 1), 0, np.empty(1))


def object_file(noted: Calls) -> tuple[bytes, dict[str, Any]]:
    """Join what numba made to one object file; its symbols and parameters by function.

    Raises
    ------
    SystemExit
        numba calls its functions in another way than this expects, or needs more than C's library.
    """
    import llvmlite.binding as llvm

    from simulator.compiled import flatten

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    functions, whole = {}, llvm.parse_assembly("")
    for name, (function, given) in noted.items():
        (made,) = function.dispatcher.overloads.values()
        module = llvm.parse_assembly(made.library.get_llvm_str())
        symbol: str = made.fndesc.llvm_func_name
        taken: list[Any] = []
        kinds = flatten(given, taken)
        expected = ["ptr" if isinstance(x, ctypes.c_void_p | None) else "i64" for x in taken]
        got = [str(x.type) for x in module.get_function(symbol).arguments]
        if got != ["ptr", "ptr", *expected]:
            raise SystemExit(f"{name}: numba takes {got}")
        whole.triple = module.triple
        whole.link_in(module)
        functions[name] = (symbol, kinds, _numbers(made.fndesc.restype))
    symbols = {symbol for symbol, _, _ in functions.values()}
    for part in (*whole.functions, *whole.global_variables):
        if not part.is_declaration and part.name not in symbols:
            part.linkage = "internal"
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3)
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    passes.run(whole, builder)
    library = ctypes.CDLL(None)
    outside = [x.name for x in whole.functions if x.is_declaration and x.name[:5] != "llvm."]
    if lacking := [name for name in outside if not hasattr(library, name)]:
        raise SystemExit(f"numba's code needs {', '.join(lacking)}")
    return machine.emit_object(whole), functions


def _numbers(returned: Any) -> int:
    from numba import types

    if isinstance(returned, types.NoneType):
        return 0
    if returned == types.int64:
        return 1
    if isinstance(returned, types.UniTuple) and returned.dtype == types.int64:
        return len(returned)
    raise SystemExit(f"{returned}: compiled functions return whole numbers")


def sources(functions: dict[str, Any]) -> list[str]:
    """Files of the functions' modules, and of those that compiled functions take names from."""
    from simulator.compiled import PACKAGE

    modules = [name.rpartition(".")[0] for name in functions]
    files: set[Path] = set()
    while modules:
        file = Path(sys.modules[modules.pop()].__file__ or "")
        if file in files:
            continue
        files.add(file)
        text = ast.parse(file.read_text(encoding="utf-8")).body
        compiled = [x for x in text if isinstance(x, ast.FunctionDef) and x.decorator_list]
        names = {x.id for part in compiled for x in ast.walk(part) if isinstance(x, ast.Name)}
        modules += [
            x.module
            for x in text
            if isinstance(x, ast.ImportFrom)
            and str(x.module).startswith("simulator.")
            and names & {name.asname or name.name for name in x.names}
            and x.module
        ]
    return sorted(file.relative_to(PACKAGE).as_posix() for file in files)


if __name__ == "__main__":
    main()
