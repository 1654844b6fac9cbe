"""Bash as far as a batch script needs it to be read: commands, compound commands, words.

Words stay as they were written; walking.py expands them. Raises BashError for what bash itself
would not read, and for nesting that nobody writes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass

from fsdpkit.errors import ConfigError

_DEEPEST = 40
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|[;&|()\n]")
_REDIRECTION = re.compile(r"(?:\d+|\{\w+\})?(?:<<<|<<-|<<|>>|<>|>\||>&|<&|>|<)|&>>|&>")
_ARRAY = re.compile(r"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=")
_ENDS_WORD = frozenset(" \t\n;&|()<>")


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
class Branch:
    """Commands that run if the condition holds; no condition: an `else`, or the only body."""

    condition: tuple[Node, ...]
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Block:
    """A compound command: `if`, `for`, `while`, `until`, `case`, `function`, `{` or `(`."""

    kind: str
    line: int
    text: str
    branches: tuple[Branch, ...]
    name: str = ""
    """Of a function, or of the variable of a `for`."""


Node = Simple | Block


def parse(text: str) -> tuple[Node, ...]:
    """The commands of a script. Raises BashError."""
    parser = _Parser(text)
    nodes = parser.commands(())
    if (token := parser.peek()) is not None:
        raise BashError(f"line {parser.line_at(token.at)}: unexpected {token.text!r}")
    return nodes


def skip_quoted(text: str, at: int, line: int) -> int:
    """The position behind the quoted text, expansion or escape that begins at `at`."""
    ends = {"(": ")", "{": "}"}
    char, following = text[at], text[at + 1 : at + 2]
    if char == "\\":
        return at + 2
    if char == "$" and following == "'":
        return _until(text, at + 2, "'", line, escapes=True)
    if char == "$" and following in ends:
        return skip_nested(text, at + 2, ends[following], line)
    if char == "'":
        return _until(text, at + 1, "'", line, escapes=False)
    if char == "`":
        return _until(text, at + 1, "`", line, escapes=True)
    if char == '"':
        at += 1
        while at < len(text) and text[at] != '"':
            inner = text[at] in "\\`" or (text[at] == "$" and text[at + 1 : at + 2] in ends)
            at = skip_quoted(text, at, line) if inner else at + 1
        if at >= len(text):
            raise BashError(f'line {line}: a " is never closed')
        return at + 1
    return at + 1


def skip_nested(text: str, at: int, end: str, line: int) -> int:
    """The position behind the `)` or `}` that closes what was opened before `at`."""
    opens, depth = {")": "(", "}": "{"}[end], 1
    while at < len(text):
        if text[at] in "\\'\"`$":
            at = skip_quoted(text, at, line)
            continue
        if text[at] == "#" and end == ")" and text[at - 1] in " \t\n":
            at = _end_of_line(text, at)
            continue
        depth += (text[at] == opens) - (text[at] == end)
        at += 1
        if not depth:
            return at
    raise BashError(f"line {line}: a {opens} is never closed")


def _until(text: str, at: int, end: str, line: int, *, escapes: bool) -> int:
    while at < len(text) and text[at] != end:
        at += 2 if escapes and text[at] == "\\" else 1
    if at >= len(text):
        raise BashError(f"line {line}: a {end} is never closed")
    return at + 1


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
    """Recursive descent over tokens; here-documents are skipped where a line ends."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self.pending: list[tuple[str, bool]] = []
        self.ahead: _Token | None = None

    def line_at(self, at: int) -> int:
        return bisect_right(self.lines, at)

    def peek(self) -> _Token | None:
        if self.ahead is None:
            self.ahead = self._token()
        return self.ahead

    def take(self) -> _Token:
        token = self.peek()
        if token is None:
            raise BashError(f"line {len(self.lines)}: the script ends inside a command")
        self.ahead, self.at = None, token.end
        if token.text == "\n" and token.kind == "operator":
            self._skip_here_documents()
        return token

    def _token(self) -> _Token | None:
        text, at = self.text, self.at
        while at < len(text):
            if text[at] in " \t":
                at += 1
            elif text.startswith("\\\n", at):
                at += 2
            elif text[at] == "#":
                at = _end_of_line(text, at)
            else:
                break
        if at >= len(text):
            return None
        if found := _REDIRECTION.match(text, at):
            if text[found.end() - 1 : found.end() + 1] not in ("<(", ">("):
                return _Token("redirection", found.group(), at, found.end())
        elif found := _OPERATOR.match(text, at):
            return _Token("operator", found.group(), at, found.end())
        end = self._word_end(at)
        return _Token("word", text[at:end], at, end)

    def _word_end(self, start: int) -> int:
        text, at, line = self.text, start, self.line_at(start)
        while at < len(text):
            char = text[at]
            if char in "<>" and text[at + 1 : at + 2] == "(":
                at = skip_nested(text, at + 2, ")", line)
            elif char == "(" and _ARRAY.fullmatch(text, start, at):
                at = skip_nested(text, at + 1, ")", line)
            elif char in _ENDS_WORD:
                break
            else:
                at = skip_quoted(text, at, line)
        return min(at, len(text))

    def _skip_here_documents(self) -> None:
        for word, tabs in self.pending:
            while self.at < len(self.text):
                end = _end_of_line(self.text, self.at)
                row, self.at = self.text[self.at : end], min(end + 1, len(self.text))
                if (row.lstrip("\t") if tabs else row) == word:
                    break
        self.pending = []

    def commands(self, ends: Collection[str]) -> tuple[Node, ...]:
        """Up to one of the words or operators that end them, which is not taken."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise BashError(f"line {self.line_at(self.at)}: nested more than {_DEEPEST} deep")
        nodes: list[Node] = []
        while (token := self.peek()) is not None and token.text not in ends:
            if token.kind == "operator" and token.text in ("\n", ";", "&"):
                self.take()
            elif token.kind == "operator" and token.text in (")", ";;", ";&", ";;&"):
                break
            else:
                nodes.append(self._command())
        self.depth -= 1
        return tuple(nodes)

    def _expect(self, word: str, line: int) -> None:
        token = self.peek()
        if token is None or token.text != word:
            raise BashError(f"line {line}: no {word!r} where one belongs")
        self.take()

    def _command(self) -> Node:
        token = self.peek()
        assert token is not None
        line = self.line_at(token.at)
        header = self.text[token.at : _end_of_line(self.text, token.at)].strip()
        if self.text.startswith("((", token.at):
            return self._arithmetic(token)
        if token.text in ("(", "{"):
            opening, closing = self.take().text, "})"[token.text == "("]
            body = self.commands((closing,))
            self._expect(closing, line)
            return self._rest(Block(opening, line, header, (Branch((), body),)))
        if token.kind == "word":
            if token.text in ("while", "until", "if"):
                return self._rest(self._conditional(token.text, line, header))
            if token.text in ("for", "select"):
                return self._rest(self._loop(line, header))
            if token.text == "case":
                return self._rest(self._case(line, header))
            if token.text == "function":
                self.take()
                return self._function(self.take().text, line, header)
        return self._simple(line)

    def _arithmetic(self, token: _Token) -> Simple:
        end = skip_nested(self.text, token.at + 1, ")", self.line_at(token.at))
        self.ahead, self.at = None, end
        text = self.text[token.at : end]
        return Simple(self.line_at(token.at), text, (text,), (), self._operator())

    def _conditional(self, kind: str, line: int, header: str) -> Block:
        branches, opening = [], "then" if kind == "if" else "do"
        self.take()
        while True:
            condition = self.commands((opening,))
            self._expect(opening, line)
            body = self.commands(("elif", "else", "fi") if kind == "if" else ("done",))
            branches.append(Branch(condition, body))
            ending = self.take().text
            if ending == "else":
                branches.append(Branch((), self.commands(("fi",))))
                self._expect("fi", line)
            if ending != "elif":
                return Block(kind, line, header, tuple(branches))

    def _loop(self, line: int, header: str) -> Block:
        self.take()
        name = self.take().text
        while (token := self.peek()) is not None and token.text != "do":
            self.take()
        self._expect("do", line)
        body = self.commands(("done",))
        self._expect("done", line)
        return Block("for", line, header, (Branch((), body),), name)

    def _case(self, line: int, header: str) -> Block:
        branches: list[Branch] = []
        while (token := self.take()).text != "in":
            if token.text == "\n" and token.kind == "operator":
                raise BashError(f"line {line}: no 'in' where one belongs")
        while True:
            token = self.take()
            if token.text == "esac":
                return Block("case", line, header, tuple(branches))
            if token.text == ")":
                body = self.commands(("esac",))
                branches.append(Branch((), body))

    def _function(self, name: str, line: int, header: str) -> Node:
        while (token := self.peek()) is not None and token.text in ("(", ")", "\n"):
            self.take()
        body = self._command()
        return Block("function", line, header, (Branch((), (body,)),), name)

    def _rest(self, block: Block) -> Block:
        """Redirections behind a compound command are read over."""
        while (token := self.peek()) is not None and token.kind == "redirection":
            self._redirection()
        self._operator()
        return block

    def _redirection(self) -> tuple[str, bool]:
        token = self.take()
        target = self.take()
        here = token.text.lstrip("0123456789") in ("<<", "<<-")
        if here:
            self.pending.append((re.sub(r"[\"'\\]", "", target.text), token.text.endswith("-")))
        return token.text + target.text, here

    def _operator(self) -> str:
        token = self.peek()
        if token is None or token.kind != "operator" or token.text in (")", ";;", ";&", ";;&"):
            return ""
        self.take()
        if token.text in ("&&", "||", "|", "|&"):
            while (after := self.peek()) is not None and after.text == "\n":
                self.take()
        return "" if token.text == "\n" else token.text

    def _simple(self, line: int) -> Node:
        first = self.peek()
        assert first is not None
        start, end = first.at, first.end
        words: list[str] = []
        redirections: list[str] = []
        here = False
        test = first.text == "[["
        while (token := self.peek()) is not None:
            if token.kind == "redirection" and not test:
                said, is_here = self._redirection()
                redirections.append(said)
                here = here or is_here
                end = self.at
                continue
            if token.kind == "operator" and not test:
                if token.text == "(" and len(words) == 1:
                    header = self.text[start : _end_of_line(self.text, start)].strip()
                    return self._function(words[0], line, header)
                if token.text == "(":
                    raise BashError(f"line {self.line_at(token.at)}: unexpected '('")
                break
            words.append(self.take().text)
            end = token.end
            test = test and token.text != "]]"
        said = self.text[start:end]
        operator = self._operator()
        return Simple(line, said, tuple(words), tuple(redirections), operator, here)
