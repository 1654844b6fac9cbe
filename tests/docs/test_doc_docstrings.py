"""The public interface is listed in full, and each docstring says what its signature needs.

What is public stands in docs/reference/python.md. `make docs` reads the docstrings too, and refuses
an argument that the signature does not have.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.config.trainers import GROUP
from tests.docs.documents import documents, read
from tests.packaging.installation import ROOT

PACKAGES = ("fsdpkit", "fsdpkit.training")
PUBLIC = re.findall(r"^::: (fsdpkit[\w.]*\.\w+)$", read("docs/reference/python.md"), re.MULTILINE)
_DOTTED = re.compile(r"\bfsdpkit((?:\.\w+)+)(?![\w/-])")
_USERS_OWN = ("own-model", "more-models", "huggingface", "lightning", "accelerate")
"""Examples that a user starts from; the T5 trainer is fsdpkit's own."""
_SECTION = re.compile(r"^Args:\n((?:    .*\n|\n)+)", re.MULTILINE)


def found(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def called() -> Iterator[tuple[str, Any]]:
    """Functions, classes and what is public in a class of ours."""
    for name in PUBLIC:
        one = found(name)
        if not callable(one):
            continue
        yield name, one
        for member, value in inspect.getmembers(one) if inspect.isclass(one) else ():
            ours = str(getattr(value, "__module__", "")).startswith("fsdpkit")
            if ours and callable(value) and inspect.isroutine(value) and not member.startswith("_"):
                yield f"{name}.{member}", value


# The list


def test_what_the_packages_export_is_on_the_list() -> None:
    for package in PACKAGES:
        exported = set(importlib.import_module(package).__all__) - {"__version__"}
        assert {f"{package}.{name}" for name in exported} - set(PUBLIC) == set()


@pytest.mark.parametrize("document", documents())
def test_what_a_document_names_is_on_the_list(document: str) -> None:
    assert [name for name in _DOTTED.findall(read(document)) if not is_listed(name)] == []


def is_listed(dotted: str) -> bool:
    """Whether `.training.shard` is a public name, what is in one, or a module of ours."""
    name = f"fsdpkit{dotted}"
    owner, _, member = name.rpartition(".")
    if owner in PUBLIC:
        return hasattr(found(owner), member)
    module = ROOT.joinpath(*name.split("."))
    return name in {*PUBLIC, GROUP} or module.with_suffix(".py").exists() or module.is_dir()


def test_what_an_example_imports_is_on_the_list() -> None:
    wrong = []
    for folder in _USERS_OWN:
        for path in (ROOT / "examples" / folder).glob("*.py"):
            wrong += [name for name in used(path) if name not in PUBLIC]
    assert wrong == []


def used(path: Path) -> Iterator[str]:
    """`fsdpkit.training.shard`, however it is imported or reached."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fsdpkit"):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in names if name not in PACKAGES)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "training":
            yield f"fsdpkit.training.{node.attr}"


# The docstrings


def test_each_has_a_summary_and_describes_its_parameters() -> None:
    wrong = []
    for name, one in called():
        doc = f"{inspect.getdoc(one) or ''}\n"
        summary, _, rest = doc.partition("\n")
        if not summary.endswith(".") or rest.partition("\n")[0]:
            wrong.append(f"{name}: {summary!r} is no sentence on a line of its own")
        # A record or an error without a section is made by fsdpkit, and read.
        made_by_users = described(doc) or not inspect.isclass(one)
        if made_by_users and described(doc) != parameters(one):
            wrong.append(f"{name}: {described(doc)} are not {parameters(one)}")
    assert wrong == []


def described(doc: str) -> list[str]:
    sections = _SECTION.findall(doc)
    return re.findall(r"^    (\*{0,2}\w+): ", sections[0], re.MULTILINE) if sections else []


def parameters(one: Any) -> list[str]:
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        f"{marks.get(each.kind, '')}{name}"
        for name, each in inspect.signature(one).parameters.items()
        if name not in ("self", "cls")
    ]
