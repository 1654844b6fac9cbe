"""Command lines taken apart: which options of a program take a value, and where its own command
begins. What programs there are, and their options: programs.toml.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fsdpkit.config.sbatch_spellings import LETTERS, LONG_OPTIONS
from fsdpkit.scheduling.batch_file.expansion import is_unknown

WrittenOption = tuple[str, str | None, str]
"""Its name, its value (None: a flag), and both as they stood."""


@dataclass(frozen=True)
class Split:
    """A command line: its options in order, and what they are followed by."""

    options: tuple[WrittenOption, ...]
    rest: tuple[str, ...]

    def last(self, *names: str) -> str | None:
        """The value of the last of these options; "" for a flag, None if there is none."""
        found = [value or "" for name, value, _ in self.options if name in names]
        return found[-1] if found else None


class Grammar(msgspec.Struct, frozen=True):
    """How a program reads its options; `_` and `-` are the same in an option's name."""

    flags: frozenset[str]
    letters: dict[str, str]
    shortened: Collection[str] = ()

    def split(
        self, words: Sequence[str], starts: Callable[[str], bool] = lambda word: False
    ) -> Split:
        """Options up to the first word that is none, or `--`. starts: whether a word is a program
        that can follow; before one, a word that is unknown as a whole is an option without name."""
        options: list[WrittenOption] = []
        rest = list(words)
        while rest and rest[0] != "-":
            if is_unknown(rest[0]) and any(map(starts, rest[1:])):
                options.append(("", None, rest.pop(0)))
                continue
            if not rest[0].startswith("-"):
                break
            word = rest.pop(0)
            if word == "--":
                break
            if word.startswith("--"):
                options.append(self._long(word, rest))
            else:
                options.extend(self._short(word, rest))
        return Split(tuple(options), tuple(rest))

    def _long(self, word: str, rest: list[str]) -> WrittenOption:
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        whole = [each for each in self.shortened if each.startswith(name)]
        name = whole[0] if len(whole) == 1 else name
        if equals:
            return name, value, word
        if name in self.flags or not rest:
            return name, None, word
        value = rest.pop(0)
        return name, value, f"{word} {value}"

    def _short(self, word: str, rest: list[str]) -> Iterator[WrittenOption]:
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            name = self.letters.get(letter, letter)
            if name in self.flags and not letters.isdigit():
                yield name, None, f"-{letter}"
                continue
            if letters:  # such as -N2, and -K1, a flag that may have a value
                yield name, letters.removeprefix("="), f"-{letter}{letters}"
            elif rest:
                value = rest.pop(0)
                yield name, value, f"-{letter} {value}"
            else:
                yield name, None, f"-{letter}"
            return


class Launcher(msgspec.Struct, frozen=True):
    """A program that starts the ranks of a node."""

    called: tuple[str, ...]
    """The name of the program, or of Python's module."""
    processes: str
    nodes: str
    grammar: Grammar
    without: str | None = None
    total: bool = False


class _NotNeeded(msgspec.Struct, frozen=True):
    why: str
    options: tuple[str, ...]


class _Programs(msgspec.Struct, frozen=True):
    srun: Grammar
    launchers: dict[str, Launcher]
    not_needed: tuple[_NotNeeded, ...]
    by_variable: dict[str, str]


PROGRAMS = msgspec.toml.decode(
    Path(__file__).with_name("programs.toml").read_bytes(), type=_Programs
)
_LETTERS = LETTERS | {"I": "immediate", "Q": "quiet", "V": "version", "h": "help", "v": "verbose"}
SBATCH = Grammar(PROGRAMS.srun.flags | {"wait"}, _LETTERS, LONG_OPTIONS)
SRUN = Grammar(PROGRAMS.srun.flags, _LETTERS | PROGRAMS.srun.letters, LONG_OPTIONS)
