"""A shell script as its commands, word by word, with variables put in and nothing ever run.

What bash would do is followed as far as launch scripts go: quotes, line continuation, variables
with defaults, arrays, braces, whole-number arithmetic, here-documents, ``eval``. Command
substitutions stay as they are written. Branches that the script's own variables rule out are left
out (`shell_branches`).
"""

from __future__ import annotations

import ast
import operator
import re
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from itertools import chain

from simulator.errors import InputError
from simulator.interop.dialects.settings import Place
from simulator.interop.shell.parameter_changes import changed, is_change
from simulator.interop.shell.shell_braces import (
    closing,
    expansion_end,
    has_braces,
    without_braces,
    word_end,
)
from simulator.interop.shell.shell_branches import KEYWORDS, Branches
from simulator.records import dataclass

_MOST_CHARACTERS = 4 * 2**20
"""Characters of a variable's value or a word: a script may double a variable line by line."""

_MOST_MADE = 32 * 2**20
"""Characters of all of them: a blend of data sets is made longer by a line for each, 400 times."""

_MOST_WORDS = 10_000
"""Words and values of a script, those that a variable becomes too: each may be as short as two
quotes and costs 15 us."""

_MOST_DEPTH = 8
"""Expansions, and texts that are evaluated, within one another."""

_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTION = re.compile(
    r"([ \t]*)(?:function[ \t]+([\w.-]+)[ \t]*(?:\(\))?|([\w.-]+)[ \t]*\(\))[ \t]*(\{?)[ \t]*$"
)
_ARGUMENT = re.compile(r"\$\{?[1-9]\}?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]\s]{1,100})\])?(\+?)=")
_PARAMETER = re.compile(r"[@*#0-9]")
_PLACE = re.compile(r"\[([^\]\s]{1,100})\]=")
_HERE = re.compile(r"<<(-?)\s*(['\"\\]?)([A-Za-z_]\w*)['\"]?")
_NUMBERED = re.compile(r"<<(\d{1,6})(?!\d)")
_SHOWN = re.compile(r"\$\(\s*cat\s+<<(\d{1,6})\s*\)")
_ESCAPED = re.compile(r"\\(.|\n)")
_READS_ALONE = "ersE"
"""Options of ``read`` that take no word of their own."""
_INTO = re.compile(r"(?:^|[^0-9>&])>\s*[\"']?([^\s\"'<>|;&]+)")
_PLAIN = re.compile(r"[\w./:=,@%+\[\]{}*?~^!#-]+")
_WITHIN_QUOTES = re.compile(r'[^"\\$`]+')
_BREAKS = "\n;|&()"
_BLANKS = " \t\n"
_REDIRECTED = re.compile(r"\d*[<>]")
_DECLARES = {"export", "declare", "local", "readonly", "typeset"}


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command after expansion."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class HereDocument:
    """Lines that a command reads, or writes into a file."""

    name: str
    """The file it is written to; blank where it is not."""
    text: str
    line: int


