"""What a Python script puts together by calls and assignments: worked out from its text, never run.

A call of what is not known makes a :class:`Made` of its keywords, ``recipe.trainer.devices = 4``
sets a field of one; functions of the script are followed with the arguments that they are given,
branches by their test where it is known. What cannot be worked out is :data:`UNKNOWN`, and where
that decides what is read the script's notes say so. Work is bounded: a script that loops or calls
itself ends as an error of input.
"""

from __future__ import annotations

import ast
import operator
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import field
from typing import Any

from simulator.errors import InputError
from simulator.records import dataclass

_LARGEST = 2**18
_MOST_STEPS = 50_000
_DEEPEST = 32
_MOST_ITEMS = 1024
_MOST_LETTERS = 1000
_MOST = 10**18


class _Unknown:
    """The one value that cannot be worked out."""

    def __repr__(self) -> str:
        return "$(...)"


UNKNOWN = _Unknown()


@dataclass(frozen=True, slots=True)
class Name:
    """A thing of another package, by its dotted name."""

    dotted: str

    @property
    def last(self) -> str:
        """Its own name."""
        return self.dotted.rpartition(".")[2]


@dataclass
class Made:
    """What a call of a class that is not known here makes: its keywords, and what is set later."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    source: str = ""
    """Where its fields come from, but for those that have a line."""

    def set(self, name: str, value: Any, line: int) -> None:
        """Set a field."""
        self.fields[name] = value
        self.lines[name] = line

    @property
    def is_answer(self) -> bool:
        """Whether it is what a function gives, ``device_count()``: not known here."""
        return self.kind[:1].islower() and all(name.isdigit() for name in self.fields)


@dataclass
class Function:
    """A function of the script, with arguments that ``partial`` has bound."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    names: MutableMapping[str, Any]
    bound: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Partial:
    """A function of another package with arguments bound."""

    name: Name
    bound: dict[str, Any]


class _Left(Exception):
    """A statement that ends what is followed."""


class _Returned(_Left):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Broken(_Left):
    pass


class _Continued(_Left):
    pass


Known = Callable[[str, list[Any], dict[str, Any], int], Any]
"""Value of a call by the dotted name, arguments, keywords and line; None: not known there."""

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_NOT_FOLLOWED = "a statement that is not followed: passed over"
_PLAIN = (int, float, str, bool, type(None))
_SWITCHES: dict[Any, bool] = {"store_true": False, "store_false": True}
_CHANGES = (
    *("append", "extend", "insert", "pop", "remove", "clear", "update", "setdefault", "broadcast"),
    *("sort", "reverse", "popitem"),
)
_OF_TEXT = {"lower": 0, "upper": 0, "strip": 0, "split": 1, "replace": 2,
            "startswith": 1, "endswith": 1}  # fmt: skip
"""Methods of texts that are worked out, and how many arguments each is given."""


