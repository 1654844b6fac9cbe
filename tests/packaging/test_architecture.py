"""The rooms of the house and which may know which: arrows point down, and start-up stays light.

The design's map, checked: `cli` → `publishing`, `planning`, `reporting` → `scheduling`, `runs` →
`rendering` → `config`. What runs inside a job (`launching`, `training`) knows the run directory,
nothing above; `data` knows the settings that name it, and files.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packaging.import_circles import circle_in, graph_of
from tests.packaging.installation import ROOT
from tests.programs import ran

PACKAGE = ROOT / "fsdpkit"


def _told_by_the_map() -> dict[str, set[str]]:
    """What each room may use, by the second column of the map's table. `errors`, `bounded`,
    `listing`, `process_limits` and the package itself are open to all."""
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    table = text.partition("## Who may know whom")[2].partition("\n## ")[0]
    rows = [row.split(" | ") for row in table.splitlines() if row.startswith("| `")]
    return {row[0].strip("| `"): set(re.findall(r"`([\w.]+)`", row[1])) for row in rows}


MAY_IMPORT = _told_by_the_map()
MAY_IMPORT_TORCH_AT_ONCE = ("training", "planning")
# Run in the job's own process tree only, and are imported there inside a function.
ALSO_TORCH = ("launching/ranks.py", "launching/rank_files.py", "launching/rendezvous.py")


@dataclass(frozen=True)
class Import:
    """One import statement. `at_once`: it runs when its module is imported."""

    file: str
    line: int
    module: str
    at_once: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def imports_of(path: Path) -> Iterator[Import]:
    """Every module that a file imports, type checking apart; `from a import b` names a and a.b."""
    file = path.relative_to(PACKAGE).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))

    def walk(node: ast.AST, at_once: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            at_once = False
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, at_once)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports relatively"
            for alias in node.names:
                yield Import(file, node.lineno, f"{node.module}.{alias.name}", at_once)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, at_once)

    return walk(tree, True)


@functools.cache
def all_imports() -> list[Import]:
    return [found for path in sorted(PACKAGE.rglob("*.py")) for found in imports_of(path)]


def rooms() -> list[str]:
    return sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py"))


def within(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def test_every_room_is_on_the_map() -> None:
    assert set(rooms()) == set(MAY_IMPORT)


def test_the_map_names_only_what_there_is() -> None:
    """A module that is gone would leave a permission behind."""
    named = {name for names in MAY_IMPORT.values() for name in names}
    paths = {name: PACKAGE / name.replace(".", "/") for name in named}
    assert [
        n for n, p in paths.items() if not p.is_dir() and not p.with_suffix(".py").exists()
    ] == []


@pytest.mark.parametrize("room", rooms())
def test_a_room_knows_only_what_lies_below_it(room: str) -> None:
    allowed = {
        f"fsdpkit.{name}"
        for name in {
            *(room, "errors", "bounded", "listing", "process_limits", "__version__"),
            *MAY_IMPORT[room],
        }
    }
    wrong = [
        str(found)
        for found in all_imports()
        if found.file.startswith(f"{room}/")
        and found.module.startswith("fsdpkit.")
        and not within(found.module, allowed)
    ]
    assert wrong == []


# Of these a login node names a job by its number; about what else, other modules may ask.
ABOUT_JOBS = {"squeue", "sacct", "scancel", "scontrol"}
ABOUT_NO_JOB = {"config", "ping", "partition", "node", "--all"}


def words_of(node: ast.AST) -> list[str]:
    """The words of a command that are spelled in a list, or in what is called `answer` or `_do`."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.List | ast.Tuple):
        parts = node.elts
    elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("answer", "_do"):
        parts = node.args
    words = [part.value for part in parts if isinstance(part, ast.Constant)]
    return [word for word in words if isinstance(word, str)]


def commands_about_jobs(path: Path) -> list[str]:
    """Where a file spells a command of Slurm's that can name a job."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    commands = [(getattr(node, "lineno", 0), words_of(node)) for node in ast.walk(tree)]
    return [
        f"{path.name}:{line} {' '.join(words)}"
        for line, words in commands
        if words and words[0] in ABOUT_JOBS and not {*ABOUT_NO_JOB, *ABOUT_JOBS} & {*words[1:]}
    ]


def test_one_module_alone_speaks_to_slurm_about_a_job_and_takes_its_mark() -> None:
    """A bare number may be another's job: on a second cluster, or once a controller counts anew."""
    client = PACKAGE / "scheduling/slurm.py"
    # What stands in for Slurm's commands inside a job, or asks about the one that it is in, and the
    # words that batch files may hold.
    inside = {
        "local/commands.py",
        "here/commands.py",
        "batch_file/launch.py",
        "batch_file/lines.py",
    }
    others = [
        path
        for path in PACKAGE.rglob("*.py")
        if path != client and not path.as_posix().endswith(tuple(inside))
    ]
    assert commands_about_jobs(client)
    assert [one for path in others for one in commands_about_jobs(path)] == []


