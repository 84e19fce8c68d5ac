"""Releases of training frameworks: which one that is known stands nearest to one that is asked for.

A word of software is a family, a release and perhaps a variant: ``megatron-bridge-26.04.01``,
``torchtitan-2024.12-compile``. What a release does is taken to hold until the notes of a later one
say otherwise, so that an unknown release does as the newest known one before it; one from before
all of them does as the oldest, one whose number is no date as the newest. A later word never takes
an earlier release than an earlier word does.
"""

from __future__ import annotations

import re
from dataclasses import field, replace

from simulator import catalogue
from simulator.errors import InputError, did_you_mean
from simulator.files import build, read_toml, record
from simulator.hardware.accelerator import Platform
from simulator.records import dataclass

_WORD = re.compile(
    r"(?P<family>[a-z]\w*(?:-[a-z]\w*?)*)"
    r"-(?P<release>v?[0-9]+(?:\.[0-9]+)*[a-z]?|HEAD)"
    r"(?:-(?P<variant>[a-z]+))?"
)
_YEARS = 2000
"""Numbers of releases from here on are dates."""

_END_OF_YEAR = 99
"""The month of a release that names a year alone, as asked for: all of it is meant."""

_NEWEST = (10**9,)
"""Where HEAD stands: after every release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A word of software, taken apart."""

    family: str
    number: tuple[int, ...]
    """Its numbers, a letter behind them as one more."""
    variant: str = ""

    @property
    def months(self) -> int | None:
        """Months since the year 0 where the number is a date (``26.04``, ``2024.12``)."""
        if len(self.number) < 2 or not 1 <= self.number[1] <= 12:
            return None
        year = self.number[0] + (2000 if self.number[0] < 100 else 0)
        return 12 * year + self.number[1] if 2015 <= year < 2100 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The known release that stands for a word of software."""

    word: str
    """As it was asked for."""
    known: str
    """The word that stands for it; the same where it is known."""
    profile: str
    """The software profile of that."""
    months: int | None = 0
    """Months from one to the other; None where a release is no date."""
    framework: str = ""
    """The family of the word where `known` is of another framework; none: it is of the same."""

    @property
    def text(self) -> str | None:
        """``megatron-bridge-26.04.01 for megatron-bridge-26.06``; None where the word is known."""
        return None if self.word == self.known else f"{self.known} for {self.word}"


def parsed(word: str) -> Release | None:
    """Take a word apart; None if it names no release.

    Examples
    --------
    >>> parsed("megatron-bridge-26.04.01").number
    (26, 4, 1)
    >>> parsed("megatron-deepspeed-2022.02a-async").variant, parsed("mlperf-nemo-v5.1").number
    ('async', (5, 1))
    >>> parsed("megatron-core") is None
    True
    """
    fullmatch = _WORD.fullmatch(word)
    if fullmatch is None:
        return None
    release = fullmatch["release"]
    number = _NEWEST if release == "HEAD" else tuple(int(x) for x in re.findall("[0-9]+", release))
    letter = (ord(release[-1]) - ord("a") + 1,) if release[-1].islower() else ()
    return Release(
        family=fullmatch["family"], number=number + letter, variant=fullmatch["variant"] or ""
    )


@record
class Rounds:
    """Releases that are rounds of a competition, two a year and more: when they were published."""

    year: int
    """Of round 0."""
    months: tuple[int, ...]
    """Of the rounds ``.0``, ``.1`` ... of a year."""


class UnknownFamily(InputError):
    """A word of software of whose family nothing is known."""


@record
class Releases:
    """Words of software that are known: ``hardware_profiles/releases.toml``."""

    words: dict[str, str]
    """Software profile by word."""
    families: dict[str, str]
    """A family -> the one that its releases belong to as well, or a profile that serves all."""
    rounds: dict[str, Rounds] = field(default_factory=dict)
    """Families whose releases are rounds."""
    variants: dict[str, str] = field(default_factory=dict)
    """The variant of a family that a word means which names none, or one that nobody knows."""
    stand_ins: dict[str, str] = field(default_factory=dict)
    """A framework that has no profile -> the family or profile of another that stands in for it."""
    usual: dict[Platform, str] = field(default_factory=dict)
    """Software that a scenario takes where it names none, by the accelerator's platform."""
    also: tuple[str, ...] = ()
    """Profiles under which an answer is priced again: what a team may run in place of another."""
    instead: tuple[str, ...] = ()
    """Profiles that are tried in place of another where nothing fits."""
    beside: dict[str, str] = field(default_factory=dict)
    """Clusters on which a plan is searched beside its own, and the accelerator of each."""
    fallback: str = ""
    """Profile that stands for words of unknown families; none: they are refused."""

    def nearest(self, word: str, *, where: str) -> Nearest:
        """Find the release that stands for a word of software.

        Parameters
        ----------
        word : str
            A known word, a software profile, or an unknown release of a family that is known.
        where : str
            What the message of an error begins with.

        Raises
        ------
        UnknownFamily
            If nothing of its family is known; the message lists the families.
        """
        if word in self.words:  # before profiles are looked for: every row of a table asks
            return Nearest(word=word, known=word, profile=self.words[word])
        known = {name: name for name in catalogue.names("software")} | self.words
        if word in known or word.endswith(".toml"):
            return Nearest(word=word, known=word, profile=known.get(word, word))
        plain = _plain(word)
        if plain != word and plain in known:
            return Nearest(word=word, known=plain, profile=known[plain])
        asked = parsed(word) or parsed(plain)
        own = asked.family if asked else plain
        framework = own if own in self.stand_ins else ""
        lineage = self._lineage(own)
        releases = self._releases(known)
        alike = {name: x for name, x in releases.items() if x.family in lineage}
        if alike:
            nearest = self._latest_before(word, asked, alike, known, lineage)
            return replace(nearest, framework=framework)
        if lineage[-1] in known:
            return _undated(word, known[lineage[-1]], known[lineage[-1]], framework)
        if self.fallback:
            return _undated(word, self.fallback, self.fallback, own)
        families = sorted({x.family for x in releases.values()} | {*self.families, *self.stand_ins})
        names = sorted({*known, *families})  # a trainer spelled like another is another
        near = [name for name in names if name[:4] == word[:4].lower()]
        hint = did_you_mean(word, near) if near else f" (known: {', '.join(names)})"
        problem = f"{where}: unknown software {word!r}{hint}"
        if asked:
            problem += (
                f"; an unknown release of {', '.join(families)} takes the nearest known;"
                " --software NAME chooses a profile"
            )
        raise UnknownFamily(problem)

    def _lineage(self, family: str) -> list[str]:
        """A family, the one that stands in for it, and those that their releases belong to."""
        lineage = [family]
        while following := self.stand_ins.get(lineage[-1], self.families.get(lineage[-1])):
            lineage.append(following)
        return lineage

    def _releases(self, known: dict[str, str]) -> dict[str, Release]:
        """Words that are releases, and profiles named by a month."""
        releases = {name: release for name in known if (release := parsed(name)) is not None}
        return {
            name: release
            for name, release in releases.items()
            if name in self.words or release.months is not None
        }

    def _date(self, release: Release, *, rest: int = 0) -> tuple[int, ...] | None:
        """Year, month and what follows; None where the number is no date.

        `rest` is the month of a release that names a year alone.
        """
        number = release.number
        if number == _NEWEST:
            return _NEWEST
        if (rounds := self.rounds.get(release.family)) is not None:
            which = min(number[1] if len(number) > 1 else 0, len(rounds.months) - 1)
            return rounds.year + number[0], rounds.months[which]
        if (months := release.months) is not None:
            return (months - 1) // 12, (months - 1) % 12 + 1, *number[2:]
        return (number[0], rest) if number[0] >= _YEARS else None

    def _latest_before(
        self,
        word: str,
        asked: Release | None,
        alike: dict[str, Release],
        known: dict[str, str],
        lineage: list[str],
    ) -> Nearest:
        """Take the newest known release that is not newer than the one asked for, else the oldest.

        Of the variant asked for or, where it has none so early, of no variant.
        """
        dated = {name: self._date(x) for name, x in alike.items()}
        usual = next((self.variants[x] for x in lineage if x in self.variants), "")
        variants = {release.variant for release in alike.values()}
        variant = asked.variant if asked and asked.variant in variants - {""} else usual
        date = self._date(asked, rest=_END_OF_YEAR) if asked else None

        def place(name: str) -> tuple[object, ...]:
            family = alike[name].family  # of two of a month the family's own
            return dated[name] or (0,), -lineage.index(family), name

        for some in (variant, ""):
            order = sorted((x for x in alike if alike[x].variant == some), key=place)
            if date is None:  # not to be compared: the family's own newest, or its heir's
                first = min((lineage.index(alike[name].family) for name in order), default=0)
                order = [name for name in order if alike[name].family == lineage[first]]
            before = [x for x in order if date is None or (dated[x] or (0,)) <= date]
            if before:
                break
        else:
            eldest = [x for x in alike if alike[x].variant in (variant, "")] or list(alike)
            before = [min(eldest, key=place)]
        newest = before[-1]
        here, there = (_months(when) for when in (dated[newest], date))
        months = None if here is None or there is None else abs(there - here)
        return Nearest(word=word, known=newest, profile=known[newest], months=months)


