"""Keywords of the calls of a Python script as settings: a script is parsed, and never run.

``FastLanguageModel.from_pretrained(max_seq_length = 2048)`` is the setting
``FastLanguageModel.from_pretrained.max_seq_length``, ``lora = dict(r=64)`` is ``lora.r``. Names
stand for what is assigned to them; sums and products of constants are worked out. What cannot be
worked out is ``$(...)``, as a variable of a shell that no file sets.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from simulator.errors import InputError
from simulator.interop.dialects.settings import MOST_SETTINGS, Place, Setting

_LARGEST = 2**18
_MOST = 10**18
_DEEPEST = 12
_IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ \t]+([A-Za-z_]\w*)", re.M)
_PRODUCTS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Pow: "**",
}


def imported(text: str) -> frozenset[str]:
    """Packages that a text imports, as a trainer's table claims them: ``import unsloth``."""
    return frozenset(f"import {name}" for name in _IMPORTED.findall(text[:_LARGEST]))


def calls_of(text: str, path: str) -> list[Setting]:
    """Keywords of all calls of a script, and what is assigned to names.

    Raises
    ------
    InputError
        If the text is no Python, or too much of it.
    """
    if len(text) > _LARGEST:
        raise InputError(f"{path}: larger than {_LARGEST // 2**10} KiB, got {len(text)}")
    try:
        tree = ast.parse(text)
        names = _names(tree)
        settings = []
        for setting in _settings(tree, names, path):
            settings.append(setting)
            if len(settings) > MOST_SETTINGS:
                raise InputError(f"{path}: must have at most {MOST_SETTINGS} settings")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path}: no Python that can be read: {str(error)[:120]}") from None
    return settings


def _names(tree: ast.AST) -> dict[str, ast.expr]:
    """What is first assigned to each name, and what keywords of calls give each attribute."""
    names: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.setdefault(node.targets[0].id, node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            names.setdefault(node.target.id, node.value)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imports = (name.asname or name.name.partition(".")[0] for name in node.names)
            names |= {f"import {name}": ast.Constant(True) for name in imports}
        elif isinstance(node, ast.keyword) and isinstance(node.value, (ast.Constant, ast.Name)):
            names.setdefault(f".{node.arg}", node.value)
    return names


def _settings(tree: ast.AST, names: Mapping[str, ast.expr], path: str) -> Iterator[Setting]:
    """Keywords of the first call of each name: a model that is loaded again was trained before."""
    before: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield from _leaves(node.targets[0].id, node.value, names, path, 0)
        elif isinstance(node, ast.Call):
            called = _called(node)
            if called in before and (node.args or node.keywords):
                continue
            before.update([called] if node.args or node.keywords else [])
            yield Setting(called, True, Place(path, called, node.lineno))
            for number, argument in enumerate(node.args[:4]):
                yield from _leaves(f"{called}.{number}", argument, names, path, 0)
            for keyword in node.keywords:
                if keyword.arg:
                    key = f"{called}.{keyword.arg}"
                    yield from _leaves(key, keyword.value, names, path, 0)


def _called(node: ast.Call) -> str:
    """The last two names of what is called: ``FastModel.get_peft_model``, ``SFTConfig``."""
    if isinstance(node.func, ast.Name):
        return node.func.id
    if not isinstance(node.func, ast.Attribute):
        return ""
    base = node.func.value
    before = base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")
    return f"{before}.{node.func.attr}" if before else node.func.attr


def _leaves(
    key: str, node: ast.expr, names: Mapping[str, ast.expr], path: str, depth: int
) -> Iterator[Setting]:
    """A value under its key, or those of a table under keys of their own."""
    inner: list[tuple[str, ast.expr]] = []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        inner = [(word.arg, word.value) for word in node.keywords if word.arg]
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        inner = [(str(k.value), v) for k, v in pairs if isinstance(k, ast.Constant)]
    if inner and depth < _DEEPEST:
        for name, value in inner:
            yield from _leaves(f"{key}.{name}", value, names, path, depth + 1)
        return
    yield Setting(key, _value(node, names, 0), Place(path, key, node.lineno))


def _value(node: ast.expr, names: Mapping[str, ast.expr], depth: int) -> Any:
    """A constant, a list of them, or the last name of ``torch.bfloat16``."""
    if depth > _DEEPEST:
        return "$(...)"
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Tuple, ast.List)):
        return [_value(item, names, depth + 1) for item in node.elts[:256]]
    if isinstance(node, ast.Name):
        known = names.get(node.id)
        if known is None:  # a class that is imported, or what a function is given
            return node.id if node.id[:1].isupper() else "$(...)"
        return _value(known, names, depth + 1)
    if isinstance(node, ast.Attribute):
        known = names.get(f".{node.attr}")
        if known is not None:
            return _value(known, names, depth + 1)
        base = node.value.id if isinstance(node.value, ast.Name) else ""
        given = base[:1].islower() and f"import {base}" not in names  # args.rank of a parser
        return "$(...)" if given else node.attr
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        return _value(node.values[-1], names, depth + 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _value(node.operand, names, depth + 1)
        return not inner if isinstance(inner, bool) else "$(...)"
    if isinstance(node, ast.Call) and _called(node) in ("int", "float") and node.args:
        return _value(node.args[0], names, depth + 1)
    if isinstance(node, ast.BinOp):
        return _product(node, names, depth)
    return "$(...)"


def _product(node: ast.BinOp, names: Mapping[str, ast.expr], depth: int) -> Any:
    """A sum, difference, product, quotient or power of whole numbers that stay whole."""
    sign = _PRODUCTS.get(type(node.op))
    left, right = _value(node.left, names, depth + 1), _value(node.right, names, depth + 1)
    if sign is None or type(left) is not int or type(right) is not int:
        return "$(...)"
    if abs(left) > _MOST or abs(right) > _MOST or (sign == "**" and not 0 <= right <= 62):
        return "$(...)"
    if sign in ("//", "/"):
        whole = right != 0 and (sign == "//" or left % right == 0)
        return left // right if whole else "$(...)"
    if sign == "**":
        return left**right if abs(left) <= 10 or right <= 2 else "$(...)"
    return {"+": left + right, "-": left - right, "*": left * right}[sign]
