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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fsdpkit.scheduling.batch_file.bash import BashError, Node, parse, with_marks, written

_FIRST = 0xF0000
_MOST_UNKNOWN = 10_000
_LONGEST = 65_536
_UNKNOWN = re.compile("[\U000f0000-\U000fffff]")
_MARK = re.compile("[\U00100000-\U0010fffd]")
_IN_SUM = re.compile(r"\$?\{?\b([A-Za-z_]\w*)\}?", re.ASCII)
_SPLITS = re.compile(r"[ \t\n]+")
_PART = re.compile(
    r"\\(?P<escaped>.?)|'(?P<single>[^']*)'|\"(?P<double>(?:\\.|[^\"\\])*)\""
    r"|(?P<mark>[\U00100000-\U0010fffd])|(?P<tilde>\A~(?=/|\Z))"
    r"|(?P<glob>[*?]|\{[^{}\s]*(?:,|\.\.)[^{}\s]*\})|(?P<text>[^\\'\"*?{\U00100000-\U0010fffd]+|.)",
    re.DOTALL,
)
_IN_DOUBLE = re.compile(
    r"\\(?P<escaped>[$`\"\\\n])|(?P<mark>[\U00100000-\U0010fffd])"
    r"|(?P<text>[^\\\U00100000-\U0010fffd]+|.)",
    re.DOTALL,
)
_ALL_ITEMS = re.compile(r"\$(?:@|\{(?:@|\w+\[@\])\})")
_PARAMETER = re.compile(
    r"\$(?:(?P<plain>\w+|[@*])|\{(?P<name>\w+|[@*])(?P<index>\[[^]]*\])?(?P<rest>:?[-=+].*|:1)?\})",
    re.ASCII | re.DOTALL,
)
_WORKING_DIRECTORY = re.compile(r"\$\(\s*pwd\s*\)|`\s*pwd\s*`")
_OF_NODE = re.compile(
    r"(SLURM|CUDA|ROCR|HIP|ROCM|LMOD|MPI|OMPI|PMI)_\w*|EB(ROOT|VERSION)\w+|TMPDIR|HOSTNAME|LD_PRELOAD"
    r"|(LD_LIBRARY_|LIBRARY_|PYTHON|C|MAN|MODULE|INFO|PKG_CONFIG_|CMAKE_PREFIX_|C(PLUS)?_INCLUDE_)?"
    r"PATH"
)


