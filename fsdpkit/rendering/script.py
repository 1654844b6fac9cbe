"""The script of a submission: what goes to the template, what comes back.

`Plan` is everything decided before anything is written or queued; `render` is a pure function of
it, the template's files and a run directory, so the dry run and the submission cannot differ.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import fsdpkit
from fsdpkit.config.allocation import Allocation
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.limits import warning_s
from fsdpkit.config.notify import Notify
from fsdpkit.config.placement import Placement
from fsdpkit.config.published.centre import Release
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.surroundings import PythonEnvironment as PythonEnvironment
from fsdpkit.config.surroundings import own_python
from fsdpkit.config.template import Template, parameter_values
from fsdpkit.config.units import parse_array
from fsdpkit.errors import RenderError, UsageError
from fsdpkit.rendering.containers import command_words, is_by_plugin
from fsdpkit.rendering.containers import srun_words as container_srun
from fsdpkit.rendering.context import (
    Context,
    DigestNames,
    DirectiveNames,
    EnvironmentNames,
    JobNames,
    PythonNames,
    RunNames,
    StepNames,
    TemplateNames,
)
from fsdpkit.rendering.copies import copied
from fsdpkit.rendering.directives import Directive, resource_directives
from fsdpkit.rendering.environment import trace_template
from fsdpkit.rendering.lint import lint
from fsdpkit.rendering.traced import Traced

if TYPE_CHECKING:
    from jinja2 import BytecodeCache

RUN_ID_PLACEHOLDER = "RUN-ID"


@dataclass(frozen=True)
class Dependency:
    """One thing that a job waits for, as sbatch takes it."""

    kind: str
    """`afterok` and its like; `singleton` has no job."""
    job_id: str | None = None
    run_dir: Path | None = None
    """The run that the job is of; None: it is none of fsdpkit's."""

    @property
    def text(self) -> str:
        """sbatch's word for it, such as `afterok:1234`."""
        return self.kind if self.job_id is None else f"{self.kind}:{self.job_id}"


@dataclass(frozen=True)
class Plan:
    """What will be submitted, decided and checked."""

    job: LoadedJob
    site: LoadedSite
    template: Template
    placement: Placement
    work_dir: Path
    array: str | None = None
    after: tuple[Dependency, ...] = ()
    """The jobs that this one waits for."""
    python: PythonEnvironment = field(default_factory=own_python)
    """What a job gets that names no environment of its own."""
    chained: tuple[str, ...] = ()
    """Slurm jobs of the same run: this one starts only if all of them ended short of the goal."""
    avoided: tuple[tuple[str, str], ...] = ()
    """Nodes left out because of what they did to an earlier run, as (node, why and until when)."""
    expedite: bool = False
    """Whether Slurm restarts the job at once, before others, if it loses the batch node."""
    first_attempt: int = 0
    """The number of the job's first attempt; a resumed run counts on from its earlier ones."""
    allocation: Allocation | None = None
    """Where the script runs at once, in place of being queued."""

    @property
    def tasks(self) -> list[int] | None:
        """Numbers of its array's tasks; None: it is no array."""
        return parse_array(self.array)[0] if self.array else None

    @property
    def hold(self) -> str | None:
        """The run that holds its nodes, if one does."""
        where = self.allocation and self.allocation.hold
        return where.name if where else None

    @property
    def digests(self) -> dict[str, str]:
        """sha256 of template, site and job, as the script's header and the record name them."""
        return {
            "template": self.template.sha256,
            "site": _digest(self.site.profile),
            "job": _digest(self.job.spec),
        }

    @property
    def releases(self) -> list[Release]:
        """What a centre published of it: the job's layers, the site's, the template."""
        found = [*self.job.layered.releases, *self.site.layered.releases]
        return [*found, *([self.template.release] if self.template.release else [])]

    @property
    def warnings(self) -> list[str]:
        """What to know before it is submitted: of its place, then of the files it was made of."""
        return [
            *self.placement.warnings,
            *self.job.layered.warnings,
            *self.site.layered.warnings,
            *(f"skipped a profile that is broken: {why}" for why in self.site.skipped),
            *(told for one in self.releases for told in (one.note, one.deprecated) if told),
        ]


