"""A submission from the person's words to the cluster's answer; the whole path on one page.

plan(): decide and check, write nothing. script_of(): the text. submit(): make the run, call sbatch,
record the answer. At every moment at most one of two things is true of a run directory: it was
never handed to sbatch and is removed, or it holds all that the job needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import fsdpkit
from fsdpkit.config.assets import hold_script
from fsdpkit.config.job_loading import LoadedJob, load_job
from fsdpkit.config.published.centre import one_view
from fsdpkit.config.site import LoadedSite, choose_site, site_on_record
from fsdpkit.config.slurm_options import why_refused
from fsdpkit.config.surroundings import stood_in
from fsdpkit.config.template import load_template
from fsdpkit.config.trust import Consent
from fsdpkit.config.units import parse_array
from fsdpkit.errors import SubmissionInterrupted, UsageError
from fsdpkit.rendering.script import RUN_ID_PLACEHOLDER, Dependency, Plan, render
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.predicted import save_predicted
from fsdpkit.runs.record import RunRecord, now_s, save
from fsdpkit.runs.store import runs_dir
from fsdpkit.scheduling.entry import check_entry
from fsdpkit.scheduling.fitting import fit
from fsdpkit.scheduling.handing_over import (
    call_scheduler,
    refuse_before_queueing,
    write_job,
)
from fsdpkit.scheduling.job_checks import (
    check_array,
    check_planned,
    check_start,
    prediction_of,
    training_of,
)
from fsdpkit.scheduling.run_dir import make_run_dir, name_run_dir
from fsdpkit.scheduling.sharing import tell_centre
from fsdpkit.scheduling.wanted import Wanted

# What talks to a scheduler is imported where it is used: a dry run does not.
if TYPE_CHECKING:
    from fsdpkit.scheduling.run import Run
    from fsdpkit.worktree.files import WorkTreeFiles


@dataclass(frozen=True)
class SubmitRequest(Wanted):
    """What a person asked for, unchecked. None and empty: not said."""

    job: str | None = None
    cluster: str | None = None
    array: str | None = None
    after: str | None = None
    runs: str | os.PathLike[str] | None = None
    args: Sequence[str] = ()
    snapshot: bool | None = None
    by_plan: bool = True
    """Whether a plan that was made of this job decides if it is submitted."""
    sbatch_options: Sequence[str] = ()
    """`NAME=VALUE` or `NAME` each: options of sbatch that no key stands for."""
    here: bool = False
    """Run in the allocation around this process, in place of being queued."""
    on: str | None = None
    """The run that holds nodes for it (`fsdpkit hold`), in place of being queued."""

    @property
    def options(self) -> dict[str, Any]:
        options = super().options
        for text in self.sbatch_options:
            name, equals, value = text.partition("=")
            if why := why_refused(name):
                raise UsageError(f"--sbatch-option {text!r}: {why}")
            options[f"slurm.options.{name}"] = value if equals else True
        return options


def plan(request: SubmitRequest, consent: Consent | None = None) -> tuple[Plan, str]:
    """The plan and why its site was chosen. Raises FsdpkitError; writes nothing, and asks nobody
    but Slurm for what it can do.

    consent: to start the job's Python, which is asked whether it could run the job; None: only to
    that of what nobody else can have written.
    """
    with one_view():
        return _plan(request, consent or Consent(look=lambda item: None))


def asked_for(request: SubmitRequest) -> tuple[LoadedSite, str, LoadedJob]:
    """The site, why that one, and the job as it was asked for, unchecked. Raises FsdpkitError."""
    job_file = Path(request.job or "")
    if job_file.suffix not in (".py", ".toml") and job_file.is_file():
        from fsdpkit.scheduling.batch_file.answering import refuse_batch_file

        refuse_batch_file(str(request.job), request.args)
    if request.on and request.cluster is None:
        from fsdpkit.scheduling.opened import OpenRun

        hold = OpenRun.open(request.on, runs=request.runs).record
        site, why = site_on_record(hold.site, hold.site_file), "as its hold"
    else:
        site, why = choose_site(request.cluster)
    beneath = {}
    if "SLURM_JOB_ID" not in os.environ and (account := os.environ.get("SBATCH_ACCOUNT")):
        beneath = {"resources": {"account": account}}
    job = load_job(
        request.job,
        beneath=("SBATCH_ACCOUNT", beneath),
        options=request.options,
        sets=request.sets,
        args=request.args,
        said_in=request.said_in,
    )
    return site, why, job


def _plan(request: SubmitRequest, consent: Consent) -> tuple[Plan, str]:
    allocation = None
    if request.here or request.on is not None:
        from fsdpkit.scheduling.here.request import in_allocation

        request, allocation = in_allocation(request, asked_for, request.on, request.runs)
    site, why, job = asked_for(request)
    work_dir = Path.cwd()
    template = load_template(job.spec.template)
    if trusted := consent.to_job(job, site, template):
        check_entry(trusted, site)
    placement, avoided = fit(job, site, runs_dir(request.runs), work_dir, queues=allocation is None)
    if request.by_plan and (note := check_planned(job, placement.node_type, work_dir)):
        placement = replace(placement, warnings=(*placement.warnings, note))
    if request.array is not None:
        parse_array(request.array)
    after: tuple[Dependency, ...] = ()
    if request.after is None:
        if stood_in() is None:
            check_start(job, work_dir)
    else:
        from fsdpkit.scheduling.dependencies import dependencies

        after = dependencies(request.after, site, request.runs, request.array)
    from fsdpkit.scheduling.allowance import with_remarks
    from fsdpkit.scheduling.slurm_answers import wants_expediting

    check_array(job, request.array)
    decided = Plan(
        job,
        site,
        template,
        placement,
        work_dir,
        request.array,
        after,
        avoided=avoided,
        expedite=not allocation and wants_expediting(job, site.profile),
        allocation=allocation,
    )
    if request.by_plan and stood_in() is None:
        from fsdpkit.scheduling.expected import finish_notes

        told = (*placement.warnings, *finish_notes(decided))
        decided = replace(decided, placement=replace(placement, warnings=told))
    return decided if allocation else with_remarks(decided), why


def script_of(plan: Plan, runs: str | os.PathLike[str] | None = None) -> str:
    """The script as a submission would hand it to sbatch, its run id a placeholder."""
    directory = runs_dir(runs) / f"{plan.job.spec.name}-{RUN_ID_PLACEHOLDER}"
    where, _ = _where_it_runs(plan, directory)
    from fsdpkit.scheduling.compiled_templates import compiled_templates

    return render(where, directory, compiled_templates())


def _where_it_runs(plan: Plan, directory: Path) -> tuple[Plan, WorkTreeFiles | None]:
    """The plan for a run in `directory`, and the tree copied into it first. Raises UsageError."""
    if not plan.job.source.snapshot:
        return plan, None
    if stood_in() is not None:
        raise UsageError(
            "source.snapshot: the paths of a copied work tree are known only where the work tree is"
        )
    from fsdpkit.scheduling.snapshot import check_arguments, in_copy, read_tree

    tree = read_tree(plan, directory.parent.resolve())
    check_arguments(plan, tree)
    return in_copy(plan, tree, RunPaths(directory).snapshot), tree


def check(plan: Plan, runs: str | os.PathLike[str] | None = None) -> str:
    """Slurm's own opinion of the script (`sbatch --test-only`), and what that does not look at:
    limits of partitions, QOS and accounts. Raises SchedulerError."""
    import tempfile

    from fsdpkit.scheduling.cluster import cluster_of

    with tempfile.TemporaryDirectory(prefix="fsdpkit-check-") as directory:
        path = Path(directory) / "job.sbatch"
        path.write_text(script_of(plan, runs), encoding="utf-8")
        cluster = cluster_of(plan.site.profile.kind, plan.site.profile.slurm_clusters)
        if plan.site.profile.kind != "slurm":
            return cluster.test(path)
        from fsdpkit.scheduling.allowance import judged

        return judged(plan, lambda: cluster.test(path))


def submit_plan(
    plan: Plan,
    runs: str | os.PathLike[str] | None = None,
    consent: Consent | None = None,
    *,
    prepare: Callable[[RunPaths], None] | None = None,
) -> Run:
    """Make the run directory, submit, record the answer.

    consent: to what strangers could have written of the plan; None: to nothing of it.
    prepare: writes what else the job needs into the directory before it is submitted.
    Raises ConfigError, StorageError or SchedulerError; then no run is left behind, except after
    SubmissionUnconfirmed or SubmissionInterrupted, when Slurm may have the job and `fsdpkit status`
    will find out.
    """
    import shutil

    from fsdpkit.scheduling.cluster import cluster_of
    from fsdpkit.scheduling.compiled_templates import compiled_templates
    from fsdpkit.scheduling.dependencies import confirm
    from fsdpkit.scheduling.provenance import write_provenance
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.slurm import SubmissionUnconfirmed
    from fsdpkit.scheduling.snapshot import copy_tree

    refuse_before_queueing(plan, runs_dir(runs), consent)
    confirm(plan.after, cluster_of(plan.site.profile.kind, plan.site.profile.slurm_clusters))
    asked, directory = plan, name_run_dir(runs_dir(runs), plan.job.spec.name)
    plan, tree = _where_it_runs(asked, directory)
    script = render(plan, directory, compiled_templates())
    make_run_dir(directory, group=plan.job.opens_to_group)
    paths = RunPaths(directory)
    try:
        record = _record(plan, directory)
        snapshot = copy_tree(tree, paths.snapshot) if tree else None
        write_provenance(plan, paths, asked.job.entry, asked.work_dir, snapshot)
        write_job(paths, plan)
        save_predicted(paths, prediction_of(asked, training_of(asked.job, asked.work_dir)))
        if prepare is not None:
            prepare(paths)
        save(paths, record)
        taken = call_scheduler(plan, paths, script)
    except (SubmissionUnconfirmed, SubmissionInterrupted):
        raise
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    record = msgspec.structs.replace(record, state="submitted", **taken._asdict())
    save(paths, record)
    tell_centre(plan, paths)
    return Run(directory, record)


def _record(plan: Plan, directory: Path) -> RunRecord:
    resources = plan.job.spec.resources
    return RunRecord(
        id=directory.name,
        state="submitting",
        created_s=now_s(),
        name=plan.job.spec.name,
        site=plan.site.id,
        site_file=str(plan.site.files[0]) if len(plan.site.files) == 1 else None,
        kind=plan.site.profile.kind,
        cluster=plan.site.profile.slurm_clusters,
        nodes=resources.nodes,
        ranks_per_node=plan.job.spec.ranks_per_node,
        array=plan.tasks,
        left_out=[node for node, _ in plan.avoided],
        here=plan.allocation is not None and plan.site.profile.kind == "slurm",
        on=plan.hold,
        holds=plan.job.entry.file == hold_script(),
        submitted_s=now_s(),
        work_dir=str(plan.work_dir),
        command=sys.argv,
        version=fsdpkit.__version__,
        template=f"{plan.template.manifest.name} {plan.template.manifest.version}",
        digests=plan.digests,
    )


def leaked_variables() -> list[str]:
    """Names of a surrounding allocation's variables that a submission leaves out."""
    from fsdpkit.scheduling.environment import scrubbed

    return scrubbed(os.environ)[1]