@dataclass(frozen=True)
class Value:
    """Of a variable: its text, or the items of an array; and the variables it was made of, `@` for
    what stands behind the script on sbatch's command line."""

    text: str
    items: tuple[str, ...] | None = None
    names: frozenset[str] = frozenset()


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
        self.marked: list[str] = []
        """What the marks of words stand for that are not expanded yet."""
        self.arguments: tuple[str, ...] | None = None
        """Those of the function that is being called; None: outside of one."""

    def parsed(self, text: str) -> tuple[Node, ...]:
        """The commands of a script. Raises BashError."""
        return parse(text, self.marked)

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
        names: set[str] = set()
        array = written(self.marked, raw) if _MARK.fullmatch(raw) else ""
        if array.startswith("("):
            words = [w for node in self.parsed(array[1:-1]) for w in getattr(node, "words", ())]
            items = tuple(f for word in words for f in self._fields(word, names))
            before = self.variables.get(name)
            if appended and before is not None:
                items = (*(before.items or (before.text,)), *items)
            value = Value(items[0] if items else "", items)
            if any(word.startswith("[") for word in words):  # items by keys of their own
                value = Value(self.unknown(f"${name}"))
        else:
            text = self.joined(raw, names)
            before = self.value_of(name) if appended else None
            value = Value((before.text if before else "") + text)
        if len(value.text) > _LONGEST or sum(map(len, value.items or ())) > _LONGEST:
            value = Value(self.unknown(f"${name}"))
        value = replace(value, names=frozenset(names))
        self.variables[name] = value
        return value

    # ---- Expansion ----------------------------------------------------------------------------

    def fields(self, words: Iterable[str]) -> tuple[tuple[str, ...], frozenset[str]]:
        """The words after expansion, and of which variables."""
        names: set[str] = set()
        found = tuple(field for word in words for field in self._fields(word, names))
        return found, frozenset(names)

    def joined(self, raw: str, names: set[str]) -> str:
        """As on the right of an assignment: one text, nothing split."""
        return "".join(text for text, _ in self._pieces(raw, names))

    def _fields(self, raw: str, names: set[str]) -> list[str]:
        fields: list[str] = []
        current: str | None = None
        for text, quoted in self._pieces(raw, names):
            if quoted is None:  # an item of an array, in a field of its own
                fields.extend([current] if current is not None else [])
                current = text
                continue
            first, *rest = [text] if quoted else _SPLITS.split(text)
            if first or quoted:
                current = (current or "") + first
            for piece in rest:
                fields.extend([current] if current is not None else [])
                current = piece or None
        return [*fields, *([current] if current is not None else [])]

    def _pieces(self, raw: str, names: set[str]) -> Iterator[tuple[str, bool | None]]:
        """Pieces of a word, each with whether it is safe from splitting."""
        for part in _PART.finditer(raw):
            kind, text = str(part.lastgroup), part[str(part.lastgroup)]
            if kind == "mark":
                yield from self._expansion(written(self.marked, text), names, quoted=False)
            elif kind == "tilde":
                yield self._parameter("HOME", "~", names)[0], True
            elif kind == "double":
                yield from self._quoted(text, names)
            elif kind == "glob":
                yield self.unknown(text), True
            elif kind != "escaped" or text != "\n":
                yield text, True

    def _quoted(self, raw: str, names: set[str]) -> Iterator[tuple[str, bool | None]]:
        """Inside double quotes."""
        if not (_MARK.fullmatch(raw) and _ALL_ITEMS.fullmatch(written(self.marked, raw))):
            yield "", True
        for part in _IN_DOUBLE.finditer(raw):
            kind, text = str(part.lastgroup), part[str(part.lastgroup)]
            if kind == "mark":
                yield from self._expansion(written(self.marked, text), names, quoted=True)
            elif kind != "escaped" or text != "\n":
                yield text, True

    def _expansion(
        self, raw: str, names: set[str], *, quoted: bool
    ) -> Iterator[tuple[str, bool | None]]:
        """Of what a mark stands for."""
        if raw.startswith("$((") and raw.endswith("))"):
            yield self._arithmetic(raw, names), quoted
        elif _WORKING_DIRECTORY.fullmatch(raw):
            yield self.directory, quoted
        elif (found := _PARAMETER.fullmatch(raw)) is None:
            yield self.unknown(raw), quoted
        else:
            name, rest = found["plain"] or found["name"], found["rest"] or ""
            if name in ("@", "*"):
                names |= {"@"} if self.arguments is None else set()
                yield from _each(self.arguments or ())
            elif rest == ":1" or name == "0":
                yield self.unknown(raw), quoted
            elif name.isdecimal():
                yield self._argument(int(name), rest, raw, names), quoted
            elif found["index"]:
                yield from self._items(name, found["index"], raw, names, quoted)
            else:
                yield self._or_default(name, rest, raw, names), quoted

    def _items(
        self, name: str, index: str, raw: str, names: set[str], quoted: bool
    ) -> Iterator[tuple[str, bool | None]]:
        """Of `${name[…]}`."""
        names.add(name)
        value = self.value_of(name)
        if value is None or index not in ("[@]", "[*]"):
            yield self.unknown(raw), quoted
        elif value.items is not None and quoted and index == "[@]":
            yield from _each(value.items)
        else:
            yield " ".join(value.items or [value.text]), quoted

    def _or_default(self, name: str, rest: str, raw: str, names: set[str]) -> str:
        """Of `$name`, `${name}`, `${name:-x}`, `${name=x}` and `${name:+x}`."""
        if rest and self.value_of(name) is None and is_of_node(name):
            return self.unknown(raw)
        text, is_set = self._parameter(name, raw, names)
        if not rest:
            return text
        counts, sign = is_set and not (rest[0] == ":" and text == ""), rest.lstrip(":")[0]
        if counts and sign != "+":
            return text
        other = self._joined_default(rest, names)
        if sign == "+":
            return other if counts else ""
        if sign == "=":
            self.variables[name] = Value(other, names=frozenset(names))
        return other

    def _argument(self, number: int, rest: str, raw: str, names: set[str]) -> str:
        """Of the function that is called, or of the script, which is started without any."""
        if self.arguments is not None and number <= len(self.arguments):
            return self.arguments[number - 1]
        names |= {"@"} if self.arguments is None else set()
        return self._joined_default(rest, names) if rest else self.unknown(raw)

    def _joined_default(self, rest: str, names: set[str]) -> str:
        """What stands behind `:-` and its like."""
        return self.joined(with_marks(rest.lstrip(":")[1:], self.marked), names)

    def _parameter(self, name: str, raw: str, names: set[str]) -> tuple[str, bool]:
        names.add(name)
        value = self.value_of(name)
        if value is None:
            return self.unknown(raw), False
        names |= value.names
        return value.text, True

    def _arithmetic(self, raw: str, names: set[str]) -> str:
        """Of whole numbers that are known; else unknown."""

        def number(found: re.Match[str]) -> str:
            return self._or_default(found[1], "", found.group(), names)

        result = _computed(_IN_SUM.sub(number, raw[3:-2])) if len(raw) < 500 else None
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


def _each(items: Sequence[str]) -> Iterator[tuple[str, bool | None]]:
    """Items in fields of their own; the first belongs to what stands before it."""
    yield from ((item, True if number == 0 else None) for number, item in enumerate(items))


def is_of_node(name: str) -> bool:
    """Whether Slurm, a module or the node itself may set a variable."""
    return _OF_NODE.fullmatch(name) is not None


def is_unknown(word: str) -> bool:
    """Whether nothing of a word is known."""
    return len(word) == 1 and _UNKNOWN.fullmatch(word) is not None