def _digest(value: msgspec.Struct) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


def render(plan: Plan, run_dir: Path, cache: BytecodeCache | None = None) -> str:
    """The sbatch script, which has passed the lint. Raises RenderError, ConfigError, UsageError.
    cache: of compiled templates, from earlier processes."""
    script = trace(plan, run_dir, cache).script
    known = {*plan.placement.select, *plan.job.spec.slurm.options}
    problems = [f for f in lint(script, known) if f.severity == "error"]
    if problems:
        listed = "\n".join(f"  line {f.line}: {f.message}" for f in problems)
        raise RenderError(
            f"template {plan.template.manifest.name} ({plan.template.dir}) renders a script that "
            f"must not be submitted:\n{listed}"
        )
    return script


def trace(plan: Plan, run_dir: Path, cache: BytecodeCache | None = None) -> Traced:
    """The same before the lint, with the template's line of each line of the script."""
    _check_run_dir(run_dir)
    _check_handed_on(plan)
    _check_kind(plan)
    return trace_template(plan.template, context_of(plan, run_dir), cache)


def _check_handed_on(plan: Plan) -> None:
    """A template that does not hand these on would run the job, or each task, as if it had none."""
    for name, given in (
        ("srun", plan.allocation),
        ("hold", plan.hold),
        ("stage", plan.job.spec.staged.is_asked),
        ("container_srun", is_by_plugin(plan.job, plan.site.profile)),
        ("array_args", _of_tasks(plan, plan.job.array_args)),
        ("array_variables", _array_variables(plan)),
        ("environment.prepend", plan.job.spec.environment.prepend),
        *((f"steps.{key}", words) for key, words in plan.job.steps.items()),
    ):
        if given and not any(name.encode() in part for part in plan.template.parts.values()):
            raise RenderError(
                f"template {plan.template.manifest.name} ({plan.template.dir}): does not pass on "
                f"{name}, which the job has: see the template torchrun"
            )


def _check_kind(plan: Plan) -> None:
    """A template from before there were modules and commands would take either for a script."""
    kind = plan.job.entry.kind
    if kind != "script" and not any(b"job.kind" in part for part in plan.template.parts.values()):
        raise RenderError(
            f"template {plan.template.manifest.name} ({plan.template.dir}): starts scripts only, "
            f"and {plan.job.entry} is a {kind}: see job.kind in the template torchrun"
        )


def _check_run_dir(run_dir: Path) -> None:
    if "\\" in str(run_dir):
        raise UsageError(
            f"the run directory {run_dir} contains a backslash, which makes Slurm ignore the job "
            f"id in the log name; choose another with --runs"
        )


_STEPS = ("before", "each_node", "after")


