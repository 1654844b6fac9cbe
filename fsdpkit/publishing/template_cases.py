"""The scripts that a template is tried with: every profile, shapes of jobs, edges of parameters.

Nothing here reads a job file or a person's defaults, so that the same template makes the same
scripts wherever it is tried: the person, the paths and the run are made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

import fsdpkit
from fsdpkit.config import assets
from fsdpkit.config.entry import Entry
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.loading import Layered, build
from fsdpkit.config.placement import place
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import LoadedSite, load_site
from fsdpkit.config.template import Template
from fsdpkit.config.trainers import job_type
from fsdpkit.config.units import format_time
from fsdpkit.errors import FsdpkitError, UsageError
from fsdpkit.publishing.template_edges import Values
from fsdpkit.rendering.lint import LintFinding, lint
from fsdpkit.rendering.script import Dependency, Plan, PythonEnvironment, trace
from fsdpkit.rendering.traced import RenderLimitError, Traced

HOME = Path("/home/alex/work")
RUN_DIR = HOME / "runs" / "train-20260102-090000-4f3a"
VENV = PythonEnvironment("venv", "/home/alex/venv")
_HOOK = ["curl", "-sS", "--data", "@-", "https://chat.example.org/hook"]
_STOP = dict.fromkeys(
    ("on_time_limit", "on_preemption", "on_node_failure", "on_crash", "on_hang"), "stop"
)
_NASTY = ["--name", 'it\'s a "run" $(id) `id` \\ 100%', "", "日本", "{array_task}"]


@dataclass(frozen=True)
class Shape:
    """One kind of job. tables: of the job; the numbers of nodes and GPUs are tried in order."""

    name: str
    sizes: Sequence[tuple[int, int]] = ((2, 4), (2, 2), (2, 1))
    tables: Mapping[str, Any] = field(default_factory=dict)
    array: str | None = None
    python: PythonEnvironment = VENV
    plan: Mapping[str, Any] = field(default_factory=dict)


SHAPES = (
    Shape("two nodes"),
    Shape("one rank", sizes=((1, 1),)),
    Shape("one node", sizes=((1, 4), (1, 2))),
    Shape("array", tables={"array_args": {"0": _NASTY, "2": ["x"]}}, array="0-3%2"),
    Shape("container", tables={"environment": {"container": "/images/torch.sif"}}),
    Shape("conda", tables={"environment": {"conda": "torch"}}),
    Shape("own conda", python=PythonEnvironment("conda", "/opt/env", "/opt/conda/bin/conda")),
    Shape("plain Python", python=PythonEnvironment("prefix", "/opt/python/bin")),
    Shape("spare node", tables={"resources": {"spare": 1}}),
    Shape("hostile text", tables={"args": _NASTY, "environment": {"variables": {"X": _NASTY[1]}}}),
    Shape("notify", tables={"notify": {"mail": "alex@example.org", "command": _HOOK}}),
    Shape("never again", tables={"retry": _STOP, "files": {"group": True}}),
    Shape("expedited", plan={"expedite": True}),
    Shape("expedited array", array="0-3", plan={"expedite": True}),
    Shape("chained", plan={"chained": ("1233",), "first_attempt": 3}),
    Shape("after another", plan={"after": (Dependency("afterok", "1234"),)}),
)


@dataclass(frozen=True)
class Case:
    """One script to render."""

    site: LoadedSite
    shape: Shape
    values: Values
    size: tuple[int, int]

    def __str__(self) -> str:
        nodes, gpus = self.size
        values = ", ".join(f"{k} = {_short(v)}" for k, v in self.values.items())
        return f"{self.site.id}, {self.shape.name} ({nodes} x {gpus})" + (
            f", with {values}" if values else ""
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text)} characters)"


def sites(names: Sequence[str] = ()) -> tuple[list[LoadedSite], list[str]]:
    """The profiles of these names, or all, and for each of all that cannot be read the reason.
    Raises FsdpkitError for one that was named."""
    if names:
        return [load_site(name) for name in dict.fromkeys(names)], []
    found, broken = [], []
    for name in assets.available("site"):
        try:
            found.append(load_site(name))
        except FsdpkitError as error:
            broken.append(str(error).splitlines()[0])
    return found, broken


_TIME = "04:00:00"


def fitting(site: LoadedSite, shape: Shape) -> Case | str:
    """The shape at a size that the profile accepts, or why there is none."""
    profile = site.profile
    if "container" in shape.tables.get("environment", {}) and profile.container.engine is None:
        return "its profile names no container engine"
    why = ""
    for size in shape.sizes:
        try:
            plan_of(Case(site, shape, {}, size), None)
            return Case(site, shape, {}, size)
        except UsageError as error:
            why = str(error).splitlines()[-1].strip()
            if why.startswith("What would fit"):  # otherwise for each size
                why = f"it has no partition for such a job of {_TIME}"
    return why


def plan_of(case: Case, template: Template | None) -> Plan:
    """Raises UsageError where the profile refuses it. template None: only for that question."""
    site, shape = case.site, case.shape
    nodes, gpus = case.size
    account = site.profile.account.example
    resources = {"nodes": nodes, "gpus": gpus, "time": _TIME, "account": account}
    resources = {k: v for k, v in resources.items() if v is not None}
    layered = Layered()
    layered.say({"schema": "fsdpkit.job/1", "name": "train", "entry": "train.py"}, "template")
    layered.say({"resources": resources, "parameters": dict(case.values)}, "template")
    layered.say(dict(shape.tables), shape.name)
    spec = build(job_type(), layered, "job train")
    if not site.profile.account.required or account is not None:
        placement = place(spec.resources, site)
    else:  # an account that nobody knows is no reason to leave the profile out
        rules = msgspec.structs.replace(site.profile.account, required=False)
        free = msgspec.structs.replace(site.profile, account=rules)
        placement = place(spec.resources, replace(site, profile=free))
    nothing = Template(None, HOME, "", {})  # type: ignore[arg-type]
    return Plan(
        LoadedJob(spec, layered, (), Entry.of_file(HOME / "train.py")),
        site,
        template or nothing,
        placement,
        HOME,
        shape.array,
        python=shape.python,
        **shape.plan,
    )


@dataclass(frozen=True)
class RenderedCase:
    """What became of a case: its script, or why there is none."""

    case: Case
    traced: Traced | None
    refused: str | None = None
    findings: tuple[LintFinding, ...] = ()
    """What the lint has to say of the script; with an error among it, it is not submitted."""
    ended: bool = False
    """Whether it was refused for the time or memory that it took."""

    @property
    def script(self) -> str:
        return self.traced.script if self.traced else ""


def render_case(case: Case, template: Template) -> RenderedCase:
    try:
        plan = plan_of(case, template)
        traced = trace(plan, RUN_DIR)
    except FsdpkitError as error:
        return RenderedCase(case, None, str(error), ended=isinstance(error, RenderLimitError))
    return RenderedCase(case, traced, None, tuple(lint(traced.script, plan.placement.select)))


def neutral(script: str, plan: Plan) -> str:
    """The script without what differs from release to release: checksums and fsdpkit's version."""
    script = script.replace(plan.job.resolved_sha256, "0" * 64)
    for digest in plan.digests.values():
        script = script.replace(digest[:12], "0" * 12)
    return script.replace(f"fsdpkit {fsdpkit.__version__}.", "fsdpkit 0.0.0.")


