"""What was tried of a template on this machine: every script it can make, rendered and read.

`fsdpkit template test` goes on from here to jobs (template_jobs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fsdpkit.config.site import LoadedSite
from fsdpkit.config.template import Template
from fsdpkit.errors import RenderError
from fsdpkit.publishing import template_goldens as goldens
from fsdpkit.publishing import template_shell as shell
from fsdpkit.publishing.template_cases import Case, RenderedCase, cases_of, rendered
from fsdpkit.publishing.template_checklist import is_of_a_value
from fsdpkit.publishing.template_edges import value_sets

_MOST_CODES = 200  # different scripts that shellcheck reads, a second each


@dataclass(frozen=True)
class TrialStep:
    """One part of the test. failures: each names the case, the script's line and what is wrong."""

    name: str
    told: str
    failures: tuple[str, ...] = ()
    skipped: bool = False


Tell = Callable[[str], None]
"""Hears what is going on, a line now and then."""


def try_rendering(
    template: Template, found: Sequence[LoadedSite], tell: Tell
) -> tuple[list[TrialStep], list[RenderedCase]]:
    """Render every case; what came of it, and the scripts."""
    values = value_sets(template.manifest.parameters)
    cases, left_out, dealt = cases_of(found, values)
    made: list[RenderedCase] = []
    for number, each in enumerate(rendered(cases, template), 1):
        made.append(each)
        if number % 500 == 0:
            tell(f"rendered {number} of {len(cases)}")
    failures = [f"{each.case}: {each.refused}" for each in made if each.refused is not None]
    found_in: dict[tuple[str, str], str] = {}
    for each in made:
        for finding in each.findings:
            place, line = _place(each, finding.line)
            told = f"{each.case}: line {finding.line}{place}: {line}: {finding.message}"
            found_in.setdefault((place, finding.message), told)
    told = f"{len(made)} scripts for {len(found)} profiles, {len(values)} sets of parameters"
    if len(made) < len(cases):
        told += f"; all of these were refused, so {len(cases) - len(made)} more were not tried"
    if dealt:
        told += " (dealt out among the profiles, every set once)"
    steps = [TrialStep("rendering", told, _few((*failures, *found_in.values())))]
    for why, sites in left_out.items():
        steps.append(TrialStep("rendering", f"{', '.join(sites)}: {why}", skipped=True))
    return steps, [each for each in made if each.traced is not None]


def try_syntax(made: Sequence[RenderedCase], tell: Tell) -> list[TrialStep]:
    """`bash -n` on each different script, shellcheck on each different shell code."""
    if not made:
        return [
            TrialStep(name, "it makes no script", skipped=True)
            for name in ("bash -n", "shellcheck")
        ]
    scripts = {each.script: each for each in reversed(made)}
    unique = list(scripts.values())[::-1]
    tell(f"bash -n reads {len(unique)} scripts")
    steps = [_step("bash -n", f"{len(unique)} scripts", unique, shell.syntax_errors)]
    if not shell.has_shellcheck():
        return [*steps, TrialStep("shellcheck", "it is not installed here", skipped=True)]
    codes = list({e.traced.skeleton: e for e in reversed(unique) if e.traced}.values())[::-1]
    told = f"{len(codes)} scripts that differ in more than values"
    if len(codes) > _MOST_CODES:
        told += f", of which {_MOST_CODES} were read"
        codes = codes[:: -(-len(codes) // _MOST_CODES)]
    tell(f"shellcheck reads {len(codes)} scripts")
    return [*steps, _step("shellcheck", told, codes, shell.shellcheck)]


def _step(
    name: str,
    told: str,
    scripts: Sequence[RenderedCase],
    tool: Callable[[list[str]], list[shell.Complaint]],
) -> TrialStep:
    try:
        complaints = tool([each.script for each in scripts])
    except RenderError as error:
        return TrialStep(name, str(error), skipped=True)
    failures: dict[str, str] = {}
    for each in complaints:
        of = scripts[each.script]
        if is_of_a_value(each, of):
            continue
        place, line = _place(of, each.line)
        where = f"line {each.line}{place}: {line}" if each.line else "the script"
        failures.setdefault(f"{place}{each.message}", f"{of.case}: {where}: {each.message}")
    return TrialStep(name, told, _few(tuple(failures.values())))


def _place(each: RenderedCase, line: int | None) -> tuple[str, str]:
    """Where in the template a line of the script comes from, ` (FILE:LINE)`, and the line."""
    at = each.traced.line_of(line) if each.traced and line else None
    text = each.script.split("\n")[line - 1].strip()[:100] if line else ""
    return (f" ({at.file}:{at.line})" if at else ""), text


_SHOWN = 20


def _few(failures: tuple[str, ...]) -> tuple[str, ...]:
    if len(failures) <= _SHOWN:
        return failures
    return (*failures[:_SHOWN], f"… {len(failures) - _SHOWN} more like these")


def try_goldens(template: Template) -> TrialStep:
    """Compare the golden scripts that the template has."""
    names = goldens.present(template)
    if not names:
        return TrialStep("golden", "there are none; --update --site SITE writes them", skipped=True)
    found = (goldens.problem_of(name, template) for name in names)
    failures = tuple(problem for problem in found if problem is not None)
    if failures:
        failures = (*_few(failures), "if that is what you want: --update")
    return TrialStep("golden", f"{len(names)} scripts", failures)


def smallest(found: Case) -> tuple[int, int]:
    """Nodes and ranks of a job that is only to show that ranks meet."""
    return (min(found.size[0], 2), 1)
