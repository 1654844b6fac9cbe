"""What a batch script does from top to bottom, as far as its text alone decides.

A variable is known if the text assigns it a value without any unknown part, if Slurm derives it
from the `#SBATCH` lines, or if it is in the environment of the person: sbatch would take it from
there as well. Every other expansion stays in the word as an *unknown*: one character of a private
plane, which no splitting tears apart and `Walk.shown` writes as it stood.
"""

from __future__ import annotations

import ast
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from fsdpkit.scheduling.batch_file.bash import (
    BashError,
    Block,
    Branch,
    Node,
    Simple,
    parse,
    skip_nested,
    skip_quoted,
)

_FIRST = 0xF0000
_MOST_UNKNOWN = 10_000
_LONGEST = 65_536
_MOST_STEPS = 5_000
_MOST_CALLS = 20
_UNKNOWN = re.compile("[\U000f0000-\U000fffff]")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?(\+?)=(.*)", re.ASCII | re.DOTALL)
_DECLARES = ("export", "declare", "typeset", "readonly", "local")
_SPLITS = re.compile(r"[ \t\n]+")
_EXPANDED = tuple("{(@*#?!-$0123456789")
"""What makes a `$` before it more than a dollar sign, besides a name."""
_ALL_ITEMS = re.compile(r'"\$(?:@|\{(?:@|\w+\[@\])\})"')
_ABOUT_PATHS = re.compile(r"\s*(pwd|(?:dir|base)name(?=\s))\s*([^\s;|&]*|\"[^\"]*\")\s*")
_NUMBER = re.compile(r"[+-]?\d{1,15}", re.ASCII)
_BRACES = re.compile(r"\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}")
_WHOLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?", re.ASCII)
_OF_NODE = re.compile(r"(SLURM|CUDA|ROCR|HIP|LMOD|EB)|(TMPDIR|HOSTNAME)$|.*(_HOME|_ROOT|PATH)$")
"""Variables that Slurm, a module or the node itself may set."""
ALWAYS_SET = re.compile(r"\$\{?SLURM_(JOB_?ID|JOB_NODELIST|NODELIST|JOB_NAME|N?NODES|SUBMIT_DIR)\b")


@dataclass(frozen=True)
class Value:
    """Of a variable: its text, or the items of an array; and the variables it was made of."""

    text: str
    items: tuple[str, ...] | None = None
    names: frozenset[str] = frozenset()
    arguments: bool = False
    """Made of what stands behind the script on sbatch's command line, so empty without it."""


@dataclass(frozen=True)
class Step:
    """One command that is reached. `within`: the compound commands around it whose condition the
    text does not decide, and loops."""

    command: Simple
    words: tuple[str, ...]
    assigned: tuple[tuple[str, Value], ...]
    exports: bool
    names: frozenset[str]
    within: tuple[Block, ...]
    directory: str = ""
    """In which it is run, if that is known."""
    piped: bool = False
    """Reads the output of the command before it."""


@dataclass
class _Reading:
    """What one expansion has met."""

    names: set[str] = field(default_factory=set)
    arguments: bool = False


