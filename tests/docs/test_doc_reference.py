"""Pages that say what the code says say it now, and leave nothing out."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from fsdpkit.cli.json_schemas import ANSWERS, name_of
from fsdpkit.cli.main import COMMANDS
from fsdpkit.config.trainers import job_type
from fsdpkit.errors import FsdpkitError
from fsdpkit.failures.causes import CAUSES, page_of
from fsdpkit.reference import commands, failures, keys, markdown, variables
from fsdpkit.reference.__main__ import files as reference
from fsdpkit.runs import layout
from tests.docs import examples, messages
from tests.docs.documents import prose, read
from tests.packaging.installation import ROOT
from tests.reporting.captures import all_captures

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


def test_the_first_page_counts_right() -> None:
    page = read("docs/failures/index.md")
    no_failure = {"pending-forever", "pending", "running", "done", "unknown"}
    assert f"knows {len(CAUSES.keys() - no_failure)} causes" in page
    assert f"tried on {len(all_captures())} captured failures" in page


def test_every_page_fits_a_terminal_of_80_columns() -> None:
    """`fsdpkit diagnose --page` prints it there; what is typed, and addresses, stay whole."""
    for path in failures.pages():
        lines = [line for line in prose(str(path)).splitlines() if " " in line.strip("- ")]
        wide = [line for line in lines if len(line) > 80 and not line.startswith("<!--")]
        assert wide == [], path


def test_every_page_has_a_remedy_or_words_of_a_person() -> None:
    for path, cause in failures.pages().items():
        behind = read(str(path)).partition(markdown.END)[2]
        if path.stem == "unknown" or not failures.general_advice(cause):
            assert behind.partition(examples.BEGIN)[0].strip(), f"{path} says nothing to do"


def test_every_command_is_described_with_every_option() -> None:
    page = read("docs/reference/commands.md")
    for words, command, context in commands.all_commands():
        section = page.partition(f"# `fsdpkit {words}`\n")[2].partition("\n#")[0]
        assert section, words
        for parameter in command.get_params(context):
            if isinstance(parameter, click.Option) and not parameter.hidden:
                names = [name for name in parameter.opts if name not in ("--help", "-h")]
                assert all(name in section for name in names), (words, names)
    assert all(f"(#fsdpkit-{name})" in page for name in COMMANDS)


def test_every_key_of_a_job_is_there_that_a_job_file_can_have() -> None:
    told = {key.dotted for key in keys.keys_of(job_type())}
    assert {"resources.nodes", "training.sharding.strategy", "retry.hang_s", "args"} <= told
    (text,) = (b for b in [read("jobs/t5.toml")])
    table, named = "", set()
    for line in text.splitlines():
        if head := re.match(r"\[([\w.]+)\]", line):
            table = f"{head[1]}."
        elif key := re.match(r"#? ?(\w+) = ", line):
            named.add(f"{table}{key[1]}")
    assert {key for key in named if not key.startswith("training.data.")} - told == set()


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


def test_every_shape_of_json_is_there() -> None:
    page = read("docs/reference/json.md")
    missing = [name_of(a) for kinds in ANSWERS.values() for a in kinds if name_of(a) not in page]
    assert missing == []


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


def test_every_variable_that_the_code_reads_or_sets_is_there() -> None:
    assert {"FSDPKIT_RUNS", "WORLD_SIZE", "SLURM_JOB_ID"} <= used()
    of_forms = {name for name in used() if name.startswith("FSDPKIT_FORM_")}
    assert of_forms
    assert used() - variables.named() - NO_VARIABLES - of_forms == set()


def test_no_variable_is_there_that_the_code_does_not_know() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "fsdpkit").rglob("*.py")]
    page = ROOT / "fsdpkit" / "reference" / "variables.py"
    everything = "\n".join([*sources, read("templates/torchrun/job.sbatch.j2")])
    others = everything.replace(page.read_text(encoding="utf-8"), "")
    ours = {name for group in variables.GROUPS.values() for name in group if "FSDPKIT" in name}
    assert {name for name in ours if name not in others} - {
        *variables.IN_NOTIFY,
        *variables.IN_PORTALS,
    } == set()


def test_the_variables_of_a_notification_are_those_that_it_gets() -> None:
    from fsdpkit.launching import notifying

    fields = set(notifying.Told.__struct_fields__)
    assert {name.removeprefix("FSDPKIT_").lower() for name in variables.IN_NOTIFY} <= fields


# Files of a run


def test_every_file_of_a_run_is_there() -> None:
    """The names that runs/layout.py gives, as they are spelt in its code."""
    tree = ast.parse(Path(layout.__file__).read_text(encoding="utf-8"))
    page = read("docs/reference/run-files.md")
    spelt = {
        part.value
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
        for part in ast.walk(node.right)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
    names = {re.sub(r"^\W+|\W+$", "", one) for one in spelt} - {""}
    assert {"run.json", "metrics.jsonl", "verdict.json"} <= names
    assert {name for name in names if name not in page} == set()
