"""The parts of `fsdpkit template test`, and those that need no job: every script is looked at as
`template lint` does, and the golden scripts are compared. template_jobs.py goes on from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fsdpkit.config.site import LoadedSite
from fsdpkit.config.template import Template
from fsdpkit.publishing import template_goldens as goldens
from fsdpkit.publishing.template_edges import value_sets
from fsdpkit.publishing.template_scripts import OF_SCRIPTS, Tell, scripts_of, seen_by

_TRIED = ("rendering", "directives and status", "bash -n", "shellcheck")
_SHOWN = 20


@dataclass(frozen=True)
class TrialStep:
    """One part of the test. failures: each names the case, the script's line and what is wrong."""

    name: str
    told: str
    failures: tuple[str, ...] = ()
    skipped: bool = False


def try_scripts(template: Template, found: Sequence[LoadedSite], tell: Tell) -> Iterator[TrialStep]:
    """Make and read every script."""
    made = scripts_of(template, found, value_sets(template.manifest.parameters), tell)
    for name in _TRIED:
        problems, told, looked = seen_by(OF_SCRIPTS[name](template, made))
        failures = tuple(f"{problem.where}: {problem.told}" for problem in problems)
        yield TrialStep(name, told, _few(failures), skipped=not looked)
    for why, sites in made.left_out.items():
        yield TrialStep("rendering", f"{', '.join(sites)}: {why}", skipped=True)


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
