"""Bash's expansions, as far as the text of a script decides them.

A variable is known if the text assigns it a value without any unknown part, if Slurm derives it
from the `#SBATCH` lines, or if it is in the environment of the person: sbatch would take it from
there as well. Every other expansion stays in the word as an *unknown*: one character of a private
plane, which no splitting tears apart and `Expander.shown` writes as it stood.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from fsdpkit.scheduling.batch_file.bash import BashError, parse, skip_nested, skip_quoted

_FIRST = 0xF0000
_MOST_UNKNOWN = 10_000
_LONGEST = 65_536
_UNKNOWN = re.compile("[\U000f0000-\U000fffff]")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SPLITS = re.compile(r"[ \t\n]+")
_EXPANDED = tuple("{(@*#?!-$0123456789")
"""What makes a `$` before it more than a dollar sign, besides a name."""
_ALL_ITEMS = re.compile(r'"\$(?:@|\{(?:@|\w+\[@\])\})"')
_ABOUT_PATHS = re.compile(r"\s*(pwd|(?:dir|base)name(?=\s))\s*([^\s;|&]*|\"[^\"]*\")\s*")
_OF_NODE = re.compile(
    r"(SLURM|CUDA|ROCR|HIP|ROCM|LMOD|MPI|OMPI|PMI)_\w*|EB(ROOT|VERSION)\w+|TMPDIR|HOSTNAME|LD_PRELOAD"
    r"|(LD_LIBRARY_|LIBRARY_|PYTHON|C|MAN|MODULE|INFO|PKG_CONFIG_|CMAKE_PREFIX_|C(PLUS)?_INCLUDE_)?"
    r"PATH"
)
_BRACES = re.compile(r"\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}")


@dataclass(frozen=True)
class Value:
    """Of a variable: its text, or the items of an array; and the variables it was made of."""

    text: str
    items: tuple[str, ...] | None = None
    names: frozenset[str] = frozenset()
    arguments: bool = False
    """Made of what stands behind the script on sbatch's command line, so empty without it."""


@dataclass
class ExpandedNames:
    """What one expansion has met."""

    names: set[str] = field(default_factory=set)
    arguments: bool = False