class Walk:
    """Steps in their order. `slurm`: Slurm's variables by name; `environ`: the person's;
    `directory`: where the script is submitted from."""

    def __init__(
        self, slurm: Mapping[str, str], environ: Mapping[str, str], directory: str
    ) -> None:
        self.slurm, self.environ, self.directory = slurm, environ, directory
        self.variables: dict[str, Value | None] = {}
        self.functions: dict[str, Block] = {}
        self.raw: list[str] = []
        self.steps: list[Step] = []
        self.skipped: list[tuple[Block, str]] = []
        self.arguments: tuple[str, ...] | None = None
        """Those of the function that is being called; None: outside of one."""
        self.called = 0
        self.set_here: set[str] = set()
        """Names of all variables that the script sets anywhere."""

    # ---- Unknown parts ------------------------------------------------------------------------

    def unknown(self, raw: str) -> str:
        if len(self.raw) >= _MOST_UNKNOWN:
            raise BashError("the script has too many expansions to be followed")
        self.raw.append(raw)
        return chr(_FIRST + len(self.raw) - 1)

    def shown(self, text: str) -> str:
        """The text with its unknown parts as they were written."""
        return _UNKNOWN.sub(lambda found: self.raw[ord(found.group()) - _FIRST], text)

    def unknowns(self, text: str) -> list[str]:
        """The unknown parts of a text as they were written."""
        return [self.raw[ord(char) - _FIRST] for char in self.marks(text)]

    def marks(self, text: str) -> list[str]:
        """The characters that stand for them."""
        return _UNKNOWN.findall(text)

    # ---- Variables ----------------------------------------------------------------------------

    def value_of(self, name: str) -> Value | None:
        """None: set nowhere that is known."""
        if name == "PWD":
            return Value(self.directory)
        if name in self.variables:
            return self.variables[name] or Value("")
        if name in self.slurm:
            return Value(self.slurm[name])
        return Value(self.environ[name]) if name in self.environ else None

    def assign(self, name: str, raw: str, appended: bool = False) -> Value:
        reading = _Reading()
        if raw.startswith("("):
            inner = raw[1:-1]
            words = [w for node in parse(inner) for w in getattr(node, "words", ())]
            items = tuple(f for word in words for f in self._fields(word, reading))
            before = self.variables.get(name)
            if appended and before is not None:
                items = (*(before.items or (before.text,)), *items)
            value = Value(items[0] if items else "", items)
        else:
            text = self._joined(raw, reading)
            before = self.value_of(name) if appended else None
            value = Value((before.text if before else "") + text)
        if len(value.text) > _LONGEST or sum(map(len, value.items or ())) > _LONGEST:
            value = Value(self.unknown(f"${name}"))
        value = replace(value, names=frozenset(reading.names), arguments=reading.arguments)
        self.variables[name] = value
        return value

    # ---- Expansion ----------------------------------------------------------------------------

    def fields(self, words: Iterable[str]) -> tuple[tuple[str, ...], frozenset[str], bool]:
        """The words after expansion; of which variables; whether of the script's arguments."""
        reading = _Reading()
        found = tuple(field for word in words for field in self._fields(word, reading))
        return found, frozenset(reading.names), reading.arguments

    def _joined(self, raw: str, reading: _Reading) -> str:
        """As on the right of an assignment: one text, nothing split."""
        return "".join(text for text, _ in self._pieces(raw, reading, tilde=True))

    def _fields(self, raw: str, reading: _Reading) -> list[str]:
        fields: list[str] = []
        current: str | None = None
        for text, quoted in self._pieces(raw, reading, tilde=True):
            if quoted is None:  # an item of an array, in a field of its own
                fields.extend([current] if current is not None else [])
                current = text
                continue
            if quoted:
                current = (current or "") + text
                continue
            first, *rest = _SPLITS.split(text)
            if first:
                current = (current or "") + first
            for piece in rest:
                fields.extend([current] if current is not None else [])
                current = piece or None
        return [*fields, *([current] if current is not None else [])]

    def _pieces(
        self, raw: str, reading: _Reading, *, tilde: bool = False
    ) -> Iterator[tuple[str, bool | None]]:
        """Pieces of a word, each with whether it is safe from splitting."""
        at = 0
        if tilde and (raw == "~" or raw.startswith("~/")):
            yield self._parameter("HOME", "~", reading)[0], True
            at = 1
        while at < len(raw):
            end = skip_quoted(raw, at, 0)
            piece, char = raw[at:end], raw[at]
            if char == "'":
                yield piece[1:-1], True
            elif char == '"':
                if not _ALL_ITEMS.fullmatch(piece):
                    yield "", True
                yield from self._quoted(piece[1:-1], reading)
            elif char == "\\":
                yield ("" if piece == "\\\n" else piece[1:]), True
            elif char == "$" and (found := _NAME.match(raw, at + 1)):
                end = found.end()
                text = self._parameter(found.group(), raw[at:end], reading)[0]
                yield text, False
            elif char == "$" and raw[at + 1 : at + 2] == "'":
                yield piece[2:-1] if "\\" not in piece else self.unknown(piece), True
            elif char == "`" or (char == "$" and raw[at + 1 : at + 2] in _EXPANDED):
                end = max(end, at + 2)
                yield from self._expansion(raw[at:end], reading, quoted=False)
            elif char == "{" and (found := _BRACES.match(raw, at)):
                end = found.end()
                yield self.unknown(found.group()), True
            elif char in "*?":
                yield self.unknown(char), True
            elif raw.startswith(("<(", ">("), at):
                end = skip_nested(raw, at + 2, ")", 0)
                yield self.unknown(raw[at:end]), True
            else:
                yield char, True
            at = end

    def _quoted(self, raw: str, reading: _Reading) -> Iterator[tuple[str, bool | None]]:
        """Inside double quotes."""
        at = 0
        while at < len(raw):
            char, following = raw[at], raw[at + 1 : at + 2]
            if char == "\\" and following in ("$", "`", '"', "\\", "\n"):
                yield ("" if following == "\n" else following), True
                at += 2
            elif char == "$" and (found := _NAME.match(raw, at + 1)):
                yield self._parameter(found.group(), found.group(), reading)[0], True
                at = found.end()
            elif char == "`" or (char == "$" and following in _EXPANDED):
                end = max(skip_quoted(raw, at, 0), at + 2)
                yield from self._expansion(raw[at:end], reading, quoted=True)
                at = end
            else:
                yield char, True
                at += 1

    def _expansion(
        self, raw: str, reading: _Reading, *, quoted: bool
    ) -> Iterator[tuple[str, bool | None]]:
        """Of `${…}`, `$(…)`, `$((…))`, backquotes and special parameters."""
        if raw.strip("${}") in ("@", "*", "@:1"):
            if self.arguments is None:
                reading.arguments = True
            yield from ((word, None) for word in self.arguments or ())
            return
        if found := re.fullmatch(r"\$\{?([1-9])(?::?-(.*))?\}?", raw, re.DOTALL):
            yield self._argument(int(found[1]), found[2], raw, reading), quoted
            return
        if raw.startswith("$(("):
            yield self._arithmetic(raw, reading), quoted
            return
        if not raw.startswith("${"):
            yield self._path_of(raw, reading) or self.unknown(raw), quoted
            return
        inner = raw[2:-1]
        found = _NAME.match(inner)
        if found is None:
            yield self.unknown(raw), quoted
            return
        name, rest = found.group(), inner[found.end() :]
        if rest in ("[@]", "[*]"):
            value = self.value_of(name)
            reading.names.add(name)
            if value is None or value.items is None:
                yield (self.unknown(raw) if value is None else value.text), quoted
            elif quoted and rest == "[@]":
                yield from ((item, None) for item in value.items)
            else:
                yield " ".join(value.items), quoted
            return
        if index := re.fullmatch(r"\[(\d+)\]", rest):
            value = self.value_of(name)
            items = value.items if value else None
            known = items is not None and int(index[1]) < len(items)
            yield (items[int(index[1])] if items and known else self.unknown(raw)), quoted
            return
        if rest and not (found := re.match(r":?[-=+]", rest)):
            yield self.unknown(raw), quoted
            return
        text, is_set = self._parameter(name, raw, reading)
        sign = found.group() if rest else ""
        if not sign or (is_set and sign[-1] != "+" and not (":" in sign and text == "")):
            yield text, quoted
            return
        alternative = self._joined_default(rest[len(sign) :], reading)
        if sign[-1] == "+":
            used = is_set and not (":" in sign and text == "")
            yield (alternative if used else ""), quoted
            return
        if sign[-1] == "=":
            self.variables[name] = Value(alternative, names=frozenset(reading.names))
        yield alternative, quoted

    def _path_of(self, raw: str, reading: _Reading) -> str | None:
        """The answer of `pwd`, `dirname` or `basename`, which needs no file; None: another one."""
        found = _ABOUT_PATHS.fullmatch(raw[2:-1] if raw.startswith("$(") else raw[1:-1])
        if found is None:
            return None
        text = self._joined(found[2] or "$PWD", reading)
        if not text or self.unknowns(text) or "$0" in raw:
            return None
        path = PurePosixPath(text)
        return {"pwd": text, "dirname": str(path.parent), "basename": path.name}[found[1]]

    def _argument(self, number: int, default: str | None, raw: str, reading: _Reading) -> str:
        """Of the function that is called, or of the script, which is started without any."""
        if self.arguments is not None and number <= len(self.arguments):
            return self.arguments[number - 1]
        reading.arguments = self.arguments is None
        return self.unknown(raw) if default is None else self._joined_default(default, reading)

    def _joined_default(self, raw: str, reading: _Reading) -> str:
        return "".join(text for text, _ in self._pieces(raw, reading))

    def _parameter(self, name: str, raw: str, reading: _Reading) -> tuple[str, bool]:
        reading.names.add(name)
        value = self.value_of(name)
        if value is None:
            return self.unknown(raw if raw.startswith(("$", "~", "`")) else f"${raw}"), False
        reading.names |= value.names
        reading.arguments |= value.arguments
        return value.text, True

    def _arithmetic(self, raw: str, reading: _Reading) -> str:
        """Of whole numbers that are known; else unknown."""
        if len(raw) > 500 or not raw.endswith("))"):
            return self.unknown(raw)
        text = "".join(text for text, _ in self._quoted(raw[3:-2], reading))

        def number(found: re.Match[str]) -> str:
            return self._parameter(found.group(), found.group(), reading)[0]

        result = _computed(_NAME.sub(number, text))
        return self.unknown(raw) if result is None else str(result)

    def enter(self, directory: str) -> None:
        """`cd`, by a path that is known."""
        if not self.unknowns(directory):
            self.directory = os.path.normpath(os.path.join(self.directory, directory))

    # ---- Walking ------------------------------------------------------------------------------

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
                held = self._tested(node.words)
            else:
                self._step(node, around, piped)

    def _step(self, command: Simple, within: tuple[Block, ...], piped: bool) -> None:
        words = list(command.words)
        assigned: list[tuple[str, Value]] = []
        before = dict(self.variables)
        while words and (found := _ASSIGNMENT.fullmatch(words[0])):
            assigned.append((found[1], self._assign(found)))
            words.pop(0)
        exports = bool(words) and words[0] in _DECLARES
        if exports:
            for word in words[1:]:
                if found := _ASSIGNMENT.fullmatch(word):
                    assigned.append((found[1], self._assign(found)))
                elif _NAME.fullmatch(word) and (value := self.value_of(word)) is not None:
                    assigned.append((word, value))
            exports = words[0] == "export" or "-x" in words[1:]
            words = []
        elif words:
            self.variables = before  # what stands before a command is that command's own
        fields, names, arguments = self.fields(words)
        if arguments:
            names |= {"@"}
        if fields[:1] == ("cd",) and len(fields) == 2:
            self.enter(fields[1])
        self.steps.append(
            Step(command, fields, tuple(assigned), exports, names, within, self.directory, piped)
        )
        if fields and fields[0] in self.functions and self.called < _MOST_CALLS:
            self.called += 1
            outer, self.arguments = self.arguments, fields[1:]
            self.walk(self.functions[fields[0]].branches[0].body, within)
            self.arguments = outer

    def _assign(self, found: re.Match[str]) -> Value:
        if found[2]:
            value = Value(self.unknown(found.group()))
            self.variables[found[1]] = Value(self.unknown(f"${found[1]}"))
            return value
        return self.assign(found[1], found[4], bool(found[3]))

    def _block(self, block: Block, within: tuple[Block, ...]) -> None:
        if block.kind == "function":
            self.functions[block.name] = block
            return
        if block.kind in ("{", "("):
            self.walk(block.branches[0].body, within)
            return
        if block.kind != "if":
            if block.kind != "case":
                self._forget(block.branches)
            if block.kind == "for":
                self.variables[block.name] = Value(self.unknown(f"${block.name}"))
            self._any_of(block, block.branches, within)
            return
        for number, branch in enumerate(block.branches):
            holds = self._holds(branch.condition) if branch.condition else True
            if holds is None:
                self._any_of(block, block.branches[number:], within)
                return
            if holds:
                self.walk(branch.body, within)
                for each in block.branches[number + 1 :]:
                    self._never(block, each)
                return
            self._never(block, branch)

    def _any_of(self, block: Block, branches: Sequence[Branch], within: tuple[Block, ...]) -> None:
        """Branches of which one or none is taken."""
        before, directory = dict(self.variables), self.directory
        for branch in branches:
            self.variables, self.directory = dict(before), directory
            self.walk(branch.body, (*within, block))
        self.variables, self.directory = before, directory
        self._forget(branches)

    def _never(self, block: Block, branch: Branch) -> None:
        """A branch that is not taken: what it alone would set is not set."""
        self.skipped.append((block, _first_line(branch)))
        for name in _assigned_in(branch.body):
            if self.value_of(name) is None and not name.startswith("SLURM_"):
                self.variables[name] = None

    def _forget(self, branches: Sequence[Branch]) -> None:
        for branch in branches:
            for name in _assigned_in(branch.body):
                self.variables[name] = Value(self.unknown(f"${name}"))

    def _holds(self, condition: Sequence[Node]) -> bool | None:
        """Whether a condition holds; None: the text does not decide it."""
        result: bool | None = None
        joined = ""
        for node in condition:
            if not isinstance(node, Simple):
                return None
            one = self._tested(node.words)
            result = _either(joined, result, one) if joined in ("&&", "||") else one
            joined = node.operator
            if joined not in ("", ";", "&&", "||"):
                return None
        return result

    def _tested(self, words: Sequence[str]) -> bool | None:
        if not _is_test(words):
            return None
        return self._test(words[1:] if words[0] == "test" else words[1:-1])

    def _test(self, words: Sequence[str]) -> bool | None:
        if words and words[0] == "!":
            result = self._test(words[1:])
            return None if result is None else not result
        if "&&" in words or "||" in words:
            join = "&&" if "&&" in words else "||"
            at = words.index(join)
            return _either(join, self._test(words[:at]), self._test(words[at + 1 :]))
        texts = [self._joined(word, _Reading()) for word in words]
        if len(texts) == 2 and texts[0] in ("-z", "-n"):
            empty = self._is_empty(texts[1])
            return None if empty is None else empty == (texts[0] == "-z")
        if len(texts) != 3 or self.unknowns("".join(texts)):
            return None
        left, sign, right = texts
        if sign in ("=", "==", "!="):
            return (left == right) == (sign != "!=")
        compare = _COMPARES.get(sign)
        if compare is None or not (_NUMBER.fullmatch(left) and _NUMBER.fullmatch(right)):
            return None
        return compare(int(left), int(right))

    def _is_empty(self, text: str) -> bool | None:
        if not (unknown := self.unknowns(text)):
            return not text
        if len(text) > len(unknown) or any(ALWAYS_SET.match(raw) for raw in unknown):
            return False
        names = [_WHOLE.fullmatch(raw) for raw in unknown]
        unset = all(name is not None and self._is_unset(name[1]) for name in names)
        return True if unset else None

    def _is_unset(self, name: str) -> bool:
        """Whether nothing sets a variable: not this script, not the person, not Slurm."""
        return name not in self.set_here and not _OF_NODE.match(name)


