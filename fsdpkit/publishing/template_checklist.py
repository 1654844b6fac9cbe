"""`fsdpkit template lint`: what a reviewer would look at in a template, each point with its answer.

A point is ok, a problem with its place and remedy, or was not looked at, with the reason; nothing
that was not looked at counts as ok. Nothing of the template is run. The checks of its folder are
below, those of its scripts in template_scripts.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fsdpkit.bounded import open_regular
from fsdpkit.config.linear_regex import matches
from fsdpkit.config.template import Parameter, Template, load_template
from fsdpkit.errors import ConfigError, FsdpkitError
from fsdpkit.publishing.template_cases import sites
from fsdpkit.publishing.template_edges import value_sets
from fsdpkit.publishing.template_named import folder_of
from fsdpkit.publishing.template_new import PLACEHOLDERS
from fsdpkit.publishing.template_pattern import allowed_texts
from fsdpkit.publishing.template_scripts import (
    MANIFEST,
    OF_SCRIPTS,
    Looked,
    Problem,
    in_manifest,
    placed,
    scripts_of,
    seen_by,
)
from fsdpkit.rendering.environment import check_syntax

_SITES = ("generic", "local")


@dataclass(frozen=True)
class ChecklistPoint:
    """One point of the checklist. where: file, or file:line."""

    check: str
    outcome: Literal["ok", "problem", "not looked at"]
    told: str
    where: str | None = None
    remedy: str | None = None


def checklist(word: str) -> Iterator[ChecklistPoint]:
    """Every point, in order, as soon as it is known. Raises NotFoundError: no such template."""
    try:
        template = load_template(folder_of(word))
    except ConfigError as error:
        told, where = placed(str(error))
        remedy = "correct it first; nothing else is read"
        yield ChecklistPoint("manifest", "problem", told, where or MANIFEST, remedy)
        yield from _unread(*[*_OF_FOLDERS][1:], "syntax", *OF_SCRIPTS)
        return
    for name, look in _OF_FOLDERS.items():
        yield from _points(name, look(template))
    readable = True
    for point in _points("syntax", _syntax(template)):
        readable = point.outcome == "ok"
        yield point
    if not readable:
        yield from _unread(*OF_SCRIPTS)
        return
    made = scripts_of(template, sites(_SITES)[0], value_sets({}), lambda text: None)
    for name, look_at_scripts in OF_SCRIPTS.items():
        yield from _points(name, look_at_scripts(template, made))


def _points(check: str, looked: Looked) -> Iterator[ChecklistPoint]:
    problems, told, could_look = seen_by(looked)
    for one in problems:
        yield ChecklistPoint(check, "problem", one.told, one.where, one.remedy)
    if not could_look:
        yield ChecklistPoint(check, "not looked at", told)
    elif not problems:
        yield ChecklistPoint(check, "ok", told)


def _unread(*checks: str) -> Iterator[ChecklistPoint]:
    for check in checks:
        yield ChecklistPoint(check, "not looked at", "the template cannot be read")


# ---- The folder

_PLACEHOLDER = re.compile("|".join(map(re.escape, PLACEHOLDERS)))


def _manifest(template: Template) -> Looked:
    manifest = template.manifest
    if _PLACEHOLDER.search(manifest.description):
        yield Problem(
            f"the description is that of a new template: {manifest.description}",
            in_manifest(template, r"^description\b"),
            "say what it is for: users see it in lists and in the catalogue",
        )
    return f"{manifest.name} {manifest.version}: {manifest.description}"


def _version(template: Template) -> Looked:
    version = template.manifest.version
    if version == "0.0.0":
        yield Problem(
            "0.0.0 is no version",
            in_manifest(template, r"^version\b"),
            "give it one, such as 1.0.0; raise it with each change",
        )
    ends = template.release.deprecated if template.release else None
    return f"{version}; {ends or 'raise it with each change'}"


def _parameters(template: Template) -> Looked:
    parameters = template.manifest.parameters
    for name, parameter in parameters.items():
        for told, remedy in _problems_of(parameter):
            at = in_manifest(template, rf"^\s*\[parameters\.{re.escape(name)}\]")
            yield Problem(f"{name} {told}", at, remedy)
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
                    yield Problem(f"{what}: {found[:60]}", f"{inside}:{number}", remedy)
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
        yield Problem("there is none", "README.md", remedy)
        return ""
    text = _beginning(path)
    missing = [name for name in template.manifest.parameters if f"`{name}`" not in text]
    if found := _PLACEHOLDER.search(text):
        yield Problem(
            "its first paragraph is that of a new template",
            f"README.md:{text.count(chr(10), 0, found.start()) + 1}",
            "say what it does differently, where it was tried, and whom to ask",
        )
    elif missing:
        told = f"it does not explain {', '.join(missing[:10])}"
        yield Problem(told, "README.md", "add them to its table")
    return "present, and it names every parameter"


def _syntax(template: Template) -> Looked:
    try:
        check_syntax(template)
    except FsdpkitError as error:
        yield Problem(*placed(str(error)))
    return "Jinja, and of it only what templates can use"


_OF_FOLDERS: dict[str, Callable[[Template], Looked]] = {
    "manifest": _manifest,
    "version": _version,
    "parameters": _parameters,
    "personal data": _personal,
    "README": _readme,
}


def passed(findings: list[ChecklistPoint]) -> bool:
    return not any(finding.outcome == "problem" for finding in findings)
