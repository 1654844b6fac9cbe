"""Bash as far as a batch script needs it to be read: commands, compound commands, words.

Every expansion (`$x`, `${…}`, `$(…)`, an array's items) becomes one character, its *mark*, before
anything else is looked at, so that what is left has no nesting. Words stay as they were written;
expansion.py expands them. Raises BashError for what bash itself would not read, and for nesting
that nobody writes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass

from fsdpkit.errors import ConfigError

_DEEPEST = 40
_LONGEST = 400
_FIRST = 0x100000
_MARK = re.compile("[\U00100000-\U0010fffd]")
_MOST_MARKS = 60_000
_PLAIN = re.compile(r"[^\\'\"`$#(){}<>\n]+")
_PARAMETER = re.compile(r"\$(?:[A-Za-z_]\w*|[@*#?!$0-9-])", re.ASCII)
_ANSI = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_BACKQUOTED = re.compile(r"`(?:[^`\\]|\\.)*`", re.DOTALL)
_HERE = re.compile(r"(?<!<)<<(-?)[ \t]*([^\s<;&|]+)")
_ARRAY = re.compile(r"(?:\A|[\s;&|({])[A-Za-z_]\w*(?:\[[^]]*\])?\+?=\Z")
_TOKEN = re.compile(
    r"(?P<space>[ \t]+|\\\n)"
    r"|(?P<redirection>(?:\d+|\{\w+\})?(?:<<<|<<-|<<|<>|>>|>\||>&|<&|>|<)|&>>|&>)"
    r"|(?P<operator>&&|\|\||;;&|;;|;&|\|&|[;&|()\n])"
    r"|(?P<word>(?:\\.?|'[^']*'|\"(?:\\.|[^\"\\])*\"|[^\s;&|()<>'\"\\])+)",
    re.DOTALL,
)
_OPENS = {")": "(", "}": "{"}
_ENDS_CASE = (")", ";;", ";&", ";;&")
_COMPOUNDS = {
    "if": ("fi", ("then", "elif", "else")),
    **dict.fromkeys(("for", "while", "until"), ("done", ("do",))),
    "case": ("esac", _ENDS_CASE[1:]),
    "{": ("}", ()),
    "(": (")", ()),
}
"""By the keyword that opens a compound command: the one that closes it, and those between."""


class BashError(ConfigError):
    """What cannot be read, and where."""


@dataclass(frozen=True)
class Simple:
    """One command with its words as written. `operator`: what follows it, such as `|`."""

    line: int
    text: str
    words: tuple[str, ...]
    redirections: tuple[str, ...] = ()
    operator: str = ""
    here_document: bool = False


@dataclass(frozen=True)
class Block:
    """A compound command: `if`, `for`, `while`, `until`, `case`, `function`, `{` or `(`."""

    kind: str
    line: int
    text: str
    sections: tuple[tuple[Node, ...], ...]
    """What stands between its keywords: of an `if`, conditions and bodies by turns."""
    name: str = ""
    """Of a function, or of the variable of a `for`."""


Node = Simple | Block


def parse(text: str, marked: list[str]) -> tuple[Node, ...]:
    """The commands of a script; `marked` gets what its marks stand for. Raises BashError."""
    parser = _Parser(text, marked)
    nodes = parser.commands(())
    if (token := parser.peek()) is not None:
        raise BashError(f"line {parser.line_at(token)}: unexpected {token.text!r}")
    return nodes


def with_marks(text: str, marked: list[str]) -> str:
    """A text with a mark for each expansion. Raises BashError."""
    scan = _Scan(text, marked)
    scan.run(0)
    return "".join(scan.out)


def written(marked: list[str], char: str) -> str:
    """What a mark stands for."""
    return marked[ord(char) - _FIRST]


class _Scan:
    """Puts marks into a text, and leaves out comments and here-documents."""

    def __init__(self, text: str, marked: list[str], line: int = 0) -> None:
        self.text, self.marked, self.line = text, marked, line
        self.out: list[str] = []
        self.length, self.lines = 0, [0]
        """Of what is put out, and where in it each line of the text begins."""
        self.here_documents: list[tuple[str, bool]] = []

    def _put(self, chunk: str, read: str) -> None:
        self.out.append(chunk)
        self.length += len(chunk)
        self.lines += [self.length] * read.count("\n")

    def run(self, at: int, end: str = "", *, quoted: bool = False) -> int:
        """The position of `end`, or that of the text's; everything before it is put out."""
        text = self.text
        while at < len(text) and text[at] != end:
            start, char = at, text[at]
            if found := _PLAIN.match(text, at):
                at, chunk = found.end(), found.group()
            elif char == "\\":
                at, chunk = at + 2, text[at : at + 2]
            elif char == "'" and not quoted:
                at = self._behind(text.find("'", at + 1), "'")
                chunk = text[start:at]
            elif char == '"' and not quoted:
                self._put(char, char)
                line = len(self.lines)
                at = self._behind(self.run(at + 1, char, quoted=True), char, line)
                start, chunk = at, char
            elif text.startswith('$"', at) and not quoted:
                at, chunk = at + 1, ""  # a text to be translated
            elif (behind := self._expansion(at, end, quoted)) > at:
                at, chunk = behind, self._mark(text[at:behind])
            elif char == "#" and not quoted and end != "}" and self._begins_word():
                at, chunk = _end_of_line(text, at), ""
            elif char == "\n" and self.here_documents and not end:
                at, chunk = self._past_here_documents(at + 1), char
            elif not end and (found := _HERE.match(text, at)):
                word = re.sub(r"[\"'\\]", "", found[2])
                self.here_documents.append((word, bool(found[1])))
                at, chunk = found.end(), found.group()
            else:
                at, chunk = at + 1, char
            self._put(chunk, text[start:at])
        return at

    def _begins_word(self) -> bool:
        before = next((chunk for chunk in reversed(self.out) if chunk != "\\\n"), "")
        return not before or (before[0] != "\\" and before[-1] in " \t\n;&|(")

    def _behind(self, at: int, end: str, line: int = 0) -> int:
        """Raises BashError unless `end` is there; line: of what it closes."""
        if not self.text.startswith(end, at) or at < 0:
            raise BashError(f"line {self.line or line or len(self.lines)}: a {end} is missing")
        return at + 1

    def _expansion(self, at: int, end: str, quoted: bool) -> int:
        """The position behind the expansion that begins here; `at` itself without one."""
        text, char, two = self.text, self.text[at], self.text[at : at + 2]
        if two in ("$(", "${"):
            return self._past(at + 2, ")" if two == "$(" else "}")
        if char in "$`":
            patterns = (_BACKQUOTED, _PARAMETER) if quoted else (_ANSI, _BACKQUOTED, _PARAMETER)
            found = [match for each in patterns if (match := each.match(text, at))]
            return found[0].end() if found else self._behind(-1, "`") if char == "`" else at
        if quoted:
            return at
        if two in ("<(", ">(", "(("):
            return self._past(at + 2, ")") + (two == "((")
        is_array = char == "(" and self.out and _ARRAY.search(self.out[-1])
        if is_array or char == _OPENS.get(end):
            return self._past(at + 1, end or ")")
        return at

    def _past(self, at: int, end: str) -> int:
        """The position behind the end of what was opened before `at`."""
        nested = _Scan(self.text, [], self.line or len(self.lines))
        return self._behind(nested.run(at, end), end)

    def _mark(self, raw: str) -> str:
        if len(self.marked) >= _MOST_MARKS:
            raise BashError("the script has too many expansions to be followed")
        self.marked.append(raw)
        return chr(_FIRST + len(self.marked) - 1)

    def _past_here_documents(self, at: int) -> int:
        for word, tabs in self.here_documents:
            row = None
            while at < len(self.text) and row != word:
                end = _end_of_line(self.text, at)
                row, at = self.text[at:end], min(end + 1, len(self.text))
                row = row.lstrip("\t") if tabs else row
        self.here_documents = []
        return at


