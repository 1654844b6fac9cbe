"""`fsdpkit template lint`: what a reviewer would look at in a template, each point with its answer.

A point is ok, a problem with its place and remedy, or was not looked at, with the reason; nothing
that was not looked at counts as ok. Nothing of the template is run.

Each check below yields its problems and returns what to say if there are none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fsdpkit.bounded import open_regular
from fsdpkit.config.linear_regex import matches
from fsdpkit.config.template import Parameter, Template, load_template
from fsdpkit.errors import ConfigError, FsdpkitError, NotFoundError
from fsdpkit.publishing import template_goldens as goldens
from fsdpkit.publishing import template_shell as shell
from fsdpkit.publishing.template_cases import RenderedCase, cases_of, rendered, sites
from fsdpkit.publishing.template_edges import value_sets
from fsdpkit.publishing.template_named import folder_of
from fsdpkit.publishing.template_new import PLACEHOLDERS
from fsdpkit.publishing.template_pattern import allowed_texts
from fsdpkit.rendering.environment import ENTRY, check_syntax
from fsdpkit.rendering.lint import PORTAL_BYTES

_SITES = ("generic", "local")
_MANIFEST = "template.toml"


@dataclass(frozen=True)
class ChecklistPoint:
    """One point of the checklist. where: file, or file:line."""

    check: str
    outcome: Literal["ok", "problem", "not looked at"]
    told: str
    where: str | None = None
    remedy: str | None = None


@dataclass(frozen=True)
class _Problem:
    told: str
    where: str | None = None
    remedy: str | None = None


class _NotLookedAt(Exception):
    """Why a check has no answer."""


Looked = Generator[_Problem, None, str]


def checklist(word: str) -> Iterator[ChecklistPoint]:
    """Every point, in order, each as soon as it is known. Raises NotFoundError if there is no such
    template."""
    folder = Path(folder_of(word))
    if folder.is_absolute() and not folder.is_dir():
        raise NotFoundError(f"there is no folder {folder}")
    try:
        template = load_template(folder_of(word))
    except ConfigError as error:
        told, where = _placed(str(error))
        remedy = "correct it first; nothing else is read"
        yield ChecklistPoint("manifest", "problem", told, where or _MANIFEST, remedy)
        yield from _unread(*[*_OF_FOLDERS][1:], "syntax", *_OF_SCRIPTS)
        return
    for name, look in _OF_FOLDERS.items():
        yield from _points(name, look(template))
    readable = True
    for point in _points("syntax", _syntax(template)):
        readable = point.outcome == "ok"
        yield point
    if not readable:
        yield from _unread(*_OF_SCRIPTS)
        return
    made = _scripts(template)
    for name, look_at_scripts in _OF_SCRIPTS.items():
        yield from _points(name, look_at_scripts(template, made))


def _points(check: str, looked: Looked) -> Iterator[ChecklistPoint]:
    """What a check finds. What it did not foresee is no verdict."""
    clean = True
    try:
        while True:
            problem = next(looked)
            clean = False
            yield ChecklistPoint(check, "problem", problem.told, problem.where, problem.remedy)
    except StopIteration as end:
        if clean:
            yield ChecklistPoint(check, "ok", end.value)
    except (_NotLookedAt, FsdpkitError) as error:
        yield ChecklistPoint(check, "not looked at", str(error))


def _unread(*checks: str) -> Iterator[ChecklistPoint]:
    for check in checks:
        yield ChecklistPoint(check, "not looked at", "the template cannot be read")


_PLACE = re.compile(r"(?P<file>[^\s:(]+\.j2|[^\s:(]*template\.toml),? (?:at )?line (?P<line>\d+)")


def _placed(message: str) -> tuple[str, str | None]:
    """A message, and the place that it names as file:line."""
    found = _PLACE.search(message)
    if found:
        return message, f"{found['file']}:{found['line']}"
    file = re.match(r"(\S+\.(?:toml|j2)):", message)
    return message, file[1] if file else None


# ---- The folder

_PLACEHOLDER = re.compile("|".join(map(re.escape, PLACEHOLDERS)))


def _manifest(template: Template) -> Looked:
    manifest = template.manifest
    if _PLACEHOLDER.search(manifest.description):
        yield _Problem(
            f"the description is that of a new template: {manifest.description}",
            _in_manifest(template, r"^description\b"),
            "say what it is for: users see it in lists and in the catalogue",
        )
    return f"{manifest.name} {manifest.version}: {manifest.description}"


def _version(template: Template) -> Looked:
    version = template.manifest.version
    if version == "0.0.0":
        yield _Problem(
            "0.0.0 is no version",
            _in_manifest(template, r"^version\b"),
            "give it one, such as 1.0.0; raise it with each change",
        )
    return f"{version}; raise it with each change"


def _in_manifest(template: Template, pattern: str) -> str:
    text = template.manifest_file.decode(errors="replace")
    found = re.search(pattern, text, re.MULTILINE)
    return f"{_MANIFEST}:{text.count(chr(10), 0, found.start()) + 1 if found else 1}"


def _parameters(template: Template) -> Looked:
    parameters = template.manifest.parameters
    for name, parameter in parameters.items():
        for told, remedy in _problems_of(parameter):
            at = _in_manifest(template, rf"^\s*\[parameters\.{re.escape(name)}\]")
            yield _Problem(f"{name} {told}", at, remedy)
    return f"{len(parameters)}, each typed, bounded and explained"


def _problems_of(parameter: Parameter) -> Iterator[tuple[str, str]]:
    if len(parameter.help.split()) < 3:
        yield f"is explained by {parameter.help!r} alone", "write one sentence, with the unit"
    if parameter.type in ("int", "float") and not parameter.choices:
        missing = [k for k in ("minimum", "maximum") if getattr(parameter, k) is None]
        if missing:
            yield f"has no {' and no '.join(missing)}", "give it the least and greatest sane value"
    if parameter.type != "str" or parameter.choices:
        return
    if parameter.pattern is None:
        yield "is text of any kind", "give it a pattern or choices"
    elif not allowed_texts(parameter.pattern):
        yield f"has the pattern {parameter.pattern!r}, for which no text was found", "simplify it"


_TEXT_FILES = (".toml", ".j2", ".md", ".txt", ".yml")
_FREE = r"(?<![\w.$}\\-])"  # begins a path, and is no part of a longer one or behind a variable
_PERSONAL = [
    (
        re.compile(_FREE + r"/(?:home|users|u)/(?!alex\b)[a-z_][\w.-]*", re.IGNORECASE),
        "a path of one person",
        "let a variable or a parameter name it",
    ),
    (
        re.compile(_FREE + r"/(?:scratch|work|projects?|lustre|gpfs)/[\w.-]+/[\w./-]+"),
        "an absolute path of one project",
        "let a parameter or the site profile name it",
    ),
    (
        re.compile(
            r"\b[\w.+-]{1,64}@(?!(?:[\w-]+\.)*example\.(?:org|com|net|edu)\b)"
            r"[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}\b"
        ),
        "an e-mail address",
        "the job's [notify] and the profile's `contact` are for addresses",
    ),
    (
        re.compile(r"#SBATCH\s+(?:--account[= ]|-A\s*)(?!\{\{)[\w.-]+"),
        "an account in a directive",
        "let `directives` print it: {{ d.value | sb }}",
    ),
]


def _beginning(path: Path) -> str:
    with open_regular(path, links=True) as file:
        return file.read(1_000_000).decode(errors="replace")


Find = Callable[[str], str | None]


def _personal(template: Template) -> Looked:
    patterns = [*((_first(p), told, todo) for p, told, todo in _PERSONAL), *_account_patterns()]
    for path in sorted(template.dir.rglob("*")):
        inside = path.relative_to(template.dir)
        if path.suffix not in _TEXT_FILES or path.is_symlink() or not path.is_file():
            continue
        for number, line in enumerate(_beginning(path).split("\n"), 1):
            for find, what, remedy in patterns:
                if found := find(line[:2000]):
                    yield _Problem(f"{what}: {found[:60]}", f"{inside}:{number}", remedy)
    return "no path, account or address of a person in its text files"


def _first(pattern: re.Pattern[str]) -> Find:
    return lambda line: found[0] if (found := pattern.search(line)) else None


def _account_patterns() -> Iterator[tuple[Find, str, str]]:
    """The accounts of every site, where its pattern is so special that it fits no ordinary word."""
    for site in sites()[0]:
        pattern = site.profile.account.pattern
        ordinary = ("account", "gpu", "train", "a1", "node01", "torch", "ACCOUNT", "x_y")
        if pattern and not any(matches(pattern, word) for word in ordinary):
            told = f"what looks like an account of {site.profile.title}"
            yield _word_like(pattern), told, "leave accounts to jobs and defaults"


def _word_like(pattern: str) -> Find:
    """The first word of a line that is as a profile says an account is."""
    return lambda line: next((w for w in re.findall(r"[\w.-]+", line) if matches(pattern, w)), None)


def _readme(template: Template) -> Looked:
    path = template.dir / "README.md"
    if not path.is_file():
        remedy = "say what it does, on which clusters it was tried, and whom to ask"
        yield _Problem("there is none", "README.md", remedy)
        return ""
    text = _beginning(path)
    missing = [name for name in template.manifest.parameters if f"`{name}`" not in text]
    if found := _PLACEHOLDER.search(text):
        yield _Problem(
            "its first paragraph is that of a new template",
            f"README.md:{text.count(chr(10), 0, found.start()) + 1}",
            "say what it does differently, where it was tried, and whom to ask",
        )
    elif missing:
        told = f"it does not explain {', '.join(missing[:10])}"
        yield _Problem(told, "README.md", "add them to its table")
    return "present, and it names every parameter"


def _syntax(template: Template) -> Looked:
    try:
        check_syntax(template)
    except FsdpkitError as error:
        yield _Problem(*_placed(str(error)))
    return "Jinja, and of it only what templates can use"


_OF_FOLDERS: dict[str, Callable[[Template], Looked]] = {
    "manifest": _manifest,
    "version": _version,
    "parameters": _parameters,
    "personal data": _personal,
    "README": _readme,
}


# ---- Its scripts


@dataclass(frozen=True)
class _Made:
    """Scripts of the two profiles that every installation has, in all shapes."""

    all: tuple[RenderedCase, ...]

    @property
    def good(self) -> list[RenderedCase]:
        """Raises _NotLookedAt where there is none."""
        if found := [each for each in self.all if each.traced is not None]:
            return found
        raise _NotLookedAt("it makes no script")

    @property
    def distinct(self) -> list[RenderedCase]:
        """One for each different shell code."""
        found = {each.traced.skeleton: each for each in self.good if each.traced}
        return list(found.values())


def _scripts(template: Template) -> _Made:
    cases, _, _ = cases_of(sites(_SITES)[0], value_sets({}))
    return _Made(tuple(rendered(cases, template)))


def _where(each: RenderedCase, line: int | None) -> str:
    at = each.traced.line_of(line) if each.traced and line else None
    return f"{at.file}:{at.line}" if at else ENTRY


def _renders(template: Template, made: _Made) -> Looked:
    refused = {each.refused: str(each.case) for each in reversed(made.all) if each.refused}
    for told, case in reversed(refused.items()):
        message, where = _placed(told)
        yield _Problem(f"{case}: {message}", where or ENTRY)
    return f"{len(made.all)} jobs of {' and '.join(_SITES)}, every value quoted for its place"


def _reads_as_admin(template: Template, made: _Made) -> Looked:
    places = ((each, finding) for each in made.good for finding in each.findings)
    found = dict.fromkeys((_where(each, finding.line), finding.message) for each, finding in places)
    for where, message in found:
        yield _Problem(message, where)
    return "directives stand first and once; srun's status is the script's"


def _bash(template: Template, made: _Made) -> Looked:
    return (yield from _complaints(shell.syntax_errors, made))


def _shellcheck(template: Template, made: _Made) -> Looked:
    if not shell.has_shellcheck():
        raise _NotLookedAt("it is not installed here")
    return (yield from _complaints(shell.shellcheck, made))


def _complaints(tool: Callable[[list[str]], list[shell.Complaint]], made: _Made) -> Looked:
    distinct = made.distinct
    found: dict[tuple[str, str], None] = {}
    for each in tool([one.script for one in distinct]):
        if not is_of_a_value(each, distinct[each.script]):
            found.setdefault((_where(distinct[each.script], each.line), each.message))
    for where, message in found:
        yield _Problem(message, where)
    return f"{len(distinct)} different scripts"


def is_of_a_value(complaint: shell.Complaint, each: RenderedCase) -> bool:
    """Whether shellcheck takes a value that is quoted on purpose for a mistake (SC2016)."""
    line = each.script.split("\n")[complaint.line - 1] if complaint.line else ""
    return complaint.message.startswith("SC2016") and "=" in line and "'" in line


def _traps(template: Template, made: _Made) -> Looked:
    """A signal that only warns ends bash at once if nothing traps it."""
    untrapped = set()
    for each in made.good:
        signal = re.search(r"^#SBATCH --signal=\"?B:(\w+)@", each.script, re.MULTILINE)
        if signal and not re.search(rf"^\s*trap\s.*\b{signal[1]}\b", each.script, re.MULTILINE):
            untrapped.add(signal[1])
    for name in sorted(untrapped):
        told = (
            f"Slurm warns the batch shell by {name}, and nothing traps it: bash would end at once"
        )
        yield _Problem(told, ENTRY, f"trap '…' {name}, and run srun in the background with wait")
    return "the warning before the end is trapped"


_VALUES_EXPORTED = re.compile(r"\bsrun\b.*--export=\S*=|#SBATCH\s+--export")
_SRUN = re.compile(r"^\s*(?:\S+=\S+ )*srun\b", re.MULTILINE)
_EXPORTED_BEFORE = re.compile(
    r"\A(?:(?!\bsrun ).)*^\s*export (?:.*\s)?SLURM_EXPORT_ENV=ALL\b", re.MULTILINE | re.DOTALL
)


def _export(template: Template, made: _Made) -> Looked:
    """A portal submits with --export=NONE, which steps would inherit."""
    good = made.good
    for name, content in sorted(template.parts.items()):
        for number, line in enumerate(content.decode(errors="replace").split("\n"), 1):
            if _VALUES_EXPORTED.search(line):
                told = "--export with values: Slurm cuts them at commas, and hides the rest"
                remedy = "export the variables in the script instead"
                yield _Problem(told, f"{name}:{number}", remedy)
    if any(_SRUN.search(each.script) and not _EXPORTED_BEFORE.match(each.script) for each in good):
        told = "srun without SLURM_EXPORT_ENV=ALL: submitted with --export=NONE its steps are empty"
        yield _Problem(told, ENTRY, "export SLURM_EXPORT_ENV=ALL above srun")
    return "steps get the script's environment, however it is submitted"


def _size(template: Template, made: _Made) -> Looked:
    most = max(made.good, key=lambda each: len(each.script.encode()))
    size = len(most.script.encode())
    if size > PORTAL_BYTES:
        told = f"{size} bytes for {most.case}: portals show {PORTAL_BYTES}"
        yield _Problem(told, ENTRY, "shorten it, or leave portals out")
    return f"at most {size} bytes; portals show {PORTAL_BYTES}"


def _hands_on(template: Template, made: _Made) -> Looked:
    """What a person asked for must reach the job."""
    text = b"".join(template.parts.values()).decode(errors="replace")
    for name in ("directives", "job.entry", "job.args"):
        if name not in text:
            yield _Problem(f"it never uses {name}", ENTRY, "see `fsdpkit template context`")
    for name in template.manifest.parameters:
        if f"parameters.{name}" not in text:
            at = _in_manifest(template, rf"^.*parameters.{name}")
            yield _Problem(f"it never uses the parameter {name}", at)
    return "directives, script, arguments and every parameter are used"


def _golden(template: Template, made: _Made) -> Looked:
    names = goldens.present(template)
    if not names:
        remedy = f"fsdpkit template test {os.path.basename(template.dir)} --update --site generic"
        yield _Problem("it has no golden scripts", "golden/", remedy)
    return f"{len(names)} scripts; `template test` compares them"


_OF_SCRIPTS: dict[str, Callable[[Template, _Made], Looked]] = {
    "rendering": _renders,
    "directives and status": _reads_as_admin,
    "bash -n": _bash,
    "shellcheck": _shellcheck,
    "traps": _traps,
    "export": _export,
    "size": _size,
    "hands on": _hands_on,
    "golden": _golden,
}


def passed(findings: list[ChecklistPoint]) -> bool:
    return not any(finding.outcome == "problem" for finding in findings)
