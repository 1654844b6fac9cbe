"""The public interface is listed in full, and each docstring says what its signature needs."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpkit import errors
from fsdpkit.config.trainers import GROUP
from fsdpkit.reference import docstrings, public
from fsdpkit.reference.public import Function, Public
from tests.docs.documents import documents, read
from tests.docs.raising import raised_in
from tests.packaging.installation import ROOT

_DOTTED = re.compile(r"\bfsdpkit((?:\.\w+)+)(?![\w/-])")
_NUMBER = re.compile(r"\b(int|float)\b")
_UNIT = re.compile(
    r"\b(seconds?|s|minutes?|MB|bytes?|nodes?|GPUs?|ranks?|steps?|tokens?|samples?|epochs?|"
    r"checkpoints?|evaluations?|tasks?|attempts?|times|Tflop/s|FLOPs|L2 norm|[Ii]ndex|[Ii]ndices|"
    r"seed|status|signal|rate|numbers?|run)\b",
    re.IGNORECASE,
)
_SHAPE = re.compile(r"scalar|shape|\[\w.*\]|one element")
_USERS_OWN = ("own-model", "more-models", "huggingface", "lightning", "accelerate")
"""Examples that a user starts from; the T5 trainer is fsdpkit's own."""

NEVER = {"fsdpkit.training.Checkpointer.report": {"StorageError"}}
"""What a docstring leaves out, since what raises it is called only where it cannot."""


def all_public() -> Iterator[tuple[str, Public]]:
    """Each name and each member, with the path that a failure names."""
    for names in public.listed().values():
        for name in names:
            yield name.name, name
            yield from ((f"{name.name}.{member.name}", member) for member in name.members)


PUBLIC = dict(all_public())
CALLED = {path: one for path, one in PUBLIC.items() if one.kind in ("function", "class", "method")}


def doc_of(one: Public) -> docstrings.Docstring:
    assert one.doc, "it has no docstring"
    return docstrings.parse(one.doc)


# The list.


def test_what_the_packages_export_is_on_the_list() -> None:
    for name in public.PACKAGES:
        package = importlib.import_module(name)
        listed = {one.name.removeprefix(f"{name}.") for one in public.listed()[name]}
        assert listed == set(package.__all__) - {"__version__"}


@pytest.mark.parametrize("document", [d for d in documents() if not d.startswith("docs/reference")])
def test_what_a_document_names_is_on_the_list(document: str) -> None:
    assert [name for name in _DOTTED.findall(read(document)) if not _is_listed(name)] == []


def _is_listed(dotted: str) -> bool:
    """Whether `.training.shard` is a module of ours, or a public name in one."""
    module, _, name = f"fsdpkit{dotted}".rpartition(".")
    if f"{module}.{name}" in {*PUBLIC, GROUP}:
        return True
    try:
        public.file_of(f"{module}.{name}")
    except LookupError:
        return False
    return True


def test_what_an_example_imports_is_on_the_list() -> None:
    wrong = []
    for folder in _USERS_OWN:
        for path in (ROOT / "examples" / folder).glob("*.py"):
            wrong += [name for name in _used(path) if name not in PUBLIC]
    assert wrong == []