def context_of(plan: Plan, run_dir: Path) -> dict[str, Any]:
    """Plain data for the template; `rendering.context` says what each name means."""
    spec, profile = plan.job.spec, plan.site.profile
    resources = spec.resources
    parameters = parameter_values(
        plan.template.manifest,
        (f"site {plan.site.id}", profile.parameters),
        (f"job {spec.name}", spec.parameters),
    )
    manifest, python = plan.template.manifest, python_of(plan)
    site, job = profile.environment, spec.environment
    facts = msgspec.to_builtins(profile) | {"id": plan.site.id}
    facts["gpu_request"]["form"] = plan.placement.gpu_form  # as it was decided
    # The trainer's settings, where the job has some.
    settings = [] if spec.training is msgspec.UNSET else ["--job", str(run_dir / "job.json")]
    context = Context(
        version=fsdpkit.__version__,
        run=RunNames(id=run_dir.name, dir=str(run_dir), first_attempt=plan.first_attempt),
        template=TemplateNames(name=manifest.name, version=manifest.version),
        digests=DigestNames(**{name: digest[:12] for name, digest in plan.digests.items()}),
        job=JobNames(
            name=spec.name,
            entry=plan.job.entry.name,
            kind=plan.job.entry.kind,
            args=[*settings, *spec.args],
            array_args=_of_tasks(plan, plan.job.array_args),
        ),
        site=facts,
        nodes=resources.nodes,
        spare=resources.spare,
        gpus=resources.gpus,
        ranks_per_node=spec.ranks_per_node,
        retry=spec.retry,
        notify=spec.notify,
        array=plan.array is not None,
        expedite=plan.expedite,
        origins=_origins(plan),
        directives=[DirectiveNames(name=d.name, value=d.value) for d in _directives(plan, run_dir)],
        environment=EnvironmentNames(
            purge=site.purge_modules,
            use=site.use_modules,
            modules=site.modules if job.modules is None else job.modules,
            python=PythonNames(kind=python.kind, path=python.path, conda=python.conda),
            variables={**site.variables, **profile.network.env, **job.variables},
            array_variables=_array_variables(plan),
            prepend=job.prepend,
            unset=site.unset,
            passed=job.passed,
        ),
        srun=_srun(plan, run_dir),
        hold=plan.hold,
        stage=copied(spec, profile, plan.work_dir, run_dir),
        container=command_words(plan.job, profile, run_dir),
        container_srun=container_srun(plan.job, profile, run_dir, plan.work_dir),
        steps=StepNames(**{key: [*plan.job.steps.get(key, ())] for key in _STEPS}),
        device=_device(plan),
        job_sha256=plan.job.resolved_sha256,
        umask=27 if plan.job.opens_to_group else 77,
        parameters=parameters,
    )
    plain: dict[str, Any] = msgspec.to_builtins(context)
    return plain


def _srun(plan: Plan, run_dir: Path) -> list[str]:
    if plan.allocation is None or plan.site.profile.kind == "local":
        return []
    return plan.allocation.srun_words(plan.job.spec.resources.nodes, run_dir.name)


def _device(plan: Plan) -> str:
    """What ranks train on: `cpu`, `nvidia`, `amd`, or `gpu` where nobody knows whose."""
    vendor = plan.placement.node_type.vendor
    return "cpu" if vendor == "none" else vendor or "gpu"


def _of_tasks(plan: Plan, own: Mapping[int, Sequence[str]]) -> list[list[str]]:
    """For each task of this array that has words of its own: its number, how many, and they."""
    tasks = [task for task in plan.tasks or [] if own.get(task)]
    return [[str(task), str(len(own[task])), *own[task]] for task in tasks]


def _array_variables(plan: Plan) -> list[list[str]]:
    """The same of variables."""
    own = {}
    for task, tables in plan.job.array_settings.items():
        variables = tables.get("environment", {}).get("variables", {})
        own[task] = [f"{name}={value}" for name, value in sorted(variables.items())]
    return _of_tasks(plan, own)


def _directives(plan: Plan, run_dir: Path) -> list[Directive]:
    policy = plan.site.profile.policy
    resources = plan.job.spec.resources
    if plan.avoided:
        exclude = ",".join(filter(None, [resources.exclude, *(node for node, _ in plan.avoided)]))
        resources = msgspec.structs.replace(resources, exclude=exclude)
    log = "slurm-%A_%a.log" if plan.array else "slurm-%j.log"
    directives = [
        Directive("job-name", plan.job.spec.name),
        Directive("comment", f"fsdpkit:{run_dir.name}"),
        *resource_directives(resources, plan.placement, plan.site.profile),
        Directive("chdir", str(plan.work_dir)),
        # A percent sign in a path would start one of Slurm's file name patterns.
        Directive("output", f"{str(run_dir).replace('%', '%%')}/{log}"),
        Directive("open-mode", "append"),
        Directive("signal", f"B:USR1@{warning_s(resources, plan.site.profile)}"),
    ]
    if not plan.job.may_requeue or plan.allocation is not None:
        directives.append(Directive("no-requeue", None))
    elif plan.expedite:
        directives.append(Directive("requeue", "expedite"))
    else:  # a cluster may queue nothing again that does not ask for it (JobRequeue=0)
        asks = "no-requeue" if policy.requeue is False else "requeue"
        directives.append(Directive(asks, None))
    directives += _mail(plan.job.spec.notify)
    if plan.array:
        directives.append(Directive("array", plan.array))
    if plan.after:
        directives.append(Directive("dependency", ",".join(one.text for one in plan.after)))
    if plan.chained:
        directives.append(Directive("dependency", f"afternotok:{':'.join(plan.chained)}"))
    if plan.after or plan.chained:
        directives.append(Directive("kill-on-invalid-dep", "yes"))
    own = plan.job.spec.slurm.directives  # over what the partition's profile selects nodes by
    return [d for d in directives if d.name not in own] + [Directive(*one) for one in own.items()]