class Expander:
    """`slurm`: Slurm's variables by name; `environ`: the person's; `directory`: where the script is
    submitted from."""

    def __init__(
        self, slurm: Mapping[str, str], environ: Mapping[str, str], directory: str
    ) -> None:
        self.slurm, self.environ, self.directory = slurm, environ, directory
        self.variables: dict[str, Value | None] = {}
        """None: known to be unset."""
        self.raw: list[str] = []
        self.arguments: tuple[str, ...] | None = None
        """Those of the function that is being called; None: outside of one."""

    # ---- Unknown parts ------------------------------------------------------------------------

    def unknown(self, raw: str) -> str:
        if len(self.raw) >= _MOST_UNKNOWN:
            raise BashError("the script has too many expansions to be followed")
        self.raw.append(raw)
        return chr(_FIRST + len(self.raw) - 1)

    def shown(self, text: str, known: Mapping[str, str] | None = None) -> str:
        """The text with its unknown parts as they were written, or as `known` has them."""

        def part(found: re.Match[str]) -> str:
            raw = self.raw[ord(found.group()) - _FIRST]
            return (known or {}).get(raw, raw)

        return _UNKNOWN.sub(part, text)

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
        reading = ExpandedNames()
        if raw.startswith("("):
            inner = raw[1:-1]
            words = [w for node in parse(inner) for w in getattr(node, "words", ())]
            items = tuple(f for word in words for f in self._fields(word, reading))
            before = self.variables.get(name)
            if appended and before is not None:
                items = (*(before.items or (before.text,)), *items)
            value = Value(items[0] if items else "", items)
            if any(word.startswith("[") for word in words):  # items by keys of their own
                value = Value(self.unknown(f"${name}"))
        else:
            text = self.joined(raw, reading)
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
        reading = ExpandedNames()
        found = tuple(field for word in words for field in self._fields(word, reading))
        return found, frozenset(reading.names), reading.arguments

    def joined(self, raw: str, reading: ExpandedNames) -> str:
        """As on the right of an assignment: one text, nothing split."""
        return "".join(text for text, _ in self._pieces(raw, reading, tilde=True))

    def _fields(self, raw: str, reading: ExpandedNames) -> list[str]:
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
        self, raw: str, reading: ExpandedNames, *, tilde: bool = False
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

    def _quoted(self, raw: str, reading: ExpandedNames) -> Iterator[tuple[str, bool | None]]:
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
        self, raw: str, reading: ExpandedNames, *, quoted: bool
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
        name, rest = (found.group(), inner[found.end() :]) if found else ("", "?")
        of_node = self.value_of(name) is None and is_of_node(name)
        if rest.startswith("["):
            yield from self._items(name, rest, raw, reading, quoted)
        elif not rest or (re.match(":?[-=+]", rest) and not of_node):
            yield self._or_default(name, rest, raw, reading), quoted
        else:
            yield self.unknown(raw), quoted

    def _items(
        self, name: str, rest: str, raw: str, reading: ExpandedNames, quoted: bool
    ) -> Iterator[tuple[str, bool | None]]:
        """Of `${name[…]}`."""
        value = self.value_of(name)
        items = value.items if value else None
        if rest not in ("[@]", "[*]"):
            index = re.fullmatch(r"\[(\d+)\]", rest)
            known = items[int(index[1]) :][:1] if items and index else ()
            yield (known[0] if known else self.unknown(raw)), quoted
            return
        reading.names.add(name)
        if value is None or items is None:
            yield (self.unknown(raw) if value is None else value.text), quoted
        elif quoted and rest == "[@]":
            yield from ((item, None) for item in items)
        else:
            yield " ".join(items), quoted

    def _or_default(self, name: str, rest: str, raw: str, reading: ExpandedNames) -> str:
        """Of `${name}`, `${name:-x}`, `${name=x}` and `${name:+x}`."""
        text, is_set = self._parameter(name, raw, reading)
        if not rest:
            return text
        counts, sign = is_set and not (rest[0] == ":" and text == ""), rest.lstrip(":")[0]
        if counts and sign != "+":
            return text
        other = self._joined_default(rest.lstrip(":")[1:], reading)
        if sign == "+":
            return other if counts else ""
        if sign == "=":
            self.variables[name] = Value(other, names=frozenset(reading.names))
        return other

    def _path_of(self, raw: str, reading: ExpandedNames) -> str | None:
        """The answer of `pwd`, `dirname` or `basename`, which needs no file; None: another one."""
        found = _ABOUT_PATHS.fullmatch(raw[2:-1] if raw.startswith("$(") else raw[1:-1])
        if found is None:
            return None
        text = self.joined(found[2] or "$PWD", reading)
        if not text or self.unknowns(text) or "$0" in raw:
            return None
        path = PurePosixPath(text)
        return {"pwd": text, "dirname": str(path.parent), "basename": path.name}[found[1]]

    def _argument(self, number: int, default: str | None, raw: str, reading: ExpandedNames) -> str:
        """Of the function that is called, or of the script, which is started without any."""
        if self.arguments is not None and number <= len(self.arguments):
            return self.arguments[number - 1]
        reading.arguments = self.arguments is None
        return self.unknown(raw) if default is None else self._joined_default(default, reading)

    def _joined_default(self, raw: str, reading: ExpandedNames) -> str:
        return "".join(text for text, _ in self._pieces(raw, reading))

    def _parameter(self, name: str, raw: str, reading: ExpandedNames) -> tuple[str, bool]:
        reading.names.add(name)
        value = self.value_of(name)
        if value is None:
            return self.unknown(raw if raw.startswith(("$", "~", "`")) else f"${raw}"), False
        reading.names |= value.names
        reading.arguments |= value.arguments
        return value.text, True

    def _arithmetic(self, raw: str, reading: ExpandedNames) -> str:
        """Of whole numbers that are known; else unknown."""
        if len(raw) > 500 or not raw.endswith("))"):
            return self.unknown(raw)
        text = "".join(text for text, _ in self._quoted(raw[3:-2], reading))

        def number(found: re.Match[str]) -> str:
            return self._parameter(found.group(), found.group(), reading)[0]

        result = _computed(_NAME.sub(number, text))
        return self.unknown(raw) if result is None else str(result)


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


def is_of_node(name: str) -> bool:
    """Whether Slurm, a module or the node itself may set a variable."""
    return _OF_NODE.fullmatch(name) is not None


def is_unknown(word: str) -> bool:
    """Whether nothing of a word is known."""
    return len(word) == 1 and _UNKNOWN.fullmatch(word) is not None