@dataclass
class Script:
    """What stands in a script."""

    path: str
    text: str
    commands: list[list[Word]] = field(default_factory=list)
    variables: dict[str, str | list[str]] = field(default_factory=dict)
    lines_of: dict[str, int] = field(default_factory=dict)
    """Line in which each variable was set last."""
    documents: list[HereDocument] = field(default_factory=list)
    written: list[tuple[HereDocument, bool]] = field(default_factory=list)
    """Here-documents before variables are put in, and whether each is literal."""
    sourced: list[str] = field(default_factory=list)
    """Files that it reads and that were not given."""
    beside: dict[str, str] = field(default_factory=dict)
    """Texts of other files that were given, by name: what the script reads of them is read."""
    paths_of: dict[str, str] = field(default_factory=dict)
    """File in which a variable was set last, where that is another one."""
    branches: bool = False
    """Whether branches were read of which not all may run."""
    loops: tuple[str, ...] = ()
    """Variables of loops, of whose values the first was taken."""
    functions: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Bodies of functions, and the lines before them."""
    called: set[str] = field(default_factory=set)
    arguments: list[str] | None = None
    """What the function that is read was called with; None: none is, and a script has none."""

    def place_of(self, name: str) -> Place:
        """Where a variable was set last."""
        return Place(self.paths_of.get(name, self.path), name, self.lines_of.get(name, 0))


def read_script(
    text: str,
    path: str,
    seeds: dict[str, str] | None = None,
    beside: Mapping[str, str] | None = None,
) -> Script:
    """Read a script; `seeds` are variables that its surroundings set, `beside` files it may read.

    Raises
    ------
    InputError
        If variables that hold one another grow beyond any command.
    """
    text = text.replace("\r\n", "\n")
    script = Script(path=path, text=text, variables=dict(seeds or {}), beside=dict(beside or {}))
    body = _without_documents(text, script)
    own = len(script.written)  # behind them those of files that it reads
    _scan(body, script)
    for name, (inside, line) in [*script.functions.items()]:
        if name not in script.called:
            _scan(inside, script, line=line + 1)
    end = _Scanner("", script)
    for document, literal in script.written[:own]:
        filled = document.text if literal else _filled(document.text, end)
        script.documents.append(HereDocument(document.name, filled, document.line))
    return script


def _scan(
    body: str, script: Script, name: str = "", within: _Scanner | None = None, *, line: int = 1
) -> None:
    """Take the commands of a text, of the files that it reads and of what it evaluates.

    `within` is the scanner whose ``eval`` the text is of: its place and its limits go on.
    """
    body = _without_functions(body, script) if within is None else body
    scanner = _Scanner(body, script, within.depth + 1 if within else 0, name)
    scanner.braces, scanner.line = has_braces(body), line
    if within is not None:
        scanner.line, scanner.made, scanner.counted = within.line, within.made, within.counted
    for words in scanner.commands():
        if words[0].text in ("source", ".") and len(words) > 1:
            other = words[1].text.rpartition("/")[2]
            inside = script.beside.pop(other, None)  # each is read once
            if inside is None:
                script.sourced.append(words[1].text)
            else:
                _scan(_without_documents(inside, script), script, other)
        elif words[0].text == "eval" and scanner.depth < _MOST_DEPTH:
            _scan(" ".join(word.text for word in words[1:]), script, name, scanner)
        elif words[0].text in script.functions and scanner.depth < _MOST_DEPTH:
            _call(words, script, name, scanner)
        elif words[0].text == "shift" and script.arguments:
            count = words[1].text if len(words) > 1 else "1"
            del script.arguments[: int(count) if count.isdecimal() and len(count) < 5 else 1]
        else:
            script.commands.append(words)
    if within is not None:
        within.made, within.counted = scanner.made, scanner.counted
    script.branches |= scanner.forks.undecided
    script.loops = (*script.loops, *scanner.forks.loops)[:8]


def _call(words: list[Word], script: Script, name: str, within: _Scanner) -> None:
    """Read the body of a function with the words that it is called with."""
    body, line = script.functions[words[0].text]
    arguments, at = script.arguments, within.line
    script.arguments, within.line = [word.text for word in words[1:]], line + 1
    _scan(body, script, name, within)
    script.arguments, within.line = arguments, at
    script.called.add(words[0].text)


def _without_functions(text: str, script: Script) -> str:
    """Blank the bodies of functions over several lines, and keep them where they are called."""
    lines, at = text.split("\n"), 0
    ends: dict[str, list[int]] = {}  # by indent
    for number, line in enumerate(lines):
        if line.lstrip() == "}":
            ends.setdefault(line[:-1], []).append(number)
    while at < len(lines):
        match, first = _FUNCTION.match(lines[at]), at + 1
        closed = ends.get(match[1], []) if match is not None else []
        place = bisect(closed, at)
        at = first
        if match is None or place == len(closed):
            continue
        last = closed[place]
        first += match[4] == "" and lines[first] == f"{match[1]}{{"
        script.functions[match[2] or match[3]] = "\n".join(lines[first:last]), first
        lines[at - 1 : last + 1] = [""] * (last + 2 - at)
        at = last + 1
    return "\n".join(lines)


def _without_documents(text: str, script: Script) -> str:
    """Blank the lines of here-documents, and put in place of their ends which of them it is."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        start = _HERE.search(lines[at])
        if start is None or lines[at].lstrip().startswith("#") or "<<<" in lines[at]:
            at += 1
            continue
        first, end = at + 1, start[3]
        last = first
        while last < len(lines) and lines[last].strip() != end:
            last += 1
        into = _INTO.search(lines[at])
        inside = (line.lstrip("\t") if start[1] else line for line in lines[first:last])
        document = HereDocument(into[1] if into else "", "\n".join(inside), first + 1)
        number = f"<<{len(script.written)}"
        script.written.append((document, bool(start[2])))
        lines[at] = lines[at][: start.start()] + number + lines[at][start.end() :]
        lines[first : last + 1] = [""] * (min(last + 1, len(lines)) - first)
        at = last + 1
    return "\n".join(lines)


