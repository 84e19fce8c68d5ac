"""Functions that run compiled: ahead of time where that was done, else by numba when first called.

``python -m workshop.ahead_of_time`` has numba compile them for any processor of this kind and keeps
the machine code in a file beside this one, which the wheel holds. On Linux it lies there as it is
run, but for addresses (2 ms); elsewhere LLVM loads it, in a tenth of the time of numba. Without the
file, with another text of the functions than it was made from, or with arrays of other types, numba
compiles as it is called, which takes seconds once, or another function does the same. Little work
runs as Python has it: all of these give the same numbers.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import sysconfig
from collections.abc import Callable, Iterable
from functools import cache, update_wrapper
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

_QUICK = sysconfig.get_platform() == "linux-x86_64"
"""Whether machine code is there after 1 ms: elsewhere LLVM takes 50, and 50 MiB."""

PLAIN = 1_000 if _QUICK else 20_000
"""Numbers in arrays up to which a `short` function runs as it is: as much plain Python at most as
it takes to load the machine code, 1 ms or 0.03 s."""

PLAIN_UNCOMPILED = 60_000
"""The same where numba would have to be loaded: 0.1 s, where it takes half a second or more."""

PLAIN_ARRAYS = 100_000 if _QUICK else 3_000_000
"""Numbers, of all its calls together, up to which a function with a twin in arrays runs as that
twin where no machine code is loaded: what so many take is what loading takes. Once it is loaded,
machine code takes less however few they are."""

PACKAGE = Path(__file__).resolve().parent
MACHINE_CODE = Path(__file__).with_name(f"compiled-{sysconfig.get_platform()}.bin")
"""A line of JSON, then an object file, or what a linker would make of it."""

_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
"""Of ``njit``. Seeds run on threads. Without reference counts: numba raises and lowers an atomic
count of every array that it hands to a function, which took two thirds of the time of an event. A
function that allocates does not compile so (numba's ``core/extending.py`` shows the option)."""

_loading = Lock()


class Compiled:
    """A function as Python has it, as machine code, and as numba has it once that is asked for.

    Functions that numba compiles may call it: it looks to them like what ``njit`` returns.

    Parameters
    ----------
    function : callable
        It makes no arrays: whoever calls it hands in those that it fills.
    plain : float
        Called from Python with arrays of no more numbers in all, the function runs as it is.
    instead : callable, optional
        What does the same from arrays, there and where nothing was compiled ahead.
    numbers : callable, optional
        How many numbers that goes through, where it is more than those given.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        plain: float,
        instead: Callable[..., Any] | None = None,
        numbers: Callable[..., int] | None = None,
    ) -> None:
        self.function, self._instead, self._numbers = function, instead, numbers
        self._plain, self._made = plain, None
        self._unloaded = 0.0
        update_wrapper(self, function)

    def __call__(self, *given: Any) -> Any:
        """Run it, compiled or not."""
        numbers = (self._numbers or _numbers)(*given) if self._plain else np.inf
        if self._instead is not None:
            self._unloaded += numbers  # of all calls together
            numbers = np.inf if machine_code.cache_info().currsize else self._unloaded
        if numbers <= self._plain:
            return (self._instead or self.function)(*given)
        ahead = machine_code().get(self.name)
        if ahead is not None:
            taken: list[Any] = []
            if flatten(given, taken) == ahead.takes:
                return ahead(taken)
        elif self._instead is None and self._made is None and numbers <= PLAIN_UNCOMPILED:
            return self.function(*given)
        return (self._instead or self.dispatcher)(*given)

    @property
    def name(self) -> str:
        """The function's module and name."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def dispatcher(self) -> Any:
        """What ``njit`` makes of it."""
        if self._made is None:
            with _loading:
                if self._made is None:
                    from numba import njit

                    self._made = njit(**_OPTIONS)(self.function)
        return self._made

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher._numba_type_


def compiled(function: Callable[..., Any]) -> Any:
    """Run a function compiled, always."""
    return Compiled(function, 0)


def short(function: Callable[..., Any]) -> Any:
    """Run a function compiled for large arrays alone: it gives the same numbers in plain Python."""
    return Compiled(function, PLAIN)


def compiled_or(
    instead: Callable[..., Any], numbers: Callable[..., int]
) -> Callable[[Callable[..., Any]], Any]:
    """Run a function compiled ahead for much, else another that gives the same from arrays.

    How much it is, `numbers` says.
    """
    return lambda function: Compiled(function, PLAIN_ARRAYS, instead, numbers)


def within(function: Callable[..., Any]) -> Any:
    """A part of `short` functions: runs as it is where they do."""
    return Compiled(function, np.inf)


def _numbers(*given: Any) -> int:
    return sum(_numbers(*x) if isinstance(x, tuple) else np.size(x) for x in given)


class _Ahead:
    """A function in machine code, called as numba's own code calls it.

    Its parameters are two addresses, where the answer goes and where an error is noted; then those
    given, tuples field by field, and of an array its owners, sizes, address, shape and strides.
    """

    def __init__(self, address: int, takes: str, gives: int) -> None:
        self.takes, self.gives = takes, gives
        self._run = ctypes.CFUNCTYPE(ctypes.c_int)(address)

    def __call__(self, taken: list[Any]) -> Any:
        answer, error = (ctypes.c_int64 * max(self.gives, 1))(), ctypes.c_void_p()
        status = self._run(ctypes.byref(answer), ctypes.byref(error), *taken)
        if status not in (0, -2):  # -2: it returns nothing
            raise ArithmeticError(f"status {status} of compiled code")
        return tuple(answer) if self.gives > 1 else answer[0]


def flatten(given: Iterable[Any], taken: list[Any]) -> str:
    """Add the parameters that machine code takes; return what kinds they are."""
    kinds = []
    for value in given:
        if isinstance(value, tuple):
            kinds.append(f"{fields_of(type(value))}({flatten(value, taken)})")
        elif isinstance(value, np.ndarray):
            memory, flags = value.__array_interface__, value.flags
            taken += (None, None, *map(ctypes.c_int64, (value.size, value.itemsize)))
            taken.append(ctypes.c_void_p(memory["data"][0]))
            taken += map(ctypes.c_int64, value.shape + value.strides)
            usual = flags.c_contiguous and flags.aligned and flags.writeable
            kinds.append(f"{kind_of(value.dtype)}{value.ndim if usual else '?'}")
        elif isinstance(value, int):
            taken.append(ctypes.c_int64(value))
            kinds.append("i")
        else:
            kinds.append("?")
    return ",".join(kinds)


@cache
def fields_of(kind: type[tuple[Any, ...]]) -> str:
    """Names of a tuple's fields, whose order machine code relies on."""
    return " ".join(getattr(kind, "_fields", ()))


@cache
def kind_of(dtype: np.dtype[Any]) -> str:
    """Name a type of entries, and the fields of a record."""
    return dtype.str if dtype.names is None else f"{dtype.descr}/{dtype.itemsize}"


def digest(files: Iterable[str]) -> str:
    """What the sources of compiled code are, files of the package."""
    whole = sha256()
    for file in files:
        whole.update((PACKAGE / file).read_bytes())
    return whole.hexdigest()


def digest_of(code: bytes) -> str:
    """What machine code is, so that none is run of a file that was cut off or damaged."""
    return sha256(code).hexdigest()


@cache
def machine_code() -> dict[str, _Ahead]:
    """Every function that was compiled ahead, by name; none where that does not fit."""
    try:
        line, _, code = MACHINE_CODE.read_bytes().partition(b"\n")
        header = json.loads(line)
        if header["digest"] != digest(header["files"]) or header["code"] != digest_of(code):
            return {}
        load = placed if "places" in header else loaded
        addresses = load(code, header)
        taken = header["functions"].items()
        return {x: _Ahead(addresses[x], takes, gives) for x, (_, takes, gives) in taken}
    except (OSError, ValueError, KeyError, ImportError, AttributeError, RuntimeError):
        return {}


_owners: list[Any] = []
"""Who owns the memory that machine code lies in."""


def placed(code: bytes, header: dict[str, Any]) -> dict[str, int]:
    """Place code that lies as it is run; addresses by function.

    `header` says where each function begins, and where in the code addresses stand: its own, which
    count from its beginning, and those of functions of C's library, by name.
    """
    library = ctypes.CDLL(None)
    memory = mmap.mmap(-1, len(code), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory[:] = code
    for place in header["places"]:
        inside = int.from_bytes(code[place : place + 8], "little")
        memory[place : place + 8] = (start + inside).to_bytes(8, "little")
    for name, places in header["outside"].items():
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        for place in places:
            memory[place : place + 8] = address.to_bytes(8, "little")
    rights = mmap.PROT_READ | mmap.PROT_EXEC
    if library.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(len(code)), rights):
        raise OSError("memory must not be run")
    _owners.append(memory)
    return {name: start + begins for name, (begins, _, _) in header["functions"].items()}


def loaded(code: bytes, header: dict[str, Any]) -> dict[str, int]:
    """Load an object file; `header` says the symbol of each function. Addresses by function."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _owners.append(engine)
    symbols = header["functions"].items()
    return {name: engine.get_function_address(symbol) for name, (symbol, _, _) in symbols}
