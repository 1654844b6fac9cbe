"""`fsdpkit template lint`: what a reviewer would look at in a template, each point with its answer.

A point is ok, a problem with its place and remedy, or was not looked at, with the reason; nothing
that was not looked at counts as ok. Nothing of the template is run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
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


@dataclass(frozen=True)
class ChecklistPoint:
    """One point of the checklist. where: file, or file:line."""

    check: str
    outcome: Literal["ok", "problem", "not looked at"]
    told: str
    where: str | None = None
    remedy: str | None = None


Findings = Iterator[ChecklistPoint]


def checklist(word: str) -> Findings:
    """Every point, in order, each as soon as it is known. Raises NotFoundError if there is no such
    template."""
    folder = Path(folder_of(word))
    if folder.is_absolute() and not folder.is_dir():
        raise NotFoundError(f"there is no folder {folder}")
    try:
        template = load_template(folder_of(word))
    except ConfigError as error:
        told, where = _placed(str(error))
        where = where or "template.toml"
        yield ChecklistPoint(
            "manifest", "problem", told, where, "correct it first; nothing else is read"
        )
        for check in _NAMES:
            yield ChecklistPoint(check, "not looked at", "the template cannot be read")
        return
    yield from _guarded("manifest", lambda: _manifest(template))
    yield from _guarded("parameters", lambda: _parameters(template))
    yield from _guarded("personal data", lambda: _personal(template))
    yield from _guarded("README", lambda: _readme(template))
    try:
        check_syntax(template)
    except FsdpkitError as error:
        told, where = _placed(str(error))
        yield ChecklistPoint("syntax", "problem", told, where)
        for check in _OF_SCRIPTS:
            yield ChecklistPoint(check, "not looked at", "the template cannot be read")
        return
    yield ChecklistPoint("syntax", "ok", "Jinja, and of it only what templates can use")
    made = _scripts(template)
    for name, look in _OF_SCRIPTS.items():
        yield from _guarded(name, lambda look=look: look(template, made))  # type: ignore[misc]


def _guarded(name: str, look: Callable[[], Findings]) -> Findings:
    """What a check finds; `ok` is its own to say, and what it did not foresee is no verdict."""
    try:
        yield from look()
    except FsdpkitError as error:
        yield ChecklistPoint(name, "not looked at", str(error))


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


def _manifest(template: Template) -> Findings:
    manifest, path = template.manifest, "template.toml"
    if _PLACEHOLDER.search(manifest.description):
        at = _line_of(template, r"^description\b")
        told = f"the description is that of a new template: {manifest.description}"
        remedy = "say what it is for: users see it in lists and in the catalogue"
        yield ChecklistPoint("manifest", "problem", told, f"{path}:{at}", remedy)
    else:
        told = f"{manifest.name} {manifest.version}: {manifest.description}"
        yield ChecklistPoint("manifest", "ok", told)
    if manifest.version == "0.0.0":
        at = _line_of(template, r"^version\b")
        remedy = "give it one, such as 1.0.0; raise it with each change"
        yield ChecklistPoint("version", "problem", "0.0.0 is no version", f"{path}:{at}", remedy)
    else:
        yield ChecklistPoint("version", "ok", f"{manifest.version}; raise it with each change")


def _line_of(template: Template, pattern: str) -> int:
    text = template.manifest_file.decode(errors="replace")
    found = re.search(pattern, text, re.MULTILINE)
    return text[: found.start()].count("\n") + 1 if found else 1


def _parameters(template: Template) -> Findings:
    wrong = False
    path = "template.toml"
    for name, parameter in template.manifest.parameters.items():
        for told, remedy in _problems_of(parameter):
            wrong = True
            at = _line_of(template, rf"^\s*\[parameters\.{re.escape(name)}\]")
            yield ChecklistPoint("parameters", "problem", f"{name} {told}", f"{path}:{at}", remedy)
    if not wrong:
        count = len(template.manifest.parameters)
        yield ChecklistPoint("parameters", "ok", f"{count}, each typed, bounded and explained")


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


def _personal(template: Template) -> Findings:
    wrong = False
    patterns = [*((_first(p), told, todo) for p, told, todo in _PERSONAL), *_account_patterns()]
    for path in sorted(template.dir.rglob("*")):
        inside = path.relative_to(template.dir)
        if path.suffix not in _TEXT_FILES or path.is_symlink() or not path.is_file():
            continue
        text = _beginning(path)
        for number, line in enumerate(text.split("\n"), 1):
            for find, what, remedy in patterns:
                if found := find(line[:2000]):
                    wrong = True
                    told = f"{what}: {found[:60]}"
                    yield ChecklistPoint(
                        "personal data", "problem", told, f"{inside}:{number}", remedy
                    )
    if not wrong:
        told = "no path, account or address of a person in its text files"
        yield ChecklistPoint("personal data", "ok", told)


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


def _readme(template: Template) -> Findings:
    path = template.dir / "README.md"
    if not path.is_file():
        remedy = "say what it does, on which clusters it was tried, and whom to ask"
        yield ChecklistPoint("README", "problem", "there is none", "README.md", remedy)
        return
    text = _beginning(path)
    missing = [name for name in template.manifest.parameters if f"`{name}`" not in text]
    if found := _PLACEHOLDER.search(text):
        at = text[: found.start()].count("\n") + 1
        told = "its first paragraph is that of a new template"
        remedy = "say what it does differently, where it was tried, and whom to ask"
        yield ChecklistPoint("README", "problem", told, f"README.md:{at}", remedy)
    elif missing:
        told = f"it does not explain {', '.join(missing[:10])}"
        yield ChecklistPoint("README", "problem", told, "README.md", "add them to its table")
    else:
        yield ChecklistPoint("README", "ok", "present, and it names every parameter")


# ---- Its scripts


@dataclass(frozen=True)
class _Made:
    """Scripts of the two profiles that every installation has, in all shapes."""

    all: tuple[RenderedCase, ...]

    @property
    def good(self) -> list[RenderedCase]:
        return [each for each in self.all if each.traced is not None]

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


def _renders(template: Template, made: _Made) -> Findings:
    refused: dict[str, str] = {}
    for each in made.all:
        if each.refused is not None:
            refused.setdefault(each.refused, str(each.case))
    for told, case in refused.items():
        message, where = _placed(told)
        yield ChecklistPoint("rendering", "problem", f"{case}: {message}", where or ENTRY)
    if not refused:
        told = f"{len(made.all)} jobs of {' and '.join(_SITES)}, every value quoted for its place"
        yield ChecklistPoint("rendering", "ok", told)


def _reads_as_admin(template: Template, made: _Made) -> Findings:
    found: dict[tuple[str, str], None] = {}
    for each in made.good:
        for finding in each.findings:
            found.setdefault((_where(each, finding.line), finding.message))
    for where, message in found:
        yield ChecklistPoint("directives and status", "problem", message, where)
    if not found and made.good:
        told = "directives stand first and once; srun's status is the script's"
        yield ChecklistPoint("directives and status", "ok", told)
    elif not made.good:
        yield ChecklistPoint("directives and status", "not looked at", "it makes no script")


def _bash(template: Template, made: _Made) -> Findings:
    yield from _complaints("bash -n", shell.syntax_errors, made)


def _shellcheck(template: Template, made: _Made) -> Findings:
    if not shell.has_shellcheck():
        yield ChecklistPoint("shellcheck", "not looked at", "it is not installed here")
        return
    yield from _complaints("shellcheck", shell.shellcheck, made)


def _complaints(
    check: str, tool: Callable[[list[str]], list[shell.Complaint]], made: _Made
) -> Findings:
    if not made.distinct:
        yield ChecklistPoint(check, "not looked at", "it makes no script")
        return
    found: dict[tuple[str, str], None] = {}
    for each in tool([one.script for one in made.distinct]):
        if not is_of_a_value(each, made.distinct[each.script]):
            found.setdefault((_where(made.distinct[each.script], each.line), each.message))
    for where, message in found:
        yield ChecklistPoint(check, "problem", message, where)
    if not found:
        yield ChecklistPoint(check, "ok", f"{len(made.distinct)} different scripts")


def is_of_a_value(complaint: shell.Complaint, each: RenderedCase) -> bool:
    """Whether shellcheck takes a value that is quoted on purpose for a mistake (SC2016)."""
    line = each.script.split("\n")[complaint.line - 1] if complaint.line else ""
    return complaint.message.startswith("SC2016") and "=" in line and "'" in line


def _traps(template: Template, made: _Made) -> Findings:
    """A signal that only warns ends bash at once if nothing traps it."""
    bad = None
    for each in made.good:
        signal = re.search(r"^#SBATCH --signal=\"?B:(\w+)@", each.script, re.MULTILINE)
        if signal and not re.search(rf"^\s*trap\s.*\b{signal[1]}\b", each.script, re.MULTILINE):
            bad = signal[1]
    if not made.good:
        yield ChecklistPoint("traps", "not looked at", "it makes no script")
    elif bad:
        remedy = f"trap '…' {bad}, and run srun in the background with wait"
        told = f"Slurm warns the batch shell by {bad}, and nothing traps it: bash would end at once"
        yield ChecklistPoint("traps", "problem", told, ENTRY, remedy)
    else:
        yield ChecklistPoint("traps", "ok", "the warning before the end is trapped")


def _export(template: Template, made: _Made) -> Findings:
    """A portal submits with --export=NONE, which steps would inherit."""
    if not made.good:
        yield ChecklistPoint("export", "not looked at", "it makes no script")
        return
    wrong = False
    for name, content in sorted(template.parts.items()):
        for number, line in enumerate(content.decode(errors="replace").split("\n"), 1):
            if re.search(r"\bsrun\b.*--export=\S*=", line) or re.search(
                r"#SBATCH\s+--export", line
            ):
                wrong = True
                told = "--export with values: Slurm cuts them at commas, and hides the rest"
                remedy = "export the variables in the script instead"
                yield ChecklistPoint("export", "problem", told, f"{name}:{number}", remedy)
    before = re.compile(
        r"\A(?:(?!\bsrun ).)*^\s*export (?:.*\s)?SLURM_EXPORT_ENV=ALL\b", re.M | re.S
    )
    uses_srun = [
        each for each in made.good if re.search(r"^\s*(?:\S+=\S+ )*srun\b", each.script, re.M)
    ]
    if any(not before.match(each.script) for each in uses_srun):
        wrong = True
        told = "srun without SLURM_EXPORT_ENV=ALL: submitted with --export=NONE its steps are empty"
        remedy = "export SLURM_EXPORT_ENV=ALL above srun"
        yield ChecklistPoint("export", "problem", told, ENTRY, remedy)
    if not wrong:
        yield ChecklistPoint(
            "export", "ok", "steps get the script's environment, however it is submitted"
        )


def _size(template: Template, made: _Made) -> Findings:
    if not made.good:
        yield ChecklistPoint("size", "not looked at", "it makes no script")
        return
    most = max(made.good, key=lambda each: len(each.script.encode()))
    size = len(most.script.encode())
    if size > PORTAL_BYTES:
        told = f"{size} bytes for {most.case}: portals show {PORTAL_BYTES}"
        yield ChecklistPoint("size", "problem", told, ENTRY, "shorten it, or leave portals out")
    else:
        yield ChecklistPoint("size", "ok", f"at most {size} bytes; portals show {PORTAL_BYTES}")


def _hands_on(template: Template, made: _Made) -> Findings:
    """What a person asked for must reach the job."""
    text = b"".join(template.parts.values()).decode(errors="replace")
    missing = [name for name in ("directives", "job.entry", "job.args") if name not in text]
    unused = [n for n in template.manifest.parameters if f"parameters.{n}" not in text]
    for name in missing:
        remedy = "see `fsdpkit template context`"
        yield ChecklistPoint("hands on", "problem", f"it never uses {name}", ENTRY, remedy)
    for name in unused:
        at = f"template.toml:{_line_of(template, rf'^.*parameters.{name}')}"
        yield ChecklistPoint("hands on", "problem", f"it never uses the parameter {name}", at)
    if not missing and not unused:
        yield ChecklistPoint(
            "hands on", "ok", "directives, script, arguments and every parameter are used"
        )


def _golden(template: Template, made: _Made) -> Findings:
    names = goldens.present(template)
    if not names:
        remedy = f"fsdpkit template test {os.path.basename(template.dir)} --update --site generic"
        yield ChecklistPoint("golden", "problem", "it has no golden scripts", "golden/", remedy)
        return
    yield ChecklistPoint("golden", "ok", f"{len(names)} scripts; `template test` compares them")


_OF_SCRIPTS: dict[str, Callable[[Template, _Made], Findings]] = {
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
_NAMES = ("version", "parameters", "personal data", "README", "syntax", *_OF_SCRIPTS)


def passed(findings: list[ChecklistPoint]) -> bool:
    return not any(finding.outcome == "problem" for finding in findings)
