"""Modules that a forked rank has loaded but its script has not imported yet.

The fork server loads each library in a group of its own, and notes what that reads and changes. In
a rank, their modules are set aside: they are not in `sys.modules`, and whatever of the process
their import had changed is as before. When the script first imports one of them, a finder compares
what the import would have seen with what it saw in the server. If it is the same, the modules are
put back, and the process is as if they had been imported then. If not, the process starts again as
a new one, with its first command and environment: nothing of the script but its first lines has
run, and the ranks have not met.

Nothing is concluded from the script's source.
"""

from __future__ import annotations

import builtins
import logging
import os
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from fsdpkit.launching import fork_safety
from fsdpkit.launching.import_surroundings import ImportSurroundings
from fsdpkit.launching.job_log import say
from fsdpkit.launching.no_collector import no_collector
from fsdpkit.launching.restart_in_place import RankStart
from fsdpkit.runs.heartbeat import HeartbeatDir

FIRST = ("numpy.random", "torch")
"""Loaded in this order. Their shared libraries read the environment by themselves; what is loaded
later is Python, whose reads are noted."""
WITH_TORCH = (
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.distributed.fsdp",
    "torch.utils.data",
    "torch._dynamo",
)
"""What a script that imports torch comes to need; the last by the first step of an optimizer."""
TRAINER = (
    *("fsdpkit.training.checkpoint", "fsdpkit.training.sharding", "fsdpkit.training.optimizers"),
    *("fsdpkit.training.metrics", "fsdpkit.data.loading", "torch.nn.attention.flex_attention"),
)
_SET_WHEN_NEEDED = "TORCHINDUCTOR_CACHE_DIR"
"""torch's compiler sets it, below TMPDIR, when it is imported and whenever it is used: a script may
change TMPDIR before it compiles anything."""
_READ_WHEN_NEEDED = frozenset({_SET_WHEN_NEEDED, "TMPDIR", "TMP", "TEMP"})


@dataclass
class Group:
    """What importing `name` has loaded, read and changed."""

    name: str
    packages: dict[str, dict[str, Any]]
    """The modules by name, of each top-level package that are new."""
    imports: dict[str, set[str]]
    """Which packages each package has imported."""
    reads: set[str]
    environ: dict[str, str | None]
    """The variables that it set, or removed."""
    filters: list[Any]
    loggers: list[logging.Logger]
    attributes: list[tuple[Any, str, Any]]
    """Modules of the group as attributes of packages of an earlier one."""
    named: set[str] = field(default_factory=set)
    """Of the reads, those of variables that were asked for by name."""

    @classmethod
    def ours(cls) -> Group:
        """The libraries that this process itself has imported so far."""
        names = list(sys.modules)
        packages: dict[str, dict[str, Any]] = {}
        for name in names[names.index("fsdpkit") :]:
            if _top(name) != "fsdpkit" and (package := _package(name, first=True)):
                packages.setdefault(package, {})[name] = sys.modules[name]
        return cls("", packages, {}, set(), {}, [], [], [])

    @property
    def first(self) -> bool:
        return self.name in FIRST


