"""What a batch script does from top to bottom: the commands that are reached, their words expanded.
A condition that the text does not decide is remembered with the commands below it. A function is
read where it is called, its arguments stay unknown.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from itertools import pairwise, takewhile

from fsdpkit.scheduling.batch_file.bash import BashError, Block, Node, Simple
from fsdpkit.scheduling.batch_file.expansion import Expander, is_of_node

_MOST_STEPS = 5_000
_MOST_CALLS = 20
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?(\+?)=(.*)", re.ASCII | re.DOTALL)
_DECLARES = ("export", "declare", "typeset", "readonly", "local")
_SHELL = re.compile(r"(.*/)?(ba|da|k|z)?sh", re.DOTALL)
_TEXT_FOLLOWS = re.compile(r"-\w*c\w*", re.ASCII)
_OF_SHELL = ("variables", "directory", "left", "exported", "shells")
"""What a subshell changes for itself alone."""
_COMPARES = ("-eq", "-ne", "-lt", "-le", "-gt", "-ge")
_NUMBER = re.compile(r"[+-]?\d{1,15}", re.ASCII)
_WHOLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?", re.ASCII)
_ALWAYS_SET = re.compile(
    r"\$\{?SLURM_(JOB_?ID|JOB_NODELIST|NODELIST|JOB_NAME|N?NODES|SUBMIT_DIR)\b"
)

_Bodies = Sequence[Sequence[Node]]


@dataclass(frozen=True)
class Step:
    """One command that is reached. `within`: loops, and conditions that the text leaves open."""

    command: Simple
    words: tuple[str, ...]
    assigned: tuple[tuple[str, str], ...]
    """Names and values; of an array, its first item."""
    exports: frozenset[str]
    """Of the names, those that programs see."""
    within: tuple[Block, ...]
    directory: str = ""
    """In which it is run, if that is known."""
    piped: bool = False
    """Reads the output of the command before it."""
    shells: tuple[Block, ...] = ()
    """Subshells that it is in; what it sets ends with them."""


class Walk(Expander):
    """Steps in their order."""

    def __init__(
        self, slurm: Mapping[str, str], environ: Mapping[str, str], directory: str
    ) -> None:
        super().__init__(slurm, environ, directory)
        self.left = directory
        """Where `cd -` leads."""
        self.functions: dict[str, Block] = {}
        self.called = 0
        self.steps: list[Step] = []
        self.inners: dict[str, list[Step]] = {}
        self.skipped: list[Block] = []
        self.set_here: set[str] = set()
        """Names of all variables that the script sets anywhere."""
        self.exported = {*environ}
        """Names; the empty one stands for all, after `set -a`."""
        self.shells: tuple[Block, ...] = ()

    def enter(self, directory: str) -> None:
        """`cd`, by a path that is known, or back."""
        before = self.directory
        if directory == "-":
            self.directory = self.left
        elif not self.unknowns(directory):
            self.directory = os.path.normpath(os.path.join(self.directory, directory))
        self.left = before

    def inner(self, text: str) -> list[Step]:
        """Of a text that a shell gets as its argument, read where it first does. Raises
        BashError."""
        if text not in self.inners:
            outer, self.steps = self.steps, []
            try:
                with self._own_shell():
                    self.walk(self.parsed(text))
                self.inners[text] = self.steps
            finally:
                self.steps = outer
        return self.inners[text]

    @contextmanager
    def _own_shell(self) -> Iterator[None]:
        kept = {name: copy(getattr(self, name)) for name in _OF_SHELL}
        try:
            yield
        finally:
            vars(self).update(kept)

    def walk(self, nodes: Sequence[Node], within: tuple[Block, ...] = ()) -> None:
        self.set_here |= {*_assigned_in(nodes)}
        joined = ""
        held: bool | None = True
        for node in nodes:
            if len(self.steps) > _MOST_STEPS:
                raise BashError("the script has too many commands to be followed")
            reached: bool | None = True
            if joined in ("&&", "||"):
                reached = None if held is None else held == (joined == "&&")
            around = within
            if reached is None:
                around = (*within, Block(joined, node.line, node.text, ()))
            piped = joined in ("|", "|&")
            joined = node.operator if isinstance(node, Simple) else ""
            if reached is False:
                continue
            held = True
            if isinstance(node, Block):
                self._block(node, around)
            elif _is_test(node.words):
                held = self._test(_tested_words(node))
            else:
                self._step(node, around, piped)

    def _step(self, command: Simple, within: tuple[Block, ...], piped: bool) -> None:
        words = list(command.words)
        assigned: list[tuple[str, str]] = []
        before = dict(self.variables)
        while words and (found := _ASSIGNMENT.fullmatch(words[0])):
            assigned.append((found[1], self._assign(found)))
            words.pop(0)
        if words and words[0] in _DECLARES:
            for word in words[1:]:
                if found := _ASSIGNMENT.fullmatch(word):
                    assigned.append((found[1], self._assign(found)))
                elif (value := self.text_of(word)) is not None:
                    assigned.append((word, value))
            if words[0] == "export" or "-x" in words[1:]:
                self.exported |= {re.split(r"[+=[]", word)[0] for word in words[1:]}
            words = []
        elif words:
            self.variables = before  # what stands before a command is that command's own
        fields = self.fields(words)
        if fields[:1] in (("cd",), ("pushd",)) and len(fields) == 2:
            self.enter(fields[1])
        elif fields == ("popd",):
            self.enter("-")
        elif fields[:1] == ("set",):
            for word, name in pairwise((*takewhile("--".__ne__, fields), "")):
                if re.fullmatch(r"[-+]\w*(a\w*|o)", word) and ("a" in word or name == "allexport"):
                    (self.exported.add if word[0] == "-" else self.exported.discard)("")
        elif fields[:1] == ("unset",) and not within:
            self.exported -= {*fields}
            self.variables |= dict.fromkeys(fields[1:])
        elif any(map(_SHELL.fullmatch, fields)):
            for word, text in pairwise(fields):
                if _TEXT_FOLLOWS.fullmatch(word):
                    with suppress(BashError):
                        self.inner(text)
        seen = [name for name, _ in assigned if {name, ""} & self.exported or is_of_node(name)]
        place = (within, self.directory, piped, self.shells)
        self.steps.append(Step(command, fields, tuple(assigned), frozenset(seen), *place))
        if fields and fields[0] in self.functions and self.called < _MOST_CALLS:
            self.called += 1
            self.walk(self.functions[fields[0]].sections[0], within)

    def _assign(self, found: re.Match[str]) -> str:
        if found[2]:
            self.variables[found[1]] = self.unknown(f"${found[1]}")
            return self.unknown(f"{found[1]}[…]")
        self.assign(found[1], found[4], appended=bool(found[3]))
        return self.text_of(found[1]) or ""

    def _block(self, block: Block, within: tuple[Block, ...]) -> None:
        if block.kind == "function":
            self.functions[block.name] = block
        elif block.kind == "{":
            self.walk(block.sections[0], within)
        elif block.kind == "(":
            with self._own_shell():
                self.shells = (*self.shells, block)
                self.walk(block.sections[0], within)
        elif block.kind == "if":
            self._if(block, within)
        elif block.kind == "case":
            self._any_of(block, block.sections, within)
        else:
            self._forget(block.sections)
            if block.kind == "for":
                self.variables[block.name] = self.unknown(f"${block.name}")
            else:
                self._asks(block.sections[0], (*within, block))
            self._any_of(block, block.sections[1:], within)

    def _if(self, block: Block, within: tuple[Block, ...]) -> None:
        conditions, bodies = [*block.sections[::2]], [*block.sections[1::2]]
        if len(conditions) > len(bodies):
            bodies.append(conditions.pop())
        held: bool | None = False
        for number, body in enumerate(bodies):
            if not held:
                asked = conditions[number] if number < len(conditions) else ()
                self._asks(asked, (*within, block) if number else within)
                held = self._holds(asked) if asked else True
                if held is None:
                    self._any_of(block, bodies[number:], within)
                    return
                if held:
                    self.walk(body, within)
                    continue
            self._never(block, body)

    def _asks(self, condition: Sequence[Node], within: tuple[Block, ...]) -> None:
        """Commands that are run for their status."""
        self.walk([node for node in condition if isinstance(node, Simple)], within)

    def _any_of(self, block: Block, bodies: _Bodies, within: tuple[Block, ...]) -> None:
        """Bodies of which one or none is run."""
        before, directory = dict(self.variables), self.directory
        for body in bodies:
            self.variables, self.directory = dict(before), directory
            self.walk(body, (*within, block))
        self.variables, self.directory = before, directory
        self._forget(bodies)

    def _never(self, block: Block, body: Sequence[Node]) -> None:
        """A body that is not run: what it alone would set is not set."""
        self.skipped.append(block)
        for name in _assigned_in(body):
            if self.value_of(name) is None and not name.startswith("SLURM_"):
                self.variables[name] = None

    def _forget(self, bodies: _Bodies) -> None:
        for body in bodies:
            for name in _assigned_in(body):
                self.variables[name] = self.unknown(f"${name}")

    def _holds(self, condition: Sequence[Node]) -> bool | None:
        """Whether a condition holds; None: the text does not decide it."""
        words: list[str] = []
        for node in condition:
            if not isinstance(node, Simple) or not _is_test(node.words):
                return None
            if words and words[-1] not in ("&&", "||"):  # of several commands the last decides
                return None
            words += [*_tested_words(node), node.operator]
        return self._test([word for word in words if word not in ("", ";")])

    def _test(self, words: Sequence[str]) -> bool | None:
        joins = [word for word in words if word in ("&&", "||")]
        if len({*joins}) > 1:
            return None
        if joins:
            at = words.index(joins[0])
            sides = {self._test(words[:at]), self._test(words[at + 1 :])}
            decisive = joins[0] == "||"
            return decisive if decisive in sides else None if None in sides else not decisive
        if words and words[0] == "!":
            result = self._test(words[1:])
            return None if result is None else not result
        texts = [self.joined(word) for word in words]
        if len(texts) == 2 and texts[0] in ("-z", "-n"):
            empty = self._is_empty(texts[1])
            return None if empty is None else empty == (texts[0] == "-z")
        if len(texts) != 3 or self.unknowns("".join(texts)):
            return None
        left, sign, right = texts
        if sign in ("=", "==", "!="):
            return (left == right) == (sign != "!=")
        if sign not in _COMPARES or not (_NUMBER.fullmatch(left) and _NUMBER.fullmatch(right)):
            return None
        return bool(getattr(operator, sign[1:])(int(left), int(right)))

    def _is_empty(self, text: str) -> bool | None:
        if not (unknown := self.unknowns(text)):
            return not text
        if len(text) > len(unknown) or any(_ALWAYS_SET.match(raw) for raw in unknown):
            return False
        names = [_WHOLE.fullmatch(raw) for raw in unknown]
        unset = all(name is not None and self._is_unset(name[1]) for name in names)
        return True if unset else None

    def _is_unset(self, name: str) -> bool:
        """Whether nothing sets a variable: not this script, not the person, not Slurm."""
        return name not in self.set_here and not is_of_node(name)


def _is_test(words: Sequence[str]) -> bool:
    return bool(words) and words[0] in ("[", "[[", "test")


def _tested_words(command: Simple) -> Sequence[str]:
    return command.words[1:] if command.words[0] == "test" else command.words[1:-1]


def _assigned_in(nodes: Iterable[Node]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Simple):
            for word in node.words:
                if found := _ASSIGNMENT.fullmatch(word):
                    yield found[1]
                elif node.words[0] not in _DECLARES:
                    break
        else:
            for section in node.sections:
                yield from _assigned_in(section)