def _months(date: tuple[int, ...] | None) -> int | None:
    """Months since the year 0 of a date that has a month."""
    if date is None or len(date) < 2 or not 1 <= date[1] <= 12:
        return None
    return 12 * date[0] + date[1]


def _undated(word: str, known: str, profile: str, framework: str) -> Nearest:
    """What stands for a word whose release cannot be compared."""
    return Nearest(word=word, known=known, profile=profile, months=None, framework=framework)


def _plain(word: str) -> str:
    """A word as tables of others write it, in ours.

    >>> _plain("Megatron-LM core_r0.17"), _plain("torchtitan v0.2.1"), _plain("NeMo 25.04")
    ('megatron-lm-0.17', 'torchtitan-0.2.1', 'nemo-25.04')
    """
    text = re.sub(r"[\s/@:=]+", "-", word.strip().lower())[:200]
    return re.sub(r"-(?:core_r|core-r|release-|r|v)(?=\d)", "-", text)


_NO_STACK = "plain-ddp"
"""A base that only lends its figures: what stands on it is a framework of its own."""


def stack_of(profile: str) -> str:
    """Name the framework of a software profile, whatever its release: the root of its bases.

    A profile that takes another framework's figures names its own (``framework``).

    >>> stack_of("megatron-bridge-26.04"), stack_of("deepspeed")
    ('megatron-core', 'deepspeed')
    """
    name = profile
    while catalogue.has("software", name):
        profile_keys = read_toml(catalogue.find("software", name))
        base = profile_keys.get("base")
        if framework := profile_keys.get("framework"):
            return str(framework)
        if not isinstance(base, str) or base == _NO_STACK:
            return name
        name = base
    return name


def load_releases() -> Releases:
    """Read ``hardware_profiles/releases.toml``."""
    path = catalogue.folder("hardware_profiles") / "releases.toml"
    return build(Releases, read_toml(path), where=str(path))
