"""Text that every Python carries: its own documentation, so that a first run needs no download.

The standard library's sources give pairs (write a function's docstring from its code), the language
reference that `help()` shows gives running text (fill the gaps).
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

# Well documented and quick to parse: a third of a second for some 1,700 functions. A module that
# a Python version lacks is left out.
# fmt: off
MODULES = [
    "_collections_abc", "_pydecimal", "_pydatetime", "bdb", "bisect", "calendar", "cmd", "code",
    "codecs", "configparser", "contextlib", "datetime", "difflib", "dis", "fileinput",
    "fractions", "ftplib", "functools", "genericpath", "graphlib", "heapq", "hmac", "imaplib",
    "inspect", "ipaddress", "linecache", "lzma", "numbers", "operator", "pathlib", "platform",
    "poplib", "posixpath", "random", "sched", "secrets", "selectors", "shlex", "shutil", "site",
    "smtplib", "socket", "socketserver", "stat", "statistics", "symtable", "tarfile",
    "textwrap", "threading", "traceback", "typing",
]
# fmt: on


def docstrings() -> Iterator[tuple[str, str]]:
    """(code without its docstring, docstring) of every documented function in MODULES."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in (library / f"{name}.py" for name in MODULES):
        if not path.exists():
            continue
        code = path.read_text(encoding="utf-8")
        lines = code.splitlines()
        for function in _functions(ast.parse(code).body):
            docstring = ast.get_docstring(function)
            if docstring and len(function.body) > 1:
                header = lines[function.lineno - 1 : function.body[0].lineno - 1]
                body = lines[function.body[1].lineno - 1 : function.end_lineno]
                yield "\n".join(line.strip() for line in header + body), docstring


def topics() -> Iterator[tuple[str]]:
    """The language reference, one text a topic."""
    from pydoc_data.topics import topics as by_name

    for _, text in sorted(by_name.items()):
        yield (text,)


def _functions(body: Sequence[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body)
