"""What a program or a training script may import, read from the source: signatures, docstrings.

Nothing is imported for it, so that no page needs torch or a trainer of another make. The two
packages say themselves what they export; `BESIDES` has what the documents name apart from that. A
test holds the list against `__all__`, the documents and the examples.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from fsdpkit.config import assets

PACKAGES = ("fsdpkit", "fsdpkit.training")
BESIDES: Mapping[str, tuple[str, ...]] = {
    "fsdpkit.script.huggingface": ("attach",),
    "fsdpkit.script.lightning": ("attach",),
    "fsdpkit.script.accelerate": ("attach", "AttachedRun"),
    "fsdpkit.training.distributed": ("on_first", "set_timeout"),
    "fsdpkit.training.export": ("export_hugging_face",),
    "fsdpkit.training.heartbeat": ("Heartbeat",),
    "fsdpkit.config.trainer": ("Trainer", "GpuVerdict", "CheckpointSize"),
    # What the others return.
    "fsdpkit.scheduling.states": ("JobState",),
    "fsdpkit.scheduling.saving": ("SaveRequest",),
    "fsdpkit.training.checkpoint": ("DataOrder",),
    "fsdpkit.training.hugging_face": ("Pretrained",),
}
Function = ast.FunctionDef | ast.AsyncFunctionDef
Kind = Literal["function", "class", "method", "property", "value"]


@dataclass(frozen=True)
class Public:
    """One name of the public interface.

    Attributes:
        name: As a program writes it after `import fsdpkit`; of a class's member, its last part.
        kind: What it is; a value is a constant or a field.
        doc: Its docstring, or the one below the value; None without.
        module: Where it is written, which for a member of a parent class is the parent's module.
        node: The statement that defines it.
        members: Of a class: what is public in it and in its parents of this project.
    """

    name: str
    kind: Kind
    doc: str | None
    module: str
    node: ast.stmt
    members: tuple[Public, ...] = ()

    @property
    def function(self) -> Function | None:
        """What is called; of a class its `__init__`, where it has one."""
        if isinstance(self.node, Function):
            return self.node
        if isinstance(self.node, ast.ClassDef):
            for module, parent in _family(self.module, self.node):
                del module
                for each in parent.body:
                    if isinstance(each, Function) and each.name == "__init__":
                        return each
        return None


def listed() -> dict[str, list[Public]]:
    """Everything public, by the package or module to import it from.

    Raises:
        LookupError: If a name is not where the list says.
    """
    found: dict[str, list[Public]] = {}
    for package in PACKAGES:
        found[package] = [
            _read(f"{package}.{name}", module, there) for name, module, there in exported(package)
        ]
    for module, names in BESIDES.items():
        found[module] = [_read(f"{module}.{name}", module, name) for name in names]
    return found


def exported(package: str) -> list[tuple[str, str, str]]:
    """The names that a package imports for type checkers alone, and on first use at run time.

    Args:
        package: A dotted name, such as `fsdpkit.training`.

    Returns:
        Of each: its name in the package, the module that it is from, and its name there.
    """
    return [
        (alias.asname or alias.name, str(line.module), alias.name)
        for block in tree(package).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    ]


@cache
def tree(module: str) -> ast.Module:
    """The source of a module, parsed; a package's is its `__init__.py`."""
    path = file_of(module)
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def file_of(module: str) -> Path:
    """The file of a module of this project.

    Args:
        module: A dotted name that begins with `fsdpkit`.

    Raises:
        LookupError: If there is no such module.
    """
    place = assets.package_dir().joinpath(*module.split(".")[1:])
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file():
            return path
    raise LookupError(f"there is no module {module}")


def _read(name: str, module: str, there: str) -> Public:
    module = _home(module, there)
    body = tree(module).body
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, Function) and node.name == there:
            return Public(name, "function", ast.get_docstring(node, clean=False), module, node)
        if isinstance(node, ast.ClassDef) and node.name == there:
            doc = ast.get_docstring(node, clean=False)
            return Public(name, "class", doc, module, node, tuple(_members(module, node)))
        if there in _assigned(node):
            return Public(name, "value", _string(below), module, node)
    raise LookupError(f"{module} has no {there}")


def _home(module: str, name: str) -> str:
    """Where `name` is written, if `module` itself only imports it."""
    for line in tree(module).body:
        if isinstance(line, ast.ImportFrom) and str(line.module).startswith("fsdpkit"):
            for alias in line.names:
                if name == (alias.asname or alias.name):
                    return _home(str(line.module), alias.name)
    return module


def _members(module: str, node: ast.ClassDef) -> Iterator[Public]:
    seen: set[str] = set()
    for home, parent in _family(module, node):
        for each, below in zip(parent.body, [*parent.body[1:], None], strict=True):
            for member in _member(home, each, below):
                if member.name not in seen and not member.name.startswith("_"):
                    seen.add(member.name)
                    yield member


def _member(module: str, node: ast.stmt, below: ast.stmt | None) -> Iterator[Public]:
    if isinstance(node, Function):
        decorators = {ast.unparse(each) for each in node.decorator_list}
        kind: Kind = "property" if "property" in decorators else "method"
        yield Public(node.name, kind, ast.get_docstring(node, clean=False), module, node)
        if node.name == "__init__":  # what it sets and says is public, too
            for line, after in zip(node.body, [*node.body[1:], None], strict=True):
                for name in _assigned(line):
                    if name.startswith("self.") and (doc := _string(after)):
                        yield Public(name.removeprefix("self."), "value", doc, module, line)
    elif isinstance(node, ast.AnnAssign):
        for name in _assigned(node):
            yield Public(name, "value", _string(below) or _meta(node.annotation), module, node)


def _family(module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    """A class, then its parents of this project, each with its module."""
    yield module, node
    for base in node.bases:
        home = _home(module, ast.unparse(base))
        for other in tree(home).body:
            if isinstance(other, ast.ClassDef) and other.name == ast.unparse(base):
                yield from _family(home, other)


def _assigned(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.AnnAssign):
        return [ast.unparse(node.target)]
    return [ast.unparse(each) for each in node.targets] if isinstance(node, ast.Assign) else []


def _string(node: ast.stmt | None) -> str | None:
    """The text of a statement that is nothing but a string."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value.value if isinstance(node.value.value, str) else None
    return None


def _meta(annotation: ast.expr) -> str | None:
    """The description of a setting: `Annotated[…, Meta(description=…)]`."""
    for call in ast.walk(annotation):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Meta":
            for keyword in call.keywords:
                if keyword.arg == "description":
                    return str(ast.literal_eval(keyword.value))
    return None