_MAIL_TYPES = {"end": "END", "failure": "FAIL", "requeue": "REQUEUE"}


def _mail(notify: Notify) -> list[Directive]:
    """What Slurm sends by mail, and where; nothing without an address."""
    if notify.mail is None:
        return []
    known = [_MAIL_TYPES[event] for event in dict.fromkeys(notify.on) if event in _MAIL_TYPES]
    types = ",".join(known) or "NONE"
    return [Directive("mail-user", notify.mail), Directive("mail-type", types)]


def _origins(plan: Plan) -> list[str]:
    """One line a resource for the script's header: what, and where it was set."""
    resources = msgspec.to_builtins(plan.job.spec.resources)
    lines = [
        f"{key} = {value} ({plan.job.origin(f'resources.{key}')})"
        for key, value in resources.items()
        if value not in (None, False)
    ]
    for name, value in plan.job.spec.slurm.directives.items():
        shown = name if value is None else f"{name} = {value}"
        lines.append(f"{shown} ({plan.job.origin(f'slurm.options.{name}')})")
    lines += [f"without {node}: {why}" for node, why in plan.avoided]
    placement = plan.placement
    lines.append(f"cpus-per-task = {placement.cpus_per_task} ({placement.cpus_reason})")
    if placement.memory_mb is not None and plan.job.spec.resources.memory is None:
        shown = f"{placement.memory_mb}M" if placement.memory_mb else "0"
        lines.append(f"mem = {shown} ({placement.memory_reason})")
    if placement.select and not plan.job.spec.resources.partition:
        chosen = ", ".join(f"{k} {v}" for k, v in placement.select.items())
        lines.append(f"{chosen} (site: the first that fits)")
    lines.append(requeue_note(plan))
    lines += plan.job.record_notes(plan.site.profile)
    lines += [
        f"published: {one}, sha256 {one.sha256}, {one.channel}, signed by {one.signer}"
        for one in plan.releases
    ]
    return lines


_RETURNS = {
    "on_time_limit": "time limit",
    "on_preemption": "preemption",
    "on_node_failure": "node failure",
    "on_crash": "crash",
    "on_hang": "hang",
    "on_out_of_memory": "out of memory",
}


def requeue_note(plan: Plan) -> str:
    """Whether the script queues its own job again, and after what, for whoever reads its header."""
    retry = plan.job.spec.retry
    if plan.allocation is not None:
        return f"requeue: never (--here: in the allocation {plan.allocation.job_id})"
    if plan.site.profile.policy.requeue is False:
        return "requeue: never (site: policy.requeue)"
    if plan.array is not None:  # its tasks share the script, and may differ in this
        return "requeue: each array task as its own [retry] says (job)"
    if not plan.job.may_requeue:
        return "requeue: never (job: [retry])"
    returns = [
        words
        for key, words in _RETURNS.items()
        if getattr(retry, key) == "requeue"
        or (key == "on_node_failure" and retry.on_node_failure == "restart")  # no spare is left
    ]
    limit = f"{retry.requeues} times" if retry.requeues != 1 else "once"
    return (
        f"requeue: the job queues itself again after {', '.join(returns)}; at most {limit} in a "
        "row without a new checkpoint (job: [retry])"
    )


def python_of(plan: Plan) -> PythonEnvironment:
    """The Python that the job activates: as it says, else the submitter's own."""
    job = plan.job.spec.environment
    if job.conda:
        return PythonEnvironment("conda", job.conda)
    if job.venv:
        return PythonEnvironment("venv", str(plan.work_dir / os.path.expanduser(job.venv)))
    return PythonEnvironment("container") if job.container else plan.python
