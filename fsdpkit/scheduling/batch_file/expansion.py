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

from fsdpkit.scheduling.batch_file.bash import BashError, Node, parse, with_marks, written

_FIRST = 0xF0000
_MOST_UNKNOWN = 10_000
_LONGEST = 65_536
_UNKNOWN = re.compile("[\U000f0000-\U000fffff]")
_IN_SUM = re.compile(r"\$?\{?\b([A-Za-z_]\w*)\}?", re.ASCII)
_MARK = re.compile("[\U00100000-\U0010fffd]")
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
    r"\$(?:(?P<plain>\w+|[@*])|\{(?P<name>\w+|[@*])(?P<index>\[[^]]*\])?(?P<rest>:?[-=+].*)?\})",
    re.ASCII | re.DOTALL,
)
_WORKING_DIRECTORY = re.compile(r"\$\(\s*pwd\s*\)|`\s*pwd\s*`")
_ON_PATH = re.compile(
    r"(?:\$\(|`)\s*(?:which|command\s+-v|type\s+-[pP])\s+(?P<program>[\w.+-]+)\s*[)`]"
)
LOCAL_VARIABLES = (
    "(?:SLURM_)?TMPDIR|SNIC_TMP|LOCAL_?SCRATCH|LOCAL|LOCALDIR|LOCAL_(?:JOB_|TMP)DIR|L_?SCRATCH(?:_JOB)?"
    "|SCRATCH_?LOCAL"
)
"""What centres call a directory on the node's own disk; $JOBSCRATCH is on a shared one."""
_OF_NODE = re.compile(
    rf"(SLURM|CUDA|ROCR|HIP|ROCM|LMOD|MPI|OMPI|PMI)_\w*|EB(ROOT|VERSION)\w+|{LOCAL_VARIABLES}"
    r"|HOSTNAME|LD_PRELOAD"
    r"|(LD_LIBRARY_|LIBRARY_|PYTHON|C|MAN|MODULE|INFO|PKG_CONFIG_|CMAKE_PREFIX_|C(PLUS)?_INCLUDE_)?"
    r"PATH"
)
Value = str | tuple[str, ...]
"""Of a variable: its text, or the items of an array."""
_Piece = tuple[str, bool | None]
"""A piece of a word, and whether it is safe from splitting; None: a field of its own begins."""


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
            return self.directory
        if name in self.variables:
            return "" if (value := self.variables[name]) is None else value
        return self.slurm.get(name, self.environ.get(name))

    def text_of(self, name: str) -> str | None:
        """Of an array, the first item."""
        value = self.value_of(name)
        return value if value is None or isinstance(value, str) else "".join(value[:1])

    def assign(self, name: str, raw: str, *, appended: bool) -> None:
        value: Value
        array = written(self.marked, raw) if _MARK.fullmatch(raw) else ""
        if array.startswith("("):
            words = [w for node in self.parsed(array[1:-1]) for w in getattr(node, "words", ())]
            before = self.variables.get(name) if appended else None
            value = (*([before] if isinstance(before, str) else before or ()), *self.fields(words))
            if any(word.startswith("[") for word in words):  # items by keys of their own
                value = self.unknown(f"${name}")
        else:
            value = ((self.text_of(name) or "") if appended else "") + self.joined(raw)
        if sum(map(len, value)) > _LONGEST:
            value = self.unknown(f"${name}")
        self.variables[name] = value

    # ---- Expansion ----------------------------------------------------------------------------

    def fields(self, words: Iterable[str]) -> tuple[str, ...]:
        """The words after expansion."""
        return tuple(field for word in words for field in self._fields(word))

    def joined(self, raw: str) -> str:
        """As on the right of an assignment: one text, nothing split."""
        return "".join(text for text, _ in self._pieces(raw))

    def _fields(self, raw: str) -> list[str]:
        fields: list[str] = []
        current: str | None = None
        for text, quoted in self._pieces(raw):
            if quoted is None:
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

    def _pieces(self, raw: str) -> Iterator[_Piece]:
        for part in _PART.finditer(raw):
            kind, text = str(part.lastgroup), part[str(part.lastgroup)]
            if kind == "mark":
                yield from self._expansion(written(self.marked, text), quoted=False)
            elif kind == "tilde":
                yield self.text_of("HOME") or self.unknown("~"), True
            elif kind == "double":
                yield from self._quoted(text)
            elif kind == "glob":
                yield self.unknown(text), True
            elif kind != "escaped" or text != "\n":
                yield text, True

    def _quoted(self, raw: str) -> Iterator[_Piece]:
        """Inside double quotes."""
        if not (_MARK.fullmatch(raw) and _ALL_ITEMS.fullmatch(written(self.marked, raw))):
            yield "", True
        for part in _IN_DOUBLE.finditer(raw):
            kind, text = str(part.lastgroup), part[str(part.lastgroup)]
            if kind == "mark":
                yield from self._expansion(written(self.marked, text), quoted=True)
            elif kind != "escaped" or text != "\n":
                yield text, True

    def _expansion(self, raw: str, quoted: bool) -> Iterator[_Piece]:
        if raw.startswith("$((") and raw.endswith("))"):
            yield self._arithmetic(raw), quoted
        elif _WORKING_DIRECTORY.fullmatch(raw):
            yield self.directory, quoted
        elif (on_path := _ON_PATH.fullmatch(raw)) is not None:
            yield on_path["program"], quoted  # by its name the same is found
        elif (found := _PARAMETER.fullmatch(raw)) is None:
            yield self.unknown(raw), quoted
        else:
            name, rest = found["plain"] or found["name"], found["rest"] or ""
            if found["index"]:
                yield from self._items(name, found["index"], raw, quoted)
            elif name not in ("@", "*"):  # the script is started without arguments
                yield self._or_default(name, rest, raw), quoted

    def _items(self, name: str, index: str, raw: str, quoted: bool) -> Iterator[_Piece]:
        """Of `${name[…]}`."""
        value = self.value_of(name)
        if value is None or index not in ("[@]", "[*]"):
            yield self.unknown(raw), quoted
        elif isinstance(value, str):
            yield value, quoted
        elif quoted and index == "[@]":  # the first belongs to what stands before it
            yield from ((item, True if at == 0 else None) for at, item in enumerate(value))
        else:
            yield " ".join(value), quoted

    def _or_default(self, name: str, rest: str, raw: str) -> str:
        """Of `$name`, `${name}`, `${name:-x}`, `${name=x}` and `${name:+x}`."""
        text = self.text_of(name)
        if text is None and (not rest or is_of_node(name)):
            return self.unknown(raw)
        if text is not None and not rest:
            return text
        counts, sign = text is not None and not (rest[0] == ":" and text == ""), rest.lstrip(":")[0]
        if text is not None and counts and sign != "+":
            return text
        other = self.joined(with_marks(rest.lstrip(":")[1:], self.marked))
        if sign == "+":
            return other if counts else ""
        if sign == "=":
            self.variables[name] = other
        return other

    def _arithmetic(self, raw: str) -> str:
        """Of whole numbers that are known; else unknown."""

        def number(found: re.Match[str]) -> str:
            return self._or_default(found[1], "", found.group())

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


def is_of_node(name: str) -> bool:
    """Whether Slurm, a module or the node itself may set a variable."""
    return _OF_NODE.fullmatch(name) is not None


def is_unknown(word: str) -> bool:
    """Whether nothing of a word is known."""
    return len(word) == 1 and _UNKNOWN.fullmatch(word) is not None