def _end_of_line(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found


@dataclass(frozen=True)
class _Token:
    kind: str  # word, operator, redirection
    text: str
    at: int
    end: int


class _Parser:
    """Recursive descent over tokens."""

    def __init__(self, text: str, marked: list[str]) -> None:
        scan = _Scan(text, marked)
        scan.run(0)
        self.text, self.lines, self.marked = "".join(scan.out), scan.lines, marked
        self.tokens = [
            _Token(found.lastgroup, found.group(), found.start(), found.end())
            for found in _TOKEN.finditer(self.text)
            if found.lastgroup is not None and found.lastgroup != "space"
        ]
        self.at, self.depth = 0, 0

    def line_at(self, token: _Token) -> int:
        return bisect_right(self.lines, token.at)

    def said(self, start: int, end: int) -> str:
        """The text of the script, with what its marks stand for."""
        shown = _MARK.sub(lambda found: written(self.marked, found.group()), self.text[start:end])
        return shown.strip()

    def peek(self) -> _Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self) -> _Token:
        if (token := self.peek()) is None:
            raise BashError(f"line {len(self.lines)}: the script ends inside a command")
        self.at += 1
        return token

    def _next_is(self, *texts: str) -> bool:
        token = self.peek()
        return token is not None and token.text in texts

    def commands(self, ends: Collection[str]) -> tuple[Node, ...]:
        """Up to one of the words or operators that end them, which is not taken."""
        self.depth += 1
        nodes: list[Node] = []
        while (token := self.peek()) is not None and token.text not in (*ends, *_ENDS_CASE):
            if self.depth > _DEEPEST:
                raise BashError(f"line {self.line_at(token)}: nested more than {_DEEPEST} deep")
            if token.text in ("\n", ";", "&"):
                self.at += 1
            else:
                nodes.append(self._command(token))
        self.depth -= 1
        return tuple(nodes)

    def _command(self, token: _Token) -> Node:
        if token.text == "function":
            self.at += 1
            return self._function(self.take().text, token)
        return self._block(token) if token.text in _COMPOUNDS else self._simple(token)

    def _header(self, token: _Token) -> str:
        return self.said(token.at, min(_end_of_line(self.text, token.at), token.at + _LONGEST))

    def _block(self, opening: _Token) -> Block:
        """Redirections behind a compound command are read over."""
        kind, line = opening.text, self.line_at(opening)
        closing, dividing = _COMPOUNDS[kind]
        self.at += 1
        name = self.take().text if kind == "for" else ""
        sections: list[tuple[Node, ...]] = []
        while not sections or self._next_is(*dividing):
            self.at += bool(sections)
            if kind == "case":
                self._past_pattern()
            sections.append(self.commands((closing, *dividing)))
        if not self._next_is(closing) or (dividing and kind != "case" and len(sections) < 2):
            raise BashError(f"line {line}: no {closing!r} where one belongs")
        self.at += 1
        while (token := self.peek()) is not None and token.kind == "redirection":
            self.at += 2
        self._operator()
        return Block(kind, line, self._header(opening), tuple(sections), name)

    def _past_pattern(self) -> None:
        while self._next_is("\n"):
            self.at += 1
        while not self._next_is("esac") and self.take().text != ")":
            pass

    def _function(self, name: str, opening: _Token) -> Node:
        line = self.line_at(opening)
        while self._next_is("(", ")", "\n"):
            self.at += 1
        if (token := self.peek()) is None:
            raise BashError(f"line {line}: a function has no body")
        body = (self._command(token),)
        return Block("function", line, self._header(opening), (body,), name)

    def _operator(self) -> str:
        if (token := self.peek()) is None or token.kind != "operator" or token.text in _ENDS_CASE:
            return ""
        self.at += 1
        if token.text in ("&&", "||", "|", "|&"):
            while self._next_is("\n"):
                self.at += 1
        return "" if token.text == "\n" else token.text

    def _simple(self, opening: _Token) -> Node:
        words: list[str] = []
        redirections: list[str] = []
        here = False
        test = self._next_is("[[")
        while (token := self.peek()) is not None:
            if token.kind == "redirection" and not test:
                target = (self.take(), self.take())[1]
                redirections.append(self.said(token.at, target.end))
                here = here or token.text.lstrip("0123456789") in ("<<", "<<-")
                continue
            if token.kind == "operator" and not test:
                if token.text == "(" and len(words) == 1:
                    return self._function(words[0], opening)
                if token.text == "(":
                    raise BashError(f"line {self.line_at(token)}: unexpected '('")
                break
            words.append(self.take().text)
            test = test and token.text != "]]"
        said = self.said(opening.at, self.tokens[self.at - 1].end)
        line, operator = self.line_at(opening), self._operator()
        return Simple(line, said, tuple(words), tuple(redirections), operator, here)
