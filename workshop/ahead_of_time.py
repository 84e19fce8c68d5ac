"""``python -m workshop.ahead_of_time``: machine code of what plays schedules, made once by numba.

Every function that Python calls is called here with a small example, so that numba compiles it for
the types of its arrays, for any processor of this kind. What comes out is joined to one object
file, laid out as it is run where that takes addresses alone (ELF of x86-64), beside
``simulator/compiled.py``, which says how it is run. No C compiler and no linker is asked for. It
holds on a newer Python and without numba; a file of another text of the sources is left alone by
the simulator.
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
    if (laid := laid_out(code)) is not None:
        code, places, symbols = laid
        begins = {x: (symbols[symbol], *more) for x, (symbol, *more) in functions.items()}
        header |= {"functions": begins} | places
    header["code"] = compiled.digest_of(code)
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


_ELF, _X86_64 = b"\x7fELF\x02\x01", 62
_HEADER = {"machine": (18, 20), "sections": (40, 48), "count": (60, 62)}
_SECTION = (
    "name <u4,kind <u4,flags <u8,address <u8,at <u8,size <u8,link <u4,of <u4,align <u8,each <u8"
)
_SYMBOL = "name <u4,kind <u2,section <u2,value <u8,size <u8"
_PLACE = "at <u8,kind <u4,symbol <u4,added <i8"
_CONTENT, _SYMBOLS, _PLACES = 1, 2, 4
_WRITABLE, _IN_MEMORY = 1, 2
_ADDRESS = 1


def laid_out(code: bytes) -> tuple[bytes, dict[str, Any], dict[str, int]] | None:
    """Lay an object file of x86-64 out as it is run, counted from where it begins.

    The code, where in it addresses stand (its own, and those of functions outside by name), and
    where its symbols are. None where it is another file, or needs more of a linker than that: data
    that is written, places for other than 64-bit addresses (System V ABI, AMD64, 4.4).
    """
    header = {name: int.from_bytes(code[slice(*at)], "little") for name, at in _HEADER.items()}
    if not code.startswith(_ELF) or header["machine"] != _X86_64:
        return None
    sections = _rows(code[header["sections"] :], _SECTION)[: header["count"]]
    image, begins = bytearray(), dict[int, int]()
    for i, part in enumerate(sections):
        if part["flags"] & _IN_MEMORY and part["size"]:
            if part["kind"] != _CONTENT or part["flags"] & _WRITABLE:
                return None
            image += bytes(-len(image) % int(part["align"]))
            begins[i] = len(image)
            image += _content(code, part)
    (table,) = sections[sections["kind"] == _SYMBOLS]
    texts, symbols = _content(code, sections[table["link"]]), _rows(_content(code, table), _SYMBOL)
    names = [texts[start:].partition(b"\0")[0].decode() for start in symbols["name"].tolist()]
    where = [begins.get(x["section"], -len(image)) + int(x["value"]) for x in symbols]
    inside, outside = list[int](), dict[str, list[int]]()
    for section in sections[sections["kind"] == _PLACES]:
        for place in _rows(_content(code, section), _PLACE):
            symbol, at = int(place["symbol"]), begins[section["of"]] + int(place["at"])
            added, undefined = int(place["added"]), symbols[symbol]["section"] == 0
            if place["kind"] != _ADDRESS or (added if undefined else where[symbol] < 0):
                return None
            if undefined:
                outside.setdefault(names[symbol], []).append(at)
            else:
                inside.append(at)
                image[at : at + 8] = (where[symbol] + added).to_bytes(8, "little")
    places = {"places": inside, "outside": outside}
    return bytes(image), places, dict(zip(names, where, strict=True))


def _content(code: bytes, section: Any) -> bytes:
    return code[section["at"] : section["at"] + section["size"]]


def _rows(table: bytes, fields: str) -> Any:
    """Entries of a table of the file, as many as are whole."""
    import numpy as np

    kind = np.dtype([tuple(field.split()) for field in fields.split(",")])
    return np.frombuffer(table, kind, len(table) // kind.itemsize)


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