class Script:
    """A script whose statements are followed in order."""

    def __init__(self, text: str, path: str, known: Known, main: bool = True) -> None:
        """Follow a script; `known` answers for calls of other packages."""
        if len(text) > _LARGEST:
            raise InputError(f"{path}: larger than {_LARGEST // 2**10} KiB, got {len(text)}")
        self.path, self.known = path, known
        self.names: dict[str, Any] = {"__name__": "__main__" if main else "module"}
        self.calls: list[tuple[str, list[Any], dict[str, Any], int]] = []
        """Calls of other packages that were reached, in order."""
        self.notes: dict[tuple[int, str], None] = {}
        """Lines whose bearing is not known here, and what was made of them."""
        self._steps = 0
        self._depth = 0
        try:
            tree = ast.parse(text)
            self._block(tree.body, self.names)
        except _Left:
            pass
        except InputError:
            raise
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InputError(f"{path}: no Python that can be read: {str(error)[:120]}") from None

    # --- statements -------------------------------------------------------------------------------

    def _step(self, node: ast.AST) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            line = getattr(node, "lineno", 0)
            raise InputError(f"{self.path}: line {line}: too much to work out in one script")

    def _note(self, node: ast.AST, what: str) -> None:
        self.notes[getattr(node, "lineno", 0), what] = None

    def _block(self, body: list[ast.stmt], names: MutableMapping[str, Any]) -> None:
        for statement in body:
            self._step(statement)
            self._statement(statement, names)

    def _statement(self, node: ast.stmt, names: MutableMapping[str, Any]) -> None:
        if isinstance(node, ast.Assign):
            value = self.value(node.value, names)
            for target in node.targets:
                self._assign(target, value, names)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, self.value(node.value, names), names)
        elif isinstance(node, ast.AugAssign):
            shown = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
            self._assign(node.target, self.value(shown, names), names)
        elif isinstance(node, ast.Expr):
            if isinstance(node.value, (ast.ListComp, ast.SetComp, ast.DictComp, ast.NamedExpr)):
                self._note(node, _NOT_FOLLOWED)
            self.value(node.value, names)
        elif isinstance(node, ast.Return):
            raise _Returned(None if node.value is None else self.value(node.value, names))
        elif isinstance(node, ast.If):
            self._branch(node, names)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node, names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names[node.name] = Function(node, names)
        elif isinstance(node, ast.ClassDef):
            names[node.name] = self._class(node, names)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                value = self.value(item.context_expr, names)
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, value, names)
            self._block(node.body, names)
        elif isinstance(node, ast.Try):
            self._block([*node.body, *node.orelse, *node.finalbody], names)
        elif isinstance(node, (ast.For, ast.While)):
            self._loop(node, names)
        elif isinstance(node, ast.Break):
            raise _Broken
        elif isinstance(node, ast.Continue):
            raise _Continued
        elif isinstance(node, (ast.Match, ast.Delete, ast.AsyncFor, ast.TryStar)):
            self._note(node, _NOT_FOLLOWED)

    def _branch(self, node: ast.If, names: MutableMapping[str, Any]) -> None:
        test = _truth(self.value(node.test, names))
        if test is not None:
            self._block(node.body if test else node.orelse, names)
            return
        self._note(node, "what decides here is not known: both ways were read, one after the other")
        ended = list[_Left]()
        for body in (node.body, node.orelse):
            try:
                self._block(body, names)
            except _Left as end:
                ended.append(end)
        if len(ended) > 1:  # one way alone does not end what is followed
            raise ended[0]

    def _loop(self, node: ast.For | ast.While, names: MutableMapping[str, Any]) -> None:
        """A body for each of a list that is known, else once with what is not known."""
        items: Any = self.value(node.iter, names) if isinstance(node, ast.For) else UNKNOWN
        if not isinstance(items, list):
            self._note(node, "how often this runs, and on what, is not known: read once")
        for item in list(items) if isinstance(items, list) else [UNKNOWN]:
            if isinstance(node, ast.For):
                self._assign(node.target, item, names)
            try:
                self._block(node.body, names)
            except _Broken:
                return
            except _Continued:
                continue
        self._block(node.orelse, names)

    def _import(self, node: ast.Import | ast.ImportFrom, names: MutableMapping[str, Any]) -> None:
        for item in node.names:
            if isinstance(node, ast.ImportFrom):
                dotted = f"{node.module}.{item.name}" if node.module else item.name
                names[item.asname or item.name] = Name(dotted)
            elif item.asname:
                names[item.asname] = Name(item.name)
            else:
                first = item.name.partition(".")[0]
                names[first] = Name(first)

    def _class(self, node: ast.ClassDef, names: MutableMapping[str, Any]) -> Made:
        """A class of the script: what its body gives its fields, over those of its bases."""
        made = Made("class", {"name": node.name})
        for base in node.bases:
            above = self.value(base, names)
            if isinstance(above, Made):
                made.fields |= {**above.fields, "name": node.name}
            elif isinstance(above, Name):
                made.fields["base"] = above.last
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value:
                made.set(item.target.id, self.value(item.value, names), item.lineno)
        return made

    def _assign(self, target: ast.expr, value: Any, names: MutableMapping[str, Any]) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self._owner(target.value, names)
            if isinstance(owner, Made):
                owner.set(target.attr, value, target.lineno)
            elif owner is UNKNOWN:
                self._note(target, f"what {target.attr!r} is set of is not known: passed over")
        elif isinstance(target, ast.Subscript):
            owner = self.value(target.value, names)
            key = self.value(target.slice, names)
            listed = isinstance(owner, list) and type(key) is int
            if (isinstance(owner, dict) and isinstance(key, (str, int))) or (
                listed and -len(owner) <= key < len(owner)
            ):
                owner[key] = value
            elif not isinstance(owner, Name):
                self._note(target, "what is set here is not known: passed over")
        elif isinstance(target, (ast.Tuple, ast.List)):
            alike = isinstance(value, list) and len(value) == len(target.elts)
            for number, inner in enumerate(target.elts):
                self._assign(inner, value[number] if alike else UNKNOWN, names)

    def _owner(self, node: ast.expr, names: MutableMapping[str, Any]) -> Any:
        """What a field is set of; made where it is not there yet: ``recipe.trainer.strategy``."""
        owner = self.value(node, names)
        if isinstance(owner, Made) or not isinstance(node, ast.Attribute):
            return owner
        above = self._owner(node.value, names)
        if not isinstance(above, Made):
            return owner
        inner = Made("")
        above.set(node.attr, inner, node.lineno)
        return inner

    # --- expressions ------------------------------------------------------------------------------

    def value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        """The value of an expression."""
        self._step(node)
        self._depth += 1
        try:
            if self._depth > _DEEPEST * 8:
                return UNKNOWN
            return self._value(node, names)
        finally:
            self._depth -= 1

    def _value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.Constant):
            return _bounded(node.value) if isinstance(node.value, _PLAIN) else UNKNOWN
        if isinstance(node, ast.Name):
            return names.get(node.id, Name(node.id))
        if isinstance(node, ast.Attribute):
            return self._field(self.value(node.value, names), node.attr)
        if isinstance(node, ast.Call):
            return self._call(node, names)
        if isinstance(node, (ast.List, ast.Tuple)):
            return self._items(node.elts, names)
        if isinstance(node, ast.Dict):
            keys = [_MORE if key is None else self.value(key, names) for key in node.keys]
            return self._table(keys, node.values, names)
        if isinstance(node, ast.IfExp):
            test = _truth(self.value(node.test, names))
            chosen = node.body if test else node.orelse
            return UNKNOWN if test is None else self.value(chosen, names)
        if isinstance(node, ast.JoinedStr):
            return self._text(node, names)
        if isinstance(node, ast.Subscript):
            return _item(self.value(node.value, names), self.value(node.slice, names))
        return self._worked_out(node, names)

    def _items(self, nodes: list[ast.expr], names: Mapping[str, Any]) -> list[Any]:
        """Values of a list or of arguments, ``*more`` among them."""
        items = list[Any]()
        for node in nodes[:_MOST_ITEMS]:
            value = self.value(node.value if isinstance(node, ast.Starred) else node, names)
            if not isinstance(node, ast.Starred):
                items.append(value)
            elif isinstance(value, list):
                items += value
            else:
                self._note(node, "what * adds here is not known: passed over")
        return items[:_MOST_ITEMS]

    def _table(
        self, keys: Iterable[Any], nodes: Iterable[ast.expr], names: Mapping[str, Any]
    ) -> dict[Any, Any]:
        """Values by their key; without one, those of another table: ``**more``."""
        table = dict[Any, Any]()
        for key, node in zip(keys, nodes, strict=True):
            value = self.value(node, names)
            if isinstance(key, (str, int)):
                table[key] = value
            elif key is _MORE and isinstance(value, dict):
                table |= value
            else:
                self._note(node, "what is said here is not known: passed over")
        return table

    def _worked_out(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.BoolOp):
            return self._either(node, names)
        if isinstance(node, ast.UnaryOp):
            inner = self.value(node.operand, names)
            if isinstance(node.op, ast.Not):
                test = _truth(inner)
                return UNKNOWN if test is None else not test
            plain = isinstance(node.op, ast.USub) and isinstance(inner, (int, float))
            return -inner if plain else UNKNOWN
        if isinstance(node, ast.BinOp):
            left, right = self.value(node.left, names), self.value(node.right, names)
            return _joined(_BINARY.get(type(node.op)), left, right)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self.value(node.left, names), self.value(node.comparators[0], names)
            return _compared(_COMPARED[type(node.ops[0])], left, right, node.ops[0])
        return UNKNOWN

    def _either(self, node: ast.BoolOp, names: Mapping[str, Any]) -> Any:
        ends, value = isinstance(node.op, ast.Or), UNKNOWN
        for item in node.values:
            value = self.value(item, names)
            test = _truth(value)
            if test is None or test is ends:
                return value
        return value

    def _text(self, node: ast.JoinedStr, names: Mapping[str, Any]) -> Any:
        parts = list[str]()
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            value = self.value(inner, names)
            plain = isinstance(value, _PLAIN) and getattr(part, "format_spec", None) is None
            if not plain:
                return UNKNOWN
            parts.append(str(value))
        return _bounded("".join(parts))

    def _field(self, owner: Any, name: str) -> Any:
        if isinstance(owner, Name):
            return Name(f"{owner.dotted}.{name}")
        if isinstance(owner, Made):
            return owner.fields.get(name, UNKNOWN)
        return UNKNOWN

    # --- calls ------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, names: Mapping[str, Any]) -> Any:
        arguments = self._items(node.args, names)
        words = [word.arg or _MORE for word in node.keywords]
        keywords = self._table(words, [word.value for word in node.keywords], names)
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value, names)
            if not isinstance(owner, Name):
                done = self._method(owner, node, arguments, keywords)
                if done is not None:
                    return None if done is _NOTHING else done
                if isinstance(owner, Made):
                    dotted = f"{owner.kind}.{node.func.attr}"
                    self.calls.append((dotted, arguments, keywords, node.lineno))
            function = self._field(owner, node.func.attr)
        else:
            function = self.value(node.func, names)
        return self.called(function, arguments, keywords, node.lineno)

    def called(
        self, function: Any, arguments: list[Any], keywords: dict[str, Any], line: int
    ) -> Any:
        """What a call of a value gives."""
        if isinstance(function, Function):
            return self._followed(function, arguments, keywords)
        if isinstance(function, _Partial):
            function, keywords = function.name, {**function.bound, **keywords}
        if isinstance(function, Made) and function.kind == "class":
            return instance(function, arguments, keywords, line)
        if not isinstance(function, Name):
            return UNKNOWN
        if (plain := self._plain(function.dotted, arguments, keywords, line)) is not None:
            return None if plain is _NOTHING else plain
        self.calls.append((function.dotted, arguments, keywords, line))
        if (known := self.known(function.dotted, arguments, keywords, line)) is not None:
            return known
        return made(function.last, arguments, keywords, line)

    def guarded(self, function: Function) -> Any:
        """What a function of the script gives with its defaults; UNKNOWN where it is too much."""
        try:
            return self._followed(function, [], {})
        except (RecursionError, MemoryError, ValueError, InputError, _Left):
            return UNKNOWN

    def _followed(self, function: Function, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        self._depth += 8
        try:
            if self._depth > _DEEPEST * 8:
                return UNKNOWN
            inner = _bound(function, arguments, keywords, self)
            self._block(function.node.body, inner)
        except _Returned as returned:
            return returned.value
        finally:
            self._depth -= 8
        return None

    def _plain(self, dotted: str, arguments: list[Any], keywords: dict[str, Any], line: int) -> Any:
        """A function of the language or its library; None: of no such name."""
        last = dotted.rpartition(".")[2]
        if last == "partial" and arguments:
            return _with(arguments[0], keywords)
        if dotted in ("os.environ.get", "os.getenv"):
            name, *usual = arguments or [""]
            if usual:
                self.notes[line, f"{name} of the environment is not known: its default is read"] = (
                    None
                )
            return usual[0] if usual else UNKNOWN
        if dotted in ("int", "float", "str", "bool", "len") and len(arguments) == 1:
            return _converted(dotted, arguments[0])
        if dotted == "dict" and all(isinstance(item, dict) for item in arguments):
            return dict(ChainMap(keywords, *arguments))
        if dotted in ("list", "tuple"):
            known = bool(arguments) and isinstance(arguments[0], list)
            return list(arguments[0]) if known else [] if not arguments else UNKNOWN
        if dotted in ("hasattr", "getattr", "setattr") and len(arguments) > 1:
            value = _attribute(dotted, arguments)
            if dotted == "setattr" and value is UNKNOWN:
                self.notes[line, "what is set here is not known: passed over"] = None
            return value
        if dotted in ("isinstance", "print", "max", "min", "range", "super"):
            return UNKNOWN
        return None

    def _method(
        self, owner: Any, node: ast.Call, arguments: list[Any], keywords: dict[str, Any]
    ) -> Any:
        """A method of a text, list, table or parser of options; None: of no such."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if isinstance(owner, Made) and name == "broadcast":
            _broadcast(owner, keywords, set())
            return _NOTHING
        if isinstance(owner, Made) and owner.kind == "ArgumentParser":
            if name in ("parse_args", "parse_known_args"):
                self._note(node, "options of the script are at their defaults")
            return _of_parser(owner, name, arguments, keywords)
        if isinstance(owner, str) and name in _OF_TEXT:
            return _of_text(owner, name, arguments)
        done = None
        if isinstance(owner, list):
            done = _of_list(owner, name, arguments)
        elif isinstance(owner, dict):
            done = _of_dict(owner, name, arguments, keywords)
        if done is None and (owner is UNKNOWN or isinstance(owner, (list, dict))):
            if name in _CHANGES:
                self._note(node, f"what {name!r} changes here is not known: passed over")
            return UNKNOWN
        return done


_NOTHING, _MORE = object(), object()
"""Python's None as the value of a call that is known; the key of ``**more``."""


def _broadcast(into: Made, values: dict[str, Any], seen: set[int]) -> None:
    """Set fields wherever they are there, as NeMo-Run's method of that name does."""
    seen.add(id(into))
    for name, value in into.fields.items():
        if name in values:
            into.set(name, values[name], 0)
        elif isinstance(value, Made) and id(value) not in seen:
            _broadcast(value, values, seen)


def copied(value: Any, seen: dict[int, Any]) -> Any:
    """A copy of what calls made, with all that is in it; `seen` is what was copied before."""
    if id(value) in seen or not isinstance(value, (Made, list, dict)):
        return seen.get(id(value), value)
    if isinstance(value, list):
        seen[id(value)] = items = list[Any]()
        items += [copied(item, seen) for item in value]
        return items
    fields = value.fields if isinstance(value, Made) else value
    inner = dict[Any, Any]()
    result: Any = inner
    if isinstance(value, Made):
        result = Made(value.kind, inner, dict(value.lines), value.source)
    seen[id(value)] = result
    inner |= {name: copied(item, seen) for name, item in fields.items()}
    return result


def made(kind: str, arguments: list[Any], keywords: dict[str, Any], line: int) -> Made:
    """What a call makes of its keywords; arguments without one stand under their number."""
    result = Made(kind)
    for number, argument in enumerate(arguments):
        result.set(str(number), argument, line)
    for name, value in keywords.items():
        result.set(name, value, line)
    return result


def instance(of: Made, arguments: list[Any], keywords: dict[str, Any], line: int) -> Made:
    """An instance of a class of the script: defaults of its fields, and what it is given."""
    base = str(of.fields.get("base", of.fields["name"]))
    result = made(base, arguments, keywords, line)
    defaults = {k: v for k, v in of.fields.items() if k not in ("name", "base")}
    result.fields = {**defaults, **result.fields}
    result.lines = {**of.lines, **result.lines}
    return result


def _bound(
    function: Function, arguments: list[Any], keywords: dict[str, Any], script: Script
) -> MutableMapping[str, Any]:
    """Names of a function's body: its arguments, defaults where none is given."""
    spec = function.node.args
    parameters = [*spec.posonlyargs, *spec.args]
    inner: dict[str, Any] = {item.arg: UNKNOWN for item in (*parameters, *spec.kwonlyargs)}
    for item, usual in zip(parameters[::-1], spec.defaults[::-1], strict=False):
        inner[item.arg] = script.value(usual, function.names)
    for item, given in zip(spec.kwonlyargs, spec.kw_defaults, strict=False):
        if given is not None:
            inner[item.arg] = script.value(given, function.names)
    for item, value in zip(parameters, arguments, strict=False):
        inner[item.arg] = value
    said = {**function.bound, **keywords}
    rest = {name: value for name, value in said.items() if name not in inner}
    inner |= {name: value for name, value in said.items() if name in inner}
    if spec.kwarg is not None:
        inner[spec.kwarg.arg] = rest
    return ChainMap(inner, function.names)


def _with(function: Any, keywords: dict[str, Any]) -> Any:
    if isinstance(function, Function):
        return Function(function.node, function.names, {**function.bound, **keywords})
    return _Partial(function, dict(keywords)) if isinstance(function, Name) else UNKNOWN


def _bounded(value: Any) -> Any:
    """A number, text or list; UNKNOWN where it is so large that it would grow without end."""
    if isinstance(value, int):
        return value if abs(value) <= _MOST else UNKNOWN
    if isinstance(value, (str, list)):
        most = _MOST_LETTERS if isinstance(value, str) else _MOST_ITEMS
        return value if len(value) <= most else UNKNOWN
    return value


def _truth(value: Any) -> bool | None:
    """Whether a value counts as true; None: not known."""
    if value is UNKNOWN or isinstance(value, Name) or (isinstance(value, Made) and value.is_answer):
        return None
    return True if isinstance(value, (Made, Function, _Partial)) else bool(value)


def _joined(sign: Callable[[Any, Any], Any] | None, left: Any, right: Any) -> Any:
    """A sum, difference, product or quotient of numbers, or texts and lists one behind another."""
    if sign is None:
        return UNKNOWN
    for kind in (list, str):
        if sign is operator.add and isinstance(left, kind) and isinstance(right, kind):
            return _bounded(operator.add(left, right))
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return UNKNOWN
    try:
        return _bounded(sign(left, right))
    except ArithmeticError:
        return UNKNOWN


def _compared(sign: Callable[[Any, Any], Any], left: Any, right: Any, how: ast.cmpop) -> Any:
    """Whether a comparison holds of plain values, of names, or of anything and nothing."""
    if isinstance(how, (ast.Is, ast.IsNot)) and None in (left, right):
        known = not any(
            x is UNKNOWN or (isinstance(x, Made) and x.is_answer) for x in (left, right)
        )
    elif isinstance(how, (ast.In, ast.NotIn)) and isinstance(right, (list, dict)):
        known = isinstance(left, _PLAIN) and all(isinstance(item, _PLAIN) for item in right)
    else:
        known = any(isinstance(left, x) and isinstance(right, x) for x in (_PLAIN, Name))
    try:
        return bool(sign(left, right)) if known else UNKNOWN
    except TypeError:
        return UNKNOWN


def _item(owner: Any, key: Any) -> Any:
    if isinstance(owner, dict) and isinstance(key, (str, int)):
        return owner.get(key, UNKNOWN)
    if isinstance(owner, (list, str)) and type(key) is int and -len(owner) <= key < len(owner):
        return owner[key]
    if isinstance(owner, Name) and isinstance(key, str):
        return Name(f"{owner.dotted}.{key}")  # a table of classes: its last name is the key
    return UNKNOWN


def _converted(kind: str, value: Any) -> Any:
    if kind == "len":
        return len(value) if isinstance(value, (str, list, dict)) else UNKNOWN
    if not isinstance(value, (int, float, str)):
        return UNKNOWN
    try:
        return _bounded({"int": int, "float": float, "str": str, "bool": bool}[kind](value))
    except (ValueError, OverflowError):
        return UNKNOWN


def _attribute(how: str, arguments: list[Any]) -> Any:
    owner, name = arguments[0], arguments[1]
    if not isinstance(owner, Made) or not isinstance(name, str):
        return UNKNOWN
    if how == "hasattr":
        return name in owner.fields or UNKNOWN
    if how == "setattr" and len(arguments) > 2:
        owner.set(name, arguments[2], 0)
        return _NOTHING
    usual = arguments[2] if len(arguments) > 2 else UNKNOWN
    value = owner.fields.get(name, usual)
    return _NOTHING if value is None else value


def _of_text(text: str, name: str, arguments: list[Any]) -> Any:
    texts = all(isinstance(item, str) for item in arguments)
    if not texts or len(arguments) != _OF_TEXT[name] or (name == "split" and not arguments[0]):
        return UNKNOWN
    return _bounded(getattr(text, name)(*arguments))


def _of_list(items: list[Any], name: str, arguments: list[Any]) -> Any:
    """What adds to a list; None: another method, or too much."""
    if name == "extend" and arguments and isinstance(arguments[0], list):
        more = arguments[0]
    elif name in ("append", "insert") and arguments:
        more = arguments[-1:]
    else:
        return None
    if len(items) + len(more) > _MOST_ITEMS:
        return None
    at = arguments[0] if name == "insert" else len(items)
    if type(at) is not int:
        return None
    items[at:at] = more
    return _NOTHING


def _of_dict(
    table: dict[Any, Any], name: str, arguments: list[Any], keywords: dict[str, Any]
) -> Any:
    """What reads a table or adds to it; None: another method, or what is not known."""
    if name == "get" and arguments and isinstance(arguments[0], (str, int)):
        value = table.get(arguments[0], arguments[1] if len(arguments) > 1 else None)
        return _NOTHING if value is None else value
    if name in ("items", "keys", "values"):
        return {"keys": [*table], "values": [*table.values()]}.get(
            name, [*map(list, table.items())]
        )
    if name == "update" and all(isinstance(item, dict) for item in arguments[:1]):
        for more in (*arguments[:1], keywords):
            table.update(more)
        return _NOTHING
    return None


def _of_parser(parser: Made, name: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """Options of a command with their defaults, which hold where it is given none."""
    if name == "add_argument":
        words = [word for word in arguments if isinstance(word, str)]
        longest = next((word for word in words if word.startswith("--")), words[0] if words else "")
        said, action = keywords.get("dest"), keywords.get("action")
        key = said if isinstance(said, str) else longest.lstrip("-").replace("-", "_")
        must = keywords.get("required") is True or longest[:1] != "-"
        usual = _SWITCHES.get(str(action), UNKNOWN if must else None)
        parser.fields[key] = keywords.get("default", usual)
        return _NOTHING
    if name in ("add_argument_group", "add_mutually_exclusive_group"):
        return parser
    if name in ("parse_args", "parse_known_args"):
        options = Made("options", dict(parser.fields))
        return options if name == "parse_args" else [options, []]
    if name == "set_defaults":
        parser.fields |= keywords
        return _NOTHING
    return None