def submit(
    job: str | None = None,
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    cluster: str | None = None,
    account: str | None = None,
    partition: str | None = None,
    time: str | None = None,
    sets: Sequence[str] = (),
    array: str | None = None,
    after: str | None = None,
    runs: str | os.PathLike[str] | None = None,
    args: Sequence[str] = (),
    spare: int | None = None,
    snapshot: bool | None = None,
    by_plan: bool = True,
    sbatch_options: Sequence[str] = (),
    here: bool = False,
    on: str | None = None,
) -> Run:
    """Submit a job, as `fsdpkit submit` does, and return without waiting for it.

    None leaves a setting as the job file, or its default, has it.

    Args:
        job: A job file, the name of a job (`fsdpkit jobs`), a training script, `"-m lab.train"`
            (a module) or a command of the job's environment; None: the job t5.
        nodes: Nodes, standby nodes not counted.
        gpus: GPUs per node; each gets one rank.
        cluster: A site profile, or `"local"`; None: `$FSDPKIT_CLUSTER`, else that of this machine.
        account: Account (project) to charge.
        partition: Partition; None: the first that fits.
        time: Time limit as in sbatch(1), `--time`: `"30"` is minutes, `"02:00:00"` hours.
        sets: `KEY=VALUE` each, for any key of the job file; the options above take precedence.
        array: Array tasks as in sbatch: `"0-15"`, `"1,3"`, `"0-99%10"`.
        after: Id or path of a run, or the number of a job: the job starts after that one has
            succeeded. `"afterany:RUN"`, `afternotok`, `aftercorr`, `after` and `"singleton"` mean
            what sbatch means by them; several stand with commas between.
        runs: Directory of runs; None: `$FSDPKIT_RUNS`, else `./runs`.
        args: Arguments of the script.
        spare: Extra standby nodes that replace a failed one.
        snapshot: Run in a copy of the work tree as it is now.
        by_plan: Refuse a job that `fsdpkit plan` has shown not to fit.
        sbatch_options: `NAME=VALUE` or `NAME` each: options of sbatch that no key stands for.
        here: Run in the allocation around this process, which has to outlive the run.
        on: Run on the nodes that this run of `fsdpkit hold` has; on Slurm this process has to
            outlive the run.

    Returns:
        The run; its `job_id` is the scheduler's.

    Raises:
        UsageError: The arguments contradict one another or the cluster.
        ConfigError: The job, the profile or the template is wrong; names file, key and remedy.
        NotFoundError: There is no such job, script, profile or run.
        SchedulerError: Slurm refused, or could not be asked. No run is left behind, unless
            Slurm may have accepted the job: then the run is kept, and the error names it.
        StorageError: The run directory cannot be written, or the disk has too little room.

    Examples:
        >>> import fsdpkit
        >>> run = fsdpkit.submit("train.py", nodes=2, gpus=2, cluster="local", time="01:00:00")
        >>> same = fsdpkit.Run.open(run.id)    # in any process, at any time
        >>> same.cancel()
        []
        >>> same.wait().state
        'CANCELLED'
    """
    asked = dict(locals())
    consent = Consent()
    decided, _ = plan(SubmitRequest(**asked), consent)
    return submit_plan(decided, runs, consent)