_IN_DOCUMENT = re.compile(r"(\\[$`\\\n])|(\\)|\"")


def _filled(text: str, scanner: _Scanner) -> str:
    """Put variables into a here-document: as in double quotes, but that these are quoted there."""
    quoted = _IN_DOCUMENT.sub(lambda m: m[1] or ("\\\\" if m[2] else '\\"'), text)
    inner = scanner.inside(f'"{quoted}"')
    filled = "".join(inner.quoted())
    scanner.made, scanner.counted = inner.made, inner.counted
    return filled


class _AsWritten(str):
    """What nothing is known of: it stays one word, whatever it would become."""


class _Fields(list[str]):
    """Words that quotes keep whole."""


class _Gap(str):
    """Nothing: at a place of an array that was never set, and beside blanks that part words."""


def _items(value: str | list[str] | None) -> list[str]:
    """Places of an array; a word is an array of one."""
    return [] if value is None else [value] if isinstance(value, str) else value


def _elements(value: str | list[str]) -> list[str]:
    """What is set of an array."""
    return [item for item in _items(value) if not isinstance(item, _Gap)]


def _element(value: str | list[str], place: int) -> str | None:
    """What stands at a place of an array; None: nothing."""
    items = _items(value)
    place += len(items) if place < 0 else 0
    word = items[place] if 0 <= place < len(items) else None
    return None if isinstance(word, _Gap) else word


def _split(value: str | list[str]) -> list[str]:
    """Fields of an expansion without quotes; blanks at its ends part it from what stands there."""
    text = " ".join(_items(value))
    return [*_parted(text[:1]), *text.split(), *_parted(text[-1:])]


def _parted(end: str) -> list[str]:
    return [_Gap()] if end.isspace() else []