def _used(path: Path) -> Iterator[str]:
    """`fsdpkit.training.shard`, however it is imported or reached."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fsdpkit"):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in names if name not in public.PACKAGES)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "training":
            yield f"fsdpkit.training.{node.attr}"


# The docstrings.


@pytest.mark.parametrize("path", PUBLIC)
def test_it_has_a_summary_of_one_line(path: str) -> None:
    one = PUBLIC[path]
    if one.kind == "value":
        parent = PUBLIC.get(path.rpartition(".")[0])
        in_class = doc_of(parent).entries("Attributes") if parent else {}
        assert one.doc or path.rpartition(".")[2] in in_class
        return
    assert doc_of(one).summary.endswith((".", "`."))


@pytest.mark.parametrize("path", CALLED)
def test_it_describes_its_parameters_and_no_others(path: str) -> None:
    one = CALLED[path]
    described = [*doc_of(one).entries("Args")]
    if one.kind != "class" or described:
        assert described == [name for name, _ in _parameters(one.function)]
    else:  # a record or an error: it is made by fsdpkit, and read
        parameters = {name for name, _ in _parameters(one.function)} - {"message"}
        fields = {member.name for member in one.members if member.kind == "value"}
        attributes = {*doc_of(one).entries("Attributes")}
        assert attributes <= fields | parameters
        assert parameters <= attributes


@pytest.mark.parametrize("path", CALLED)
def test_numbers_have_units_and_tensors_shapes(path: str) -> None:
    doc, function = doc_of(CALLED[path]), CALLED[path].function
    words = doc.entries("Args")
    kinds = [(name, kind, words[name]) for name, kind in _parameters(function) if name in words]
    if function is not None and function.returns and "Returns" in doc.texts:
        kinds.append(("Returns", ast.unparse(function.returns), doc.texts["Returns"]))
    for name, kind, said in kinds:
        if _NUMBER.search(kind) and "Callable" not in kind and "tuple" not in kind:
            assert _UNIT.search(said) or re.search(r"_(s|mb|bytes)$", name), name
        if re.search(r"(?<!\.)\bTensor\b", kind) and "Callable" not in kind:
            assert _SHAPE.search(said), name


@pytest.mark.parametrize("path", CALLED)
def test_it_says_what_it_returns(path: str) -> None:
    doc, function = doc_of(CALLED[path]), CALLED[path].function
    texts = {"Returns", "Yields"} & doc.texts.keys()
    if function is None or CALLED[path].kind == "class" or function.returns is None:
        assert texts == set()
        return
    returns = ast.unparse(function.returns)
    yields = returns.startswith("Iterator")
    assert texts == (set() if returns == "None" else {"Yields" if yields else "Returns"})


@pytest.mark.parametrize("path", CALLED)
def test_what_it_raises_is_said(path: str) -> None:
    """What a `raise` in it names, or in a function of the same module that it calls."""
    one = CALLED[path]
    said = [_exception(name, one.module) for name in doc_of(one).entries("Raises")]
    if one.function is not None:
        for name in raised_in(one.module, one.function) - NEVER.get(path, set()):
            assert issubclass(_exception(name, one.module), tuple(said)), name


def _exception(name: str, module: str) -> type[BaseException]:
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    for line in ast.walk(public.tree(module)):  # also what a function imports for itself
        if isinstance(line, ast.ImportFrom) and name in {alias.name for alias in line.names}:
            found = found or getattr(importlib.import_module(str(line.module)), name)
    assert isinstance(found, type), f"there is no {name}"
    assert issubclass(found, BaseException), f"{name} is no exception"
    return found


def _parameters(function: Function | None) -> list[tuple[str, str]]:
    """Names as a docstring has them, with what they are annotated with."""
    if function is None:
        return []
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    found = [(each.arg, each) for each in named if each.arg not in ("self", "cls")]
    at = len(given.posonlyargs) + len(given.args) - (len(named) - len(found))
    if given.vararg:
        found.insert(at, (f"*{given.vararg.arg}", given.vararg))
    if given.kwarg:
        found.append((f"**{given.kwarg.arg}", given.kwarg))
    return [(name, ast.unparse(each.annotation) if each.annotation else "") for name, each in found]


# The style.

WRONG = {
    "no blank line": "One.\nTwo.",
    "no section": "One.\n\nArguments:\n    a: b",
    "not `name: words`": "One.\n\nArgs:\n    a without words",
    "twice": "One.\n\nArgs:\n    a: b\n    a: c",
    "occurs twice": "One.\n\nReturns:\n    a\n\nReturns:\n    b",
    "not indented": "One.\n\nReturns:\n    a\n\nbehind",
    "nothing is in": "One.\n\nRaises:\n",
    "begins with a line that goes on": "One.\n\nArgs:\n    \n        a: b\n    c: d",
}


@pytest.mark.parametrize("why", WRONG)
def test_a_slip_in_the_style_is_refused(why: str) -> None:
    with pytest.raises(ValueError, match=why):
        docstrings.parse(WRONG[why])


def test_the_parts_of_a_docstring_are_told_apart() -> None:
    doc = docstrings.parse(
        """Do it.

        Why: because.

        - one
        - two

        Args:
            a: First
                line.
            **b: Second.

        Returns:
            A word: or two.

        Raises:
            ValueError: Never.
        """
    )
    assert doc.summary == "Do it."
    assert doc.paragraphs == ("Why: because.", "- one\n- two")
    assert doc.lists == {
        "Args": {"a": "First line.", "**b": "Second."},
        "Raises": {"ValueError": "Never."},
    }
    assert doc.texts == {"Returns": "A word: or two."}