_COMPARES: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_COMPUTES: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: int(a / b),
    ast.Mod: operator.mod,
}


def _computed(text: str) -> int | None:
    """The value of `+ - * / %` and parentheses over whole numbers; None: anything else."""
    try:
        return _evaluated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value < 1 << 40:
        return node.value
    if isinstance(node, ast.BinOp) and (compute := _COMPUTES.get(type(node.op))):
        result = compute(_evaluated(node.left), _evaluated(node.right))
        if abs(result) < 1 << 40:
            return result
    raise ValueError


def _either(join: str, *sides: bool | None) -> bool | None:
    """Of `&&` or `||` between conditions."""
    decisive = join == "||"
    return decisive if decisive in sides else None if None in sides else not decisive


def is_unknown(word: str) -> bool:
    """Whether nothing of a word is known."""
    return len(word) == 1 and _UNKNOWN.fullmatch(word) is not None


def _is_test(words: Sequence[str]) -> bool:
    return bool(words) and words[0] in ("[", "[[", "test")


def _first_line(branch: Branch) -> str:
    node = branch.body[0] if branch.body else None
    return node.text.partition("\n")[0] if node is not None else ""


def _assigned_in(nodes: Iterable[Node]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Simple):
            for word in node.words:
                if found := _ASSIGNMENT.fullmatch(word):
                    yield found[1]
                elif node.words[0] not in _DECLARES:
                    break
        else:
            for branch in node.branches:
                yield from _assigned_in(branch.body)
