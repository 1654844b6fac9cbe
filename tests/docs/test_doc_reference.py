"""Pages that say what the code says say it now, and leave nothing out."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from docs import reference_hooks
from docs.making import failures, markdown
from docs.making.__main__ import files as reference
from fsdpkit.config.trainers import job_type
from fsdpkit.errors import FsdpkitError
from fsdpkit.failures.causes import CAUSES, page_of
from fsdpkit.runs import layout
from tests.config.test_site import CENTRES
from tests.docs import examples, messages
from tests.docs.documents import read
from tests.packaging.installation import ROOT

PROGRAMS: list[tuple[str, Callable[[], dict[Path, str]]]] = [
    (markdown.COMMAND, reference),
    (examples.COMMAND, examples.files),
    (messages.COMMAND, messages.files),
]


@pytest.mark.parametrize(("program", "files"), PROGRAMS, ids=[name for name, _ in PROGRAMS])
def test_the_pages_are_what_the_program_makes(
    program: str, files: Callable[[], dict[Path, str]]
) -> None:
    out_of_date = [
        str(path)
        for path, text in files().items()
        if not (ROOT / path).exists() or (ROOT / path).read_text(encoding="utf-8") != text
    ]
    assert out_of_date == [], f"run: {program}"


def test_what_a_person_wrote_on_a_page_outlives_the_program() -> None:
    page = f"# A title\n\nBefore.\n\n{markdown.BEGIN}\n\nold\n\n{markdown.END}\n\nBehind.\n"
    made = markdown.with_block(page, "new")
    assert made == page.replace("old", "new")
    assert markdown.with_block(made, "new") == made


def test_no_page_is_of_a_cause_that_does_not_exist() -> None:
    lying = {path.relative_to(ROOT) for path in (ROOT / "docs" / "failures").glob("*.md")}
    assert lying == {*failures.pages(), Path("docs/failures/index.md")}
    assert {name for name in CAUSES if page_of(name) is None} == {"running", "done"}


# Keys


def test_every_key_of_a_job_is_there_that_a_job_file_can_have() -> None:
    tables = reference_hooks.tables_of(job_type())
    told = {key.dotted: key for table in tables for key in table.keys}
    nodes = told["resources.nodes"]
    assert (nodes.kind, nodes.default) == ("integer, at least 1, at most 8192", "required")
    assert told["training.sharding.strategy"].default.startswith('`"')
    assert all(key.meaning for key in told.values())
    table, named = "", set[str]()
    for line in read("jobs/t5.toml").splitlines():
        if head := re.match(r"\[([\w.]+)\]", line):
            table = f"{head[1]}."
        elif key := re.match(r"#? ?(\w+) = ", line):
            named.add(f"{table}{key[1]}")
    named = {key for key in named if not key.startswith("training.data.")}
    assert named - told.keys() == {"schema"}


# What else is built


def test_every_cluster_with_a_profile_is_there_with_the_time_of_its_facts() -> None:
    rows = [row.split(" | ") for row in reference_hooks.table_of_centres()][2:]
    assert [f"| `{name}`" for name in CENTRES] == [row[0] for row in rows]
    assert all(re.match(r"20\d\d-\d\d-\d\d\b", row[3]) for row in rows)
    assert f"{len(rows)} clusters" in read("docs/centres.md")


# Exit statuses


def test_every_status_that_an_error_ends_with_is_there() -> None:
    page = read("docs/reference/exit-statuses.md")
    statuses = {kind.exit_code for kind in every(FsdpkitError)}
    assert {65, 66, 69, 71, 74, 78} <= statuses
    assert [status for status in statuses if f"\n| {status} |" not in page] == []


def every(kind: type[FsdpkitError]) -> Iterator[type[FsdpkitError]]:
    for below in kind.__subclasses__():
        if below.__module__ == kind.__module__:
            yield below
        yield from every(below)


# Environment variables


_READ = re.compile(r"(?:environ|environment|variables|getenv)$")


def read_by(path: Path) -> Iterator[str]:
    """Names that a module asks an environment for, whatever the mapping is called, and all that are
    ours."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Subscript) and _READ.search(ast.unparse(node.value)):
            asked = [node.slice]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute):
            asked = [node.args[0]] if _READ.search(ast.unparse(node.func.value)) else []
        elif isinstance(node, ast.Compare) and _READ.search(ast.unparse(node.comparators[0])):
            asked = [node.left]
        elif isinstance(node, ast.Constant) and re.fullmatch(
            r"_?FSDPKIT_[A-Z0-9_]*[A-Z0-9]", str(node.value)
        ):
            asked = [node]
        for one in asked:
            name = constants.get(one.id) if isinstance(one, ast.Name) else None
            name = one.value if isinstance(one, ast.Constant) else name
            if isinstance(name, str) and re.fullmatch(r"_?[A-Z][A-Z0-9_]{2,}", name):
                yield name


@cache
def used() -> frozenset[str]:
    names = {name for path in (ROOT / "fsdpkit").rglob("*.py") for name in read_by(path)}
    template = read("templates/torchrun/job.sbatch.j2")
    names |= set(re.findall(r"\bFSDPKIT_[A-Z0-9_]+\b", template))
    for line in re.findall(r"^ *export (.*)", template, re.MULTILINE):
        names |= set(re.findall(r"\b([A-Z][A-Z0-9_]{2,})=", line))
    return frozenset(names)


NO_VARIABLES = frozenset({"BASH_ENV", "PYTHONNOUSERSITE", "POSIXLY_CORRECT"})
"""Set for programs of ours only, so that they are not misled."""


PAGE = "docs/reference/environment.md"


def section(title: str) -> set[str]:
    """The variables of one of the page's tables."""
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", read(PAGE), re.M | re.S)
    return set(re.findall(r"^\| `(\w+)", text, re.MULTILINE))


def test_every_variable_that_the_code_reads_or_sets_is_there() -> None:
    assert {"FSDPKIT_RUNS", "WORLD_SIZE", "SLURM_JOB_ID"} <= used()
    of_forms = {name for name in used() if name.startswith("FSDPKIT_FORM_")}
    assert of_forms
    named = set(re.findall(r"\b_?[A-Z][A-Z0-9_]+\b", read(PAGE)))
    assert used() - named - NO_VARIABLES - of_forms == set()


def test_no_variable_is_there_that_the_code_does_not_know() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "fsdpkit").rglob("*.py")]
    known = "\n".join([*sources, read("templates/torchrun/job.sbatch.j2")])
    rows = set(re.findall(r"^\| `(_?FSDPKIT\w+)`", read(PAGE), re.MULTILINE))
    assert "FSDPKIT_RUNS" in rows
    put_together = section("The command of `[notify]` finds")
    assert {name for name in rows - put_together if name not in known} == set()


# Files of a run


def test_every_file_of_a_run_is_there() -> None:
    """The names that runs/layout.py gives, as they are spelt in its code."""
    tree = ast.parse(Path(layout.__file__).read_text(encoding="utf-8"))
    page = str(layout.__doc__)
    spelt = {
        part.value
        for node in ast.walk(tree)
        if (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div))
        or (isinstance(node, ast.Call) and ast.unparse(node.func) in ("Named", "Numbered"))
        for part in ast.walk(node.right if isinstance(node, ast.BinOp) else node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
    names = {re.sub(r"^\W+|\W+$", "", part) for one in spelt for part in one.split("{}")} - {""}
    assert {"run.json", "metrics.jsonl", "verdict.json"} <= names
    assert {name for name in names if name not in page} == set()