class _Scanner:
    """One pass over a text; what is set is known to what follows."""

    def __init__(self, text: str, script: Script, depth: int = 0, name: str = "") -> None:
        self.text, self.script, self.depth, self.name = text, script, depth, name
        self.at, self.line, self.made, self.counted = 0, 1, 0, 0
        self.closes = len(text)  # behind it no arithmetic is closed
        self.forks, self.end, self.given = Branches(), "", ""
        self.braces = False

    def commands(self) -> Iterator[list[Word]]:
        """Words of each command that runs; assignments and keywords are kept apart."""
        words: list[Word] = []
        between = self.script.variables.get("IFS", _BLANKS)
        for word in self._words():
            if word is None:
                runs, sets = self.forks.command([item.text for item in words], self.end)
                if sets is not None:
                    self._set(*sets, self.line)
                elif runs and words and words[0].text == "read":
                    self._read([item.text for item in words[1:]])
                    self.script.variables["IFS"] = between  # what stood before it is its own
                elif runs and words:
                    yield words
                words, self.given = [], ""
                between = self.script.variables.get("IFS", _BLANKS)
            elif not words and word.text in KEYWORDS:
                self.forks.keyword(word.text)
            elif words or word.text not in ("{", "}", *_DECLARES):
                words.append(word)

    def _read(self, words: list[str]) -> None:
        """``IFS=',' read -r TP PP <<< "8,4"``, ``read -r -d '' OPTIONS <<EOF``."""
        options: dict[str, str] = {}
        while words and words[0][:1] == "-":
            letters, *words = words
            plain = letters.lstrip(_READS_ALONE + "-")
            options |= dict.fromkeys(letters[1 : len(letters) - len(plain)], "")
            if plain:
                options[plain[0]] = plain[1:] or "".join(words[:1])
                words = words if plain[1:] else words[1:]
        text = self.given
        if "r" not in options:
            text = _ESCAPED.sub(lambda match: match[1].strip("\n"), text)
        end = options.get("d", "\n")
        text = text.partition(end)[0] if end else text
        between = self.script.variables.get("IFS")
        sign = between if isinstance(between, str) and between.strip() else None
        if "a" in options:
            self._set(options["a"], text.split(sign), self.line)
        names = words if "a" not in options else []
        parts = text.split(sign, max(len(names) - 1, 0)) if names else []
        for name, part in zip(names, parts, strict=False):
            if name.isidentifier():
                self._set(name, part.strip() if sign is None else part, self.line)

    def _set(self, name: str, value: str | list[str], line: int) -> None:
        """Set a variable, where the branch runs."""
        self._count(value)
        unknown = isinstance(value, str) and _ARGUMENT.fullmatch(value) is not None
        if unknown and name in self.script.variables:  # of a script's own: what stands before stays
            return
        if not self.forks.skipped:
            self.script.variables[name] = value
            self.script.lines_of[name] = line
            if self.name or name in self.script.paths_of:
                self.script.paths_of[name] = self.name or self.script.path

    def _words(self) -> Iterator[Word | None]:
        """Words, and None where a command ends."""
        text, size = self.text, len(self.text)
        bare = True  # nothing but assignments before in this command
        while self.at < size:
            char = text[self.at]
            if char == "\\" and text[self.at + 1 : self.at + 2] == "\n":
                self.at, self.line = self.at + 2, self.line + 1
            elif char in " \t\r":
                self.at += 1
            elif char == "#":
                end = text.find("\n", self.at)
                self.at = size if end < 0 else end
            elif char in _BREAKS:
                pair = text[self.at : self.at + 2]
                self.end = pair if pair in (";;", "&&", "||") else char
                self.line += char == "\n"
                self.at += len(self.end)
                bare = True
                yield None
            elif match := _REDIRECTED.match(text, self.at):
                self.at = match.end() - 1
                self._redirection()
            else:
                line = self.line
                if bare and self._assigned():
                    continue
                for field_ in self._word(_BREAKS + "<> \t\r"):
                    starts = field_ in KEYWORDS or field_[:1] == "-"  # options of what declares
                    bare = field_ in _DECLARES or (bare and starts)
                    yield Word(field_, line)
        self.end = "\n"
        yield None

    def _redirection(self) -> None:
        here = self.text.startswith("<<<", self.at)
        if (document := _NUMBERED.match(self.text, self.at)) is not None:
            self.at, self.given = document.end(), self._document(int(document[1]))
            return
        while self.at < len(self.text) and self.text[self.at] in "<>&- ":
            self.at += 1
        words = self._word(_BREAKS + "<> \t\r")
        self.given = words[0] if here and words else self.given

    def _document(self, number: int) -> str:
        """A here-document with what is known where it is read."""
        if number >= len(self.script.written) or self.depth >= _MOST_DEPTH:
            return ""
        document, literal = self.script.written[number]
        text = document.text + "\n"
        return text if literal else _filled(text, self)

    def inside(self, text: str) -> _Scanner:
        """A pass over a text within this one, which its limits count."""
        inner = _Scanner(text, self.script, self.depth + 1)
        inner.made, inner.counted = self.made, self.counted
        return inner

    def _assigned(self) -> bool:
        """Take an assignment, of a word or of an array, if one stands here."""
        match = _ASSIGNMENT.match(self.text, self.at)
        if match is None:
            return False
        name, index, more = match[1], match[2], bool(match[3])
        line, self.at = self.line, match.end()
        value: str | list[str]
        if self.text[self.at : self.at + 1] == "(":
            value = self._array(name)
        else:
            value = " ".join(self._word(_BREAKS + "<> \t\r", split=False))
        before = self.script.variables.get(name)
        if isinstance(value, list):
            self._set(name, [*_items(before), *value] if more else value, line)
            return True
        place = 0 if index is None else _arithmetic(index, self.script.variables)
        if more and before is not None and place is not None:
            value = (_element(before, place) or "") + value
        if index is None and not isinstance(before, list):
            self._set(name, value, line)
        elif place is not None:
            self._set(name, self._with_element(before, place, value), line)
        else:
            self._set(self._key(name, index or ""), value, line)
        return True

    def _key(self, name: str, index: str) -> str:
        """The variable in which an element of a table stands."""
        return f"{name}[{''.join(self._inner(index, 'whole'))}]"

    def _with_element(self, value: str | list[str] | None, place: int, new: str) -> list[str]:
        """An array with another word at a place; without a place in bash, as it is."""
        array = [*_items(value)]
        place += len(array) if place < 0 else 0
        self._count([""] * max(min(place, _MOST_WORDS) - len(array), 0))
        if place >= 0:
            array += [_Gap() for _ in range(place + 1 - len(array))]
            array[place] = new
        return array

    def _count(self, value: str | list[str]) -> None:
        path = self.script.path
        self.counted += max(len(value), 1) if isinstance(value, list) else 1
        if self.counted > _MOST_WORDS:
            raise InputError(f"{path}: line {self.line}: more than {_MOST_WORDS} words")
        size = len(value) if isinstance(value, str) else sum(map(len, value)) + len(value)
        self.made += size
        if size > _MOST_CHARACTERS or self.made > _MOST_MADE:
            most = _MOST_CHARACTERS if size > _MOST_CHARACTERS else _MOST_MADE
            raise InputError(f"{path}: its variables grow beyond {most} characters")

    def _array(self, name: str) -> list[str]:
        """Words up to the closing parenthesis, over any number of lines."""
        self.at += 1
        array: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == ")":
                self.at += 1
                break
            if char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in " \t\r\n;|&<>(":
                self.line += char == "\n"
                self.at += 1
            elif char == "\\" and self.text[self.at + 1 : self.at + 2] == "\n":
                self.at, self.line = self.at + 2, self.line + 1
            elif (match := _PLACE.match(self.text, self.at)) is not None:
                line, self.at = self.line, match.end()
                word = "".join(self._word(" \t\r\n;|&<>()", split=False))
                place = _arithmetic(match[1], self.script.variables)
                if place is None:
                    self._set(self._key(name, match[1]), word, line)
                else:
                    array = self._with_element(array, place, word)
            else:
                array += self._word(" \t\r\n;|&<>()")
        return array

    def _word(self, ends: str, *, split: bool = True) -> list[str]:
        """A word as the fields that it becomes: none, one, or those of an array."""
        if self.braces and split and (words := self._of_braces(ends)) is not None:
            return words
        text, fields_, current, some = self.text, list[str](), "", False
        while self.at < len(text) and text[self.at] not in ends:
            char = text[self.at]
            if char == "'":
                end = text.find("'", self.at + 1)
                end = len(text) if end < 0 else end
                current, some = current + text[self.at + 1 : end], True
                self.line += text.count("\n", self.at, end)
                self.at = end + 1
            elif char == '"':
                parts = self.quoted()
                some |= bool(parts)
                fields_ += [current + parts[0], *parts[1:-1]] if len(parts) > 1 else []
                current = parts[-1] if len(parts) > 1 else current + "".join(parts)
            elif char == "\\":
                current, some = current + text[self.at + 1 : self.at + 2].strip("\n"), True
                self.line += text[self.at + 1 : self.at + 2] == "\n"
                self.at += 2
            elif char in "$`":
                value = self._expanded("split" if split else "whole")
                if not isinstance(value, _Fields):
                    whole = not split or isinstance(value, _AsWritten)
                    value = [" ".join(_items(value))] if whole else _split(value)
                for number, part in enumerate(value):
                    if number:
                        fields_ += [current] if current or some else []
                        current, some = "", False
                    current += part
                    some |= isinstance(value, _Fields) and not isinstance(part, _Gap)
            else:
                plain = _PLAIN.match(text, self.at) if ends else None
                run = plain[0] if plain else char
                current, some = current + run, True
                self.at += len(run)
        word = [*fields_, current] if current or some else fields_
        self._count(word)
        return word

    def _of_braces(self, ends: str) -> list[str] | None:
        """The fields of ``{a,b}`` and ``{1..4}``; None where none stand in the word."""
        end = word_end(self.text, self.at, ends)
        raw = self.text[self.at : end]
        expanded = without_braces(raw)
        first = next(expanded)
        if first == raw:
            return None
        fields_: list[str] = []
        for part in chain((first,), expanded):
            inner = self.inside(part)
            inner.line = self.line
            fields_ += inner._word(ends)
            self.made, self.counted = inner.made, inner.counted
        self.line += raw.count("\n")
        self.at = end
        return fields_

    def quoted(self) -> list[str]:
        """What stands in double quotes: one field, or several where an array stands in it."""
        text, parts, current, blank = self.text, list[str](), "", False
        self.at += 1
        while self.at < len(text) and text[self.at] != '"':
            char = text[self.at]
            if char == "\\" and text[self.at + 1 : self.at + 2] in ("$", '"', "\\", "`", "\n"):
                current += text[self.at + 1].strip("\n")
                self.line += text[self.at + 1] == "\n"
                self.at += 2
            elif char in "$`":
                at, value = self.at, self._expanded("quoted")
                if text.endswith("[*]}", at, self.at):
                    value = " ".join(value) if isinstance(value, list) else value
                if isinstance(value, list) and len(value) > 1:
                    parts += [current + value[0], *value[1:-1]]
                    current = value[-1]
                else:
                    current += "".join(value)
                    blank |= value == []
                self._count(current)
            else:
                run = _WITHIN_QUOTES.match(text, self.at)
                piece = run[0] if run else char
                self.line += piece.count("\n")
                current += piece
                self.at += len(piece)
        self.at += 1
        return [] if blank and not parts and not current else [*parts, current]

    def _expanded(self, way: str) -> str | list[str]:
        """The value of what a dollar or a backquote begins; as written where it is not known.

        `way`: it stands in double quotes ("quoted"), in a word that is split ("split"), or in one
        that is not ("whole").
        """
        text, at = self.text, self.at
        if text[at] == "`":
            end = text.find("`", at + 1)
            return _AsWritten(self._up_to(len(text) if end < 0 else end + 1))
        if text.startswith("$((", at):
            end = text.find("))", at) if at < self.closes else -1
            self.closes = self.closes if end >= 0 else at
            if end < 0:
                return self._up_to(at + 3)
            closed = closing(text, at + 1, "(", ")") - 2
            end = closed if text.startswith("))", closed) else end
            inside = _BRACED.sub(lambda match: self._braced_number(match), text[at + 3 : end])
            written = self._up_to(end + 2)
            number = _arithmetic(inside, self.script.variables)
            return written if number is None else str(number)
        if (document := _SHOWN.match(text, at)) is not None:
            self._up_to(document.end())
            return self._document(int(document[1])).rstrip("\n")
        if text.startswith("$(", at):
            return _AsWritten(self._up_to(closing(text, at + 1, "(", ")")))
        if text.startswith("${", at):
            end = expansion_end(text, at, quoted=way == "quoted")
            inside = text[at + 2 : end - 1]
            written = self._up_to(end)
            value = self._braced(inside, way)
            return written if value is None else value
        match = _NAME.match(text, at + 1) or _PARAMETER.match(text, at + 1)
        if match is None:
            return self._up_to(at + 2)
        self.at = match.end()
        value = self._variable(match[0])
        if match[0] in ("@", "*"):
            return " ".join(_items(value)) if way == "quoted" and match[0] == "*" else value or []
        if value is None:
            return f"${match[0]}"
        return _element(value, 0) or ""  # of an array, bash takes the first

    def _braced_number(self, match: re.Match[str]) -> str:
        """A changed value inside arithmetic, which takes names and numbers alone."""
        value = self._changed(match[1]) if is_change(match[1]) else None
        return match[0] if value is None else value

    def _changed(self, inside: str) -> str | None:
        def value_of(name: str) -> str | None:
            value = self._variable(name)
            return _element(value, 0) if isinstance(value, list) else value

        return changed(inside, value_of, lambda text: _arithmetic(text, self.script.variables))

    def _variable(self, name: str) -> str | list[str] | None:
        """The value of a variable, or of what a function was called with; None: not known."""
        given = self.script.arguments
        if name in ("@", "*"):
            return given or []
        if given is None or not (name.isdecimal() or name == "#") or name == "0":
            return self.script.variables.get(name)
        if name == "#":
            return str(len(given))
        return given[int(name) - 1] if len(name) < 4 and int(name) <= len(given) else ""

    def _up_to(self, end: int) -> str:
        written = self.text[self.at : end]
        self.line += written.count("\n")
        self.at = max(end, self.at + 1)
        return written

    def _braced(self, inside: str, way: str) -> str | list[str] | None:
        """``${NAME}``, ``${NAME:-default}``, ``${ARRAY[@]}``, ``${#ARRAY[@]}``; else None."""
        if inside == "#":
            return self._variable("#")
        if inside[:1] == "#":
            value = self._braced(inside[1:], "quoted") if inside[1:2].isalpha() else None
            whole = inside[-3:] in ("[@]", "[*]")
            return (
                str(len(value)) if isinstance(value, list) is whole and value is not None else None
            )
        if is_change(inside):
            return self._changed(inside)
        fullmatch = re.fullmatch(
            r"(\w+|@|\*)(?:\[([^\]]{1,100})\])?(?:(:?[-=+])(.*))?", inside, re.S
        )
        if fullmatch is None:
            return None
        name, index, form, other = fullmatch.groups()
        known = self._variable(name)
        value = known
        if name in ("@", "*") or (known is not None and index in ("@", "*")):
            value = _elements(known or [])
        elif index and (table := self.script.variables.get(self._key(name, index))) is not None:
            value = table
        elif known is not None:
            place = _arithmetic(index, self.script.variables) if index else 0
            if place is None:
                return None
            value = _element(known, place)
        if form is None:
            value = "" if value is None and known is not None else value
            joined = name == "*" and way == "quoted"
            return " ".join(_items(value)) if joined else value
        if "+" in form:
            return "" if value is None or (":" in form and not value) else self._inner(other, way)
        if value is None or (":" in form and not value):
            value = self._inner(other, way)
            if "=" in form:
                value = " ".join(value)  # which is split like that of any variable
                if not self.forks.skipped:
                    self.script.variables[name] = value
        return value

    def _inner(self, text: str, way: str) -> _Fields:
        """The words of a default, which may hold variables and quotes of its own."""
        if self.depth >= _MOST_DEPTH:
            return _Fields([text])
        quoted = way == "quoted"
        text = '"' + text.replace('"', "") + '"' if quoted else text
        inner, fields_ = self.inside(text), _Fields()
        if way == "split":
            fields_ += _parted(text[:1])
            while inner.at < len(text):
                if text[inner.at] in _BLANKS:
                    inner.at += 1
                else:
                    fields_ += inner._word(_BLANKS)
            fields_ += _parted(text[-1:]) if text[-2:-1] != "\\" else []
        else:
            fields_ += inner.quoted() if quoted else inner._word("", split=False)
        self.made, self.counted = inner.made, inner.counted
        return fields_


_BRACED = re.compile(r"\$\{([^{}]{1,100})\}")


def _quotient(dividend: int, divisor: int) -> int:
    """Bash cuts towards zero."""
    whole = abs(dividend) // abs(divisor)
    return whole if (dividend < 0) == (divisor < 0) else -whole


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda dividend, divisor: dividend - divisor * _quotient(dividend, divisor),
}


def _arithmetic(text: str, variables: dict[str, str | list[str]]) -> int | None:
    """Whole-number arithmetic on variables; None where anything in it is not known.

    >>> _arithmetic("$NNODES * 8 / (TP*2)", {"NNODES": "4", "TP": "2"})
    8
    """

    def value(found: re.Match[str]) -> str:
        variable = variables.get(found[1])
        return variable if isinstance(variable, str) and len(variable) < 20 else "unknown"

    if len(text) > 200:
        return None
    filled = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", value, text.replace("$((", "(("))
    try:
        return _number(ast.parse(filled.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _number(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**15:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        found = _OPERATORS[type(node.op)](_number(node.left), _number(node.right))
        if abs(found) < 10**15:
            return int(found)
    raise ValueError(type(node).__name__)