MOST = 3000
"""Scripts of one test; with more, the sets of values are dealt out among the profiles."""


def cases_of(
    found: Sequence[LoadedSite], value_sets: Sequence[Values]
) -> tuple[list[Case], dict[str, list[str]], bool]:
    """The cases, what no profile accepts (by reason), and whether values had to be dealt out. Every
    profile gets every shape with the defaults; the first shape that fits gets the values."""
    cases: list[Case] = []
    left_out: dict[str, list[str]] = {}
    dealt = len(found) * len(value_sets) > MOST
    for number, site in enumerate(found):
        base: Case | None = None
        refused: dict[str, list[str]] = {}
        for shape in SHAPES:
            fits = fitting(site, shape)
            if isinstance(fits, str):
                refused.setdefault(fits, []).append(shape.name)
                continue
            base = base or fits
            cases.append(fits)
        if base is not None:
            own = value_sets[number :: len(found)] if dealt else value_sets
            cases += [replace(base, values=values) for values in own if values]
        for why, shapes in refused.items():
            left_out.setdefault(f"{', '.join(shapes)}: {why}", []).append(site.id)
    return cases, left_out, dealt


_HOPELESS = 10


def rendered(cases: Sequence[Case], template: Template) -> Iterator[RenderedCase]:
    """Each case in turn, until one takes too long; ten of a template that refuses them all."""
    any_good = False
    for number, case in enumerate(cases):
        if number == _HOPELESS and not any_good:
            return
        made = render_case(case, template)
        any_good = any_good or made.traced is not None
        yield made
        if made.ended:
            return


def partitions_of(profile: SiteProfile) -> Sequence[str | None]:
    """The partitions to ask Slurm about; one unnamed, the default, where none is known."""
    return [*profile.partitions] or [None]


def shortest(profile: SiteProfile) -> str:
    """A time limit that leaves time for the warning and the start."""
    return format_time(max(profile.policy.warning_s + 240, 600))