@dataclass
class SetAside:
    """The groups of this process, and the finder that watches over those that are set aside."""

    groups: list[Group] = field(default_factory=lambda: [Group.ours()])
    missing: set[str] = field(default_factory=set)
    """Modules that imports looked for and did not find."""
    _pending: dict[str, tuple[Group, str]] = field(default_factory=dict)
    _loading: bool = False
    start: RankStart | None = None
    """Of this rank; None in the fork server."""
    _before: ImportSurroundings | None = None
    _said: set[str] = field(default_factory=set)

    # In the fork server

    def load(self, name: str) -> set[str]:
        """Import the module `name` and what it needs, as a group of its own. Returns the names of
        variables that were read. Raises what the import raises."""
        known, environ = set(sys.modules), dict(os.environ)
        loaded_first = known - set(self._names())
        filters, loggers = list(warnings.filters), set(logging.root.manager.loggerDict)
        self._hide()
        self._loading = True
        try:
            with (
                no_collector(),
                fork_safety.reads_of_variables() as reads,
                fork_safety.missing_modules() as missing,
                _imports_of_packages() as imports,
            ):
                __import__(name)
            added = [each for each in warnings.filters if each not in filters]
        finally:
            self._loading = False
            self.put_back()
            warnings.filters[:] = filters  # type: ignore[index]
        warnings.filters[:0] = added  # type: ignore[index]
        _filters_changed()
        self.missing |= missing
        packages: dict[str, dict[str, Any]] = {}
        for each in [each for each in sys.modules if each not in known]:
            if package := _package(each, first=name in FIRST):
                packages.setdefault(package, {})[each] = sys.modules[each]
        group = Group(
            name,
            packages,
            imports,
            reads,
            {
                each: os.environ.get(each)
                for each in environ.keys() | os.environ.keys()
                if environ.get(each) != os.environ.get(each) and each != _SET_WHEN_NEEDED
            },
            added,
            [
                each
                for name, each in logging.root.manager.loggerDict.items()
                if name not in loggers and isinstance(each, logging.Logger)
            ],
            list(_attributes(packages, loaded_first | set(self._names()))),
            reads.named,
        )
        self.groups.append(group)
        return reads

    def _names(self) -> Iterator[str]:
        for group in self.groups:
            for modules in group.packages.values():
                yield from modules

    # In a rank

    def begin(self) -> None:
        """Set everything aside: the next line is the script's first one."""
        self._hide()
        self._before = ImportSurroundings.now()

    def _hide(self) -> None:
        added = [each for group in self.groups for each in group.filters]
        warnings.filters[:] = [each for each in warnings.filters if each not in added]  # type: ignore[index]
        for group in self.groups:
            for package, modules in group.packages.items():
                for name in modules:
                    if sys.modules.pop(name, None) is not None:
                        self._pending[name] = (group, package)
            for parent, name, _ in group.attributes:
                with suppress(AttributeError):
                    delattr(parent, name)
        _filters_changed()
        sys.meta_path.insert(0, self)

    def put_back(self) -> None:
        """Everything that is still set aside, whatever has changed: the script has ended."""
        for group in self.groups:
            self._restore(group, [*group.packages], anew=False)
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Python's import asks it first for what is not in `sys.modules`. Changes nothing: programs
        also ask whether there is such a module."""
        if name not in self._pending:
            return None
        group, package = self._pending[name]
        spec = getattr(group.packages[package][name], "__spec__", None)
        if _is_pythons(package) and spec and self._origin_now(name, path) != spec.origin:
            return None  # there is another one by now, which the script gets
        loader: Any = _Loader(self, name, spec)
        found = ModuleSpec(name, loader)
        if spec is not None:
            vars(found).update({**vars(spec), "loader": loader})
        return found

    def _origin_now(self, name: str, path: Any) -> str | None:
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, None)):
                return spec.origin
        return None

    def take(self, name: str) -> Any:
        """The module, which the script imports now, with what came with it."""
        if name not in self._pending:
            return sys.modules[name]
        group, package = self._pending[name]
        module = group.packages[package][name]
        groups = self.groups[: self.groups.index(group) + 1]
        packages = _reached(package, groups)
        if not self._loading:
            for each in groups:
                self._compare(each, packages, name)
        for each in groups:
            self._restore(each, packages)
        return module

    def _restore(self, group: Group, packages: Collection[str], *, anew: bool = True) -> None:
        modules = self._still_aside(group, packages)
        for name, module in modules.items():
            self._pending.pop(name, None)
            sys.modules.setdefault(name, module)
        for parent, name, module in group.attributes:
            if f"{parent.__name__}.{name}" not in self._pending:
                setattr(parent, name, module)
        if anew and group.name in modules:
            for name, value in group.environ.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            filters = [each for each in warnings.filters if each not in group.filters]
            warnings.filters[:] = [*group.filters, *filters]  # type: ignore[index]
            _filters_changed()
            for logger in group.loggers:  # logging.config disables those that there are
                logger.disabled = False
        if not self._pending and not self._loading and self in sys.meta_path:
            sys.meta_path.remove(self)

    def _still_aside(self, group: Group, packages: Collection[str]) -> dict[str, Any]:
        return {
            name: module
            for package, modules in group.packages.items()
            if package in packages
            for name, module in modules.items()
            if name in self._pending
        }

    def _compare(self, group: Group, packages: Collection[str], name: str) -> None:
        """Start anew if importing `name` would make another thing of the group by now."""
        assert self._before is not None
        modules = self._still_aside(group, packages)
        if all(_is_pythons(_top(each)) for each in modules):  # the same file is the same module
            return
        tops = {each: module for each, module in modules.items() if "." not in each or each == name}
        taken = [each for each in modules if each in sys.modules]
        other = f"another {taken[0]} was loaded" if taken else None
        if why := other or self._before.modules_changed(tops, self.missing):
            self._differs(f"{why} before {name} was imported", fatal=group.first)
        elif why := (
            self._before.settings_changed()
            if group.first
            else self._before.reads_changed(_reads(group))
        ):
            self._differs(f"{why} before {name} was imported")

    def before_ranks_meet(self) -> None:
        """What torch loads later may be imported only when it is too late to start anew: look."""
        if self._before is None or FIRST[-1] in self._pending:
            return
        for group in {id(group): group for group, _ in self._pending.values()}.values():
            if why := self._before.reads_changed(_reads(group)):
                self._differs(f"{why} before {group.name} was imported")

    def _differs(self, why: str, *, fatal: bool = False) -> None:
        """Start this process anew if that loses nothing but its script's first lines; otherwise
        say that it goes on with what is loaded, or end if that is fatal. Later launches know."""
        assert self.start is not None
        first, where = why not in self._said, f"{why}, at {_place()}"
        self._said.add(why)
        # Before torch, ranks cannot have met.
        met = FIRST[-1] not in self._pending and fork_safety.has_sockets()
        if os.getpid() == self.start.pid and not met:
            self._note(where)
            self.start.again()
        self._note(f"{where}, too late to start this process anew")
        if fatal:
            sys.exit(f"fsdpkit: {where}: the next launch will import it from there")
        if first:
            say(f"warning: {where}: that has an effect from the next launch on", sys.stderr)

    def _note(self, why: str) -> None:
        assert self.start is not None
        if where := self.start.environ.get("FSDPKIT_HEARTBEAT_DIR"):
            HeartbeatDir(Path(where)).note_start_anew(why)


class _Loader:
    """Gives the import system a module that is loaded already."""

    def __init__(self, aside: SetAside, name: str, spec: ModuleSpec | None) -> None:
        self._aside, self._name, self._spec = aside, name, spec

    def create_module(self, _: ModuleSpec) -> Any:
        return self._aside.take(self._name)

    def exec_module(self, module: Any) -> None:
        with suppress(AttributeError):
            module.__spec__ = self._spec  # the import system has replaced it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # whoever copies it
            raise AttributeError(name)
        return getattr(self._spec and self._spec.loader, name)


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is_pythons(package: str) -> bool:
    return package in sys.stdlib_module_names


def _package(module: str, *, first: bool) -> str | None:
    """Of which package the module is set aside; None if it stays. Python's own that torch needs
    stay: a file that replaces one of them would replace it for torch, too. So do the script itself,
    and what Cython keeps there without a finder."""
    top = _top(module)
    if top in ("__main__", "__mp_main__") or (first and _is_pythons(top)):
        return None
    return top if getattr(sys.modules.get(top), "__spec__", None) else None


def _reached(package: str, groups: Sequence[Group]) -> set[str]:
    """The package, what it has imported in these groups, what that has imported, and so on."""
    found, ahead = set[str](), {package}
    while ahead:
        found |= ahead
        ahead = {to for g in groups for each in ahead for to in g.imports.get(each, ())} - found
    return found


@contextmanager
def _imports_of_packages() -> Iterator[dict[str, set[str]]]:
    """Collects which top-level package imports which others in the block."""
    found: dict[str, set[str]] = {}
    before = builtins.__import__

    def note(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        importer, imported = _top((globals or {}).get("__name__") or ""), _top(name)
        if not level and (_is_pythons(imported) or not _is_pythons(importer)):
            found.setdefault(importer, set()).add(imported)
        return before(name, globals, locals, fromlist, level)

    builtins.__import__ = note
    try:
        yield found
    finally:
        builtins.__import__ = before


def _reads(group: Group) -> set[str]:
    return group.reads - _READ_WHEN_NEEDED if _top(group.name) == "torch" else group.reads


def _attributes(
    packages: Mapping[str, Mapping[str, Any]], before: Collection[str]
) -> Iterator[tuple[Any, str, Any]]:
    """What a package that was there before has got of the new modules."""
    for modules in packages.values():
        for name, module in modules.items():
            parent, _, last = name.rpartition(".")
            if parent in before and vars(sys.modules[parent]).get(last) is module:
                yield sys.modules[parent], last, module


def _filters_changed() -> None:
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _place() -> str:
    """Where in the script, or the module of its own, an import or an assignment stands."""
    frame = sys._getframe(1)
    while (back := frame.f_back) and _is_not_the_script_s(frame.f_code.co_filename):
        frame = back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _is_not_the_script_s(file: str) -> bool:
    here = os.path.dirname(__file__)
    return (
        file.startswith(("<frozen ", here, os.path.dirname(os.__file__))) or "site-packages" in file
    )