def test_no_operation_of_a_cluster_takes_the_number_of_a_job_alone() -> None:
    """`Cluster` is the only way to a scheduler; of a job it takes a MarkedJob."""
    tree = ast.parse((PACKAGE / "scheduling/cluster.py").read_text(encoding="utf-8"))
    protocol = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Cluster")
    taken = {
        method.name: {argument.arg: ast.unparse(argument.annotation or ast.Constant(None))}
        for method in protocol.body
        if isinstance(method, ast.FunctionDef)
        for argument in method.args.args[1:]
        if "job" in argument.arg
    }
    assert taken
    assert {n: a for n, a in taken.items() if not any("MarkedJob" in t for t in a.values())} == {}


def test_the_launcher_knows_trainers_by_their_door_alone() -> None:
    """What [training] means is asked of the job's trainer (config/trainer.py)."""
    rooms = ("config", "rendering", "scheduling", "launching", "runs", "failures")
    wrong = [
        str(found)
        for found in all_imports()
        if found.file.startswith(tuple(f"{room}/" for room in rooms))
        and not found.file.startswith("config/training/")
        and within(found.module, {"fsdpkit.config.training", "fsdpkit.training", "fsdpkit.data"})
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Nor inside functions, nor for types only: whoever reads one would have to read them all."""
    assert circle_in(graph_of(PACKAGE)) == []


def test_only_training_and_planning_import_torch_when_they_are_imported() -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if within(found.module, {"torch"})
        and found.at_once
        and not found.file.startswith(MAY_IMPORT_TORCH_AT_ONCE)
        and found.file not in ALSO_TORCH
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("module", "room"), [("fsdpkit.launching.ranks", ""), ("fsdpkit.training", "cli/")]
)
def test_what_needs_torch_is_imported_inside_functions_only(module: str, room: str) -> None:
    users = [f for f in all_imports() if within(f.module, {module}) and f.file.startswith(room)]
    assert users
    assert [str(found) for found in users if found.at_once] == []


def loaded_by(*words: str, env: dict[str, str] | None = None) -> set[str]:
    """Top-level modules that are loaded when `fsdpkit WORDS…` has done its work."""
    program = (
        "import sys\n"
        "from fsdpkit.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    done = ran(
        [sys.executable, "-c", program, *words], env={**os.environ, "COLUMNS": "80", **(env or {})}
    )
    assert done.stdout, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_a_dry_run_imports_neither_torch_nor_submitit() -> None:
    words = ("submit", "--nodes", "2", "--gpus", "4", "--dry-run", "--cluster", "generic")
    heavy = {"torch", "submitit", "numpy", "cloudpickle", "psutil", "rich"}
    assert not loaded_by(*words) & heavy


@pytest.mark.parametrize("verb", ["ls", "verify"])
def test_checkpoints_are_listed_and_read_without_torch(verb: str, tmp_path: Path) -> None:
    from fsdpkit.runs.checkpoint_writing import claim, now, publish
    from fsdpkit.runs.checkpoints import Description

    mine = claim(tmp_path)
    mine.draft(1).mkdir()
    description = Description(
        step=1, saved_at=now(), world_size=1, optimizer="", versions={}, progress={}, files={}
    )
    publish(mine, description, {}, {"config.json": "{}"}, keep_last=1)
    loaded = loaded_by("checkpoint", verb, str(tmp_path))
    assert not loaded & {"torch", "submitit", "jinja2", "numpy", "safetensors"}


@pytest.mark.parametrize("words", [["--help"], ["submit", "--help"], ["status", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    assert not loaded_by(*words) & {"torch", "submitit", "jinja2", "msgspec", "rich", "numpy"}


@pytest.mark.parametrize("typed", ["fsdpkit sub", "fsdpkit submit --cl", "fsdpkit submit t"])
def test_completion_imports_nothing_heavy(typed: str) -> None:
    words = typed.split()
    env = {
        "_FSDPKIT_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    loaded = loaded_by(env=env)
    assert not loaded & {"torch", "submitit", "jinja2", "rich", "numpy"}
