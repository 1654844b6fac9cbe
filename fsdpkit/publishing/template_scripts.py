"""What is looked at in the scripts that a template makes: by `template lint`, of the two profiles
that every installation has, and by `template test`, of all profiles and parameters.

Each check below yields its problems and returns what to say if there are none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fsdpkit.config.site import LoadedSite
from fsdpkit.config.template import Template
from fsdpkit.errors import FsdpkitError
from fsdpkit.publishing import template_goldens as goldens
from fsdpkit.publishing import template_shell as shell
from fsdpkit.publishing.template_cases import RenderedCase, cases_of, rendered
from fsdpkit.publishing.template_edges import Values
from fsdpkit.rendering.environment import ENTRY
from fsdpkit.rendering.lint import PORTAL_BYTES

MANIFEST = "template.toml"
_MOST_CODES = 200  # different scripts that shellcheck reads, a second each

Tell = Callable[[str], None]
"""Hears what is going on, a line now and then."""


@dataclass(frozen=True)
class Problem:
    """where: file, or file:line, of the template."""

    told: str
    where: str | None = None
    remedy: str | None = None


class NotLookedAtError(Exception):
    """Why a check has no answer."""


Looked = Generator[Problem, None, str]


def seen_by(looked: Looked) -> tuple[list[Problem], str, bool]:
    """What a check finds and says, and whether it could look; the unforeseen is no verdict."""
    problems: list[Problem] = []
    try:
        while True:
            problems.append(next(looked))
    except StopIteration as end:
        return problems, end.value, True
    except (NotLookedAtError, FsdpkitError) as error:
        return problems, str(error), False


def placed(message: str) -> tuple[str, str | None]:
    """A message, and the place that it names as file:line."""
    found = _PLACE.search(message)
    if found:
        return message, f"{found['file']}:{found['line']}"
    file = re.match(r"(\S+\.(?:toml|j2)):", message)
    return message, file[1] if file else None


_PLACE = re.compile(r"(?P<file>[^\s:(]+\.j2|[^\s:(]*template\.toml),? (?:at )?line (?P<line>\d+)")


def in_manifest(template: Template, pattern: str) -> str:
    """The place of what the pattern finds there."""
    text = template.manifest_file.decode(errors="replace")
    found = re.search(pattern, text, re.MULTILINE)
    return f"{MANIFEST}:{text.count(chr(10), 0, found.start()) + 1 if found else 1}"


@dataclass(frozen=True)
class MadeScripts:
    """told: of how many jobs. left_out: profiles that take no such job, by the reason."""

    all: tuple[RenderedCase, ...]
    told: str
    left_out: Mapping[str, Sequence[str]]
    tell: Tell

    @property
    def good(self) -> list[RenderedCase]:
        """Raises NotLookedAtError where there is none."""
        if found := [each for each in self.all if each.traced is not None]:
            return found
        raise NotLookedAtError("it makes no script")

    @property
    def different(self) -> list[RenderedCase]:
        """One for each different script."""
        return list({each.script: each for each in reversed(self.good)}.values())[::-1]

    @property
    def codes(self) -> list[RenderedCase]:
        """One for each different shell code."""
        found = {each.traced.skeleton: each for each in reversed(self.good) if each.traced}
        return list(found.values())[::-1]


def scripts_of(
    template: Template, found: Sequence[LoadedSite], values: Sequence[Values], tell: Tell
) -> MadeScripts:
    """Render every case."""
    cases, left_out, dealt = cases_of(found, values)
    made: list[RenderedCase] = []
    for number, each in enumerate(rendered(cases, template), 1):
        made.append(each)
        if number % 500 == 0:
            tell(f"rendered {number} of {len(cases)}")
    told = f"{len(made)} scripts for {len(found)} profiles"
    if len(values) > 1:
        told += f", {len(values)} sets of parameters"
    if len(made) < len(cases):
        told += f"; all of these were refused, so {len(cases) - len(made)} more were not tried"
    if dealt:
        told += " (dealt out among the profiles, every set once)"
    return MadeScripts(tuple(made), told, left_out, tell)


def _renders(template: Template, made: MadeScripts) -> Looked:
    refused = {each.refused: str(each.case) for each in reversed(made.all) if each.refused}
    for told, case in reversed(refused.items()):
        message, where = placed(told)
        yield Problem(f"{case}: {message}", where or ENTRY)
    return made.told


def _reads_as_admin(template: Template, made: MadeScripts) -> Looked:
    findings = ((each, one.line, one.message) for each in made.good for one in each.findings)
    yield from _of_lines(findings)
    return "directives stand first and once; srun's status is the script's"


def _bash(template: Template, made: MadeScripts) -> Looked:
    scripts = made.different
    made.tell(f"bash -n reads {len(scripts)} scripts")
    yield from _of_lines(_complaints(shell.syntax_errors, scripts))
    return f"{len(scripts)} scripts"


def _shellcheck(template: Template, made: MadeScripts) -> Looked:
    if not shell.has_shellcheck():
        raise NotLookedAtError("it is not installed here")
    codes = made.codes
    told = f"{len(codes)} scripts that differ in more than values"
    if len(codes) > _MOST_CODES:
        told += f", of which {_MOST_CODES} were read"
        codes = codes[:: -(-len(codes) // _MOST_CODES)]
    made.tell(f"shellcheck reads {len(codes)} scripts")
    yield from _of_lines(_complaints(shell.shellcheck, codes))
    return told


Remark = tuple[RenderedCase, int | None, str]
"""Of a script: the line, where one is named, and what is wrong."""


def _complaints(
    tool: Callable[[list[str]], list[shell.Complaint]], scripts: Sequence[RenderedCase]
) -> Iterator[Remark]:
    for each in tool([one.script for one in scripts]):
        if not _is_of_a_value(each, scripts[each.script]):
            yield scripts[each.script], each.line, each.message


def _of_lines(remarks: Iterable[Remark]) -> Iterator[Problem]:
    """Each remark once for a line of the template, with the first case that shows it."""
    seen: set[tuple[str, str]] = set()
    for each, line, message in remarks:
        at = each.traced.line_of(line) if each.traced and line else None
        where = f"{at.file}:{at.line}" if at else ENTRY
        if (where, message) not in seen:
            seen.add((where, message))
            text = each.script.split("\n")[line - 1].strip()[:100] if line else ""
            script = f"line {line}: {text}" if line else "the script"
            yield Problem(f"{each.case}: {script}: {message}", where)


def _is_of_a_value(complaint: shell.Complaint, each: RenderedCase) -> bool:
    """Whether shellcheck takes a value that is quoted on purpose for a mistake (SC2016)."""
    line = each.script.split("\n")[complaint.line - 1] if complaint.line else ""
    return complaint.message.startswith("SC2016") and "=" in line and "'" in line


def _traps(template: Template, made: MadeScripts) -> Looked:
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
        yield Problem(told, ENTRY, f"trap '…' {name}, and run srun in the background with wait")
    return "the warning before the end is trapped"


_VALUES_EXPORTED = re.compile(r"\bsrun\b.*--export=\S*=|#SBATCH\s+--export")
_SRUN = re.compile(r"^\s*(?:\S+=\S+ )*srun\b", re.MULTILINE)
_EXPORTED_BEFORE = re.compile(
    r"\A(?:(?!\bsrun ).)*^\s*export (?:.*\s)?SLURM_EXPORT_ENV=ALL\b", re.MULTILINE | re.DOTALL
)


def _export(template: Template, made: MadeScripts) -> Looked:
    """A portal submits with --export=NONE, which steps would inherit."""
    good = made.good
    for name, content in sorted(template.parts.items()):
        for number, line in enumerate(content.decode(errors="replace").split("\n"), 1):
            if _VALUES_EXPORTED.search(line):
                told = "--export with values: Slurm cuts them at commas, and hides the rest"
                remedy = "export the variables in the script instead"
                yield Problem(told, f"{name}:{number}", remedy)
    if any(_SRUN.search(each.script) and not _EXPORTED_BEFORE.match(each.script) for each in good):
        told = "srun without SLURM_EXPORT_ENV=ALL: submitted with --export=NONE its steps are empty"
        yield Problem(told, ENTRY, "export SLURM_EXPORT_ENV=ALL above srun")
    return "steps get the script's environment, however it is submitted"


def _size(template: Template, made: MadeScripts) -> Looked:
    most = max(made.good, key=lambda each: len(each.script.encode()))
    size = len(most.script.encode())
    if size > PORTAL_BYTES:
        told = f"{size} bytes for {most.case}: portals show {PORTAL_BYTES}"
        yield Problem(told, ENTRY, "shorten it, or leave portals out")
    return f"at most {size} bytes; portals show {PORTAL_BYTES}"


def _hands_on(template: Template, made: MadeScripts) -> Looked:
    """What a person asked for must reach the job."""
    text = b"".join(template.parts.values()).decode(errors="replace")
    for name in ("directives", "job.entry", "job.args"):
        if name not in text:
            yield Problem(f"it never uses {name}", ENTRY, "see `fsdpkit template context`")
    for name in template.manifest.parameters:
        if f"parameters.{name}" not in text:
            at = in_manifest(template, rf"^.*parameters.{name}")
            yield Problem(f"it never uses the parameter {name}", at)
    return "directives, script, arguments and every parameter are used"


def _golden(template: Template, made: MadeScripts) -> Looked:
    names = goldens.present(template)
    if not names:
        remedy = f"fsdpkit template test {os.path.basename(template.dir)} --update --site generic"
        yield Problem("it has no golden scripts", "golden/", remedy)
    return f"{len(names)} scripts; `template test` compares them"


OF_SCRIPTS: dict[str, Callable[[Template, MadeScripts], Looked]] = {
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
