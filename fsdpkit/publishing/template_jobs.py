"""Jobs of a template that is tested: on this machine, as Slurm would take it, as a canary there."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fsdpkit.config.site import LoadedSite, choose_site
from fsdpkit.config.template import Template
from fsdpkit.config.trust import Consent
from fsdpkit.errors import FsdpkitError, SchedulerError, UsageError
from fsdpkit.publishing.template_cases import partitions_of, shortest
from fsdpkit.publishing.template_scripts import Tell
from fsdpkit.publishing.template_tested import keep
from fsdpkit.publishing.template_trials import TrialStep
from fsdpkit.runs.reading import read_text
from fsdpkit.scheduling import submission
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.slurm_answers import answers_of

JOB = "canary"
"""The packaged job: ranks that add their numbers up."""


@dataclass(frozen=True)
class JobTrials:
    """What is tried of a template by jobs. explain: why a run failed, in lines."""

    template: Template
    agreed: Consent
    explain: Callable[[Run], list[str]]
    tell: Tell

    def request(
        self, cluster: str | None, account: str | None = None, runs: str | None = None
    ) -> submission.SubmitRequest:
        """For the canary's job, with the template."""
        sets = (f"template={self.template.dir}",)
        return submission.SubmitRequest(JOB, cluster=cluster, account=account, sets=sets, runs=runs)

    def on_this_machine(self) -> TrialStep:
        """Two nodes of one rank each on the local cluster. A run that failed is kept."""
        runs = tempfile.mkdtemp(prefix="fsdpkit-template-")
        failed = False
        try:
            self.tell("two ranks meet on this machine")
            state, said, failures = self._run(self.request("local", runs=runs))
            failed = bool(failures)
        except FsdpkitError as error:
            return TrialStep("local job", "2 nodes x 1 rank", (str(error),))
        finally:
            if not failed:
                shutil.rmtree(runs, ignore_errors=True)
        if failed:
            return TrialStep("local job", f"{state}; its run is in {runs}", failures)
        return TrialStep("local job", said or state)

    def on_slurm(
        self, request: submission.SubmitRequest, partition: str | None, *, canary: bool
    ) -> Iterator[TrialStep]:
        """Slurm's opinion of the script, by partition; then a canary, if one is wanted. Raises
        UsageError where that has no cluster to run on."""
        site, why = _slurm_of(request.cluster)
        if site is None and canary:
            raise UsageError(f"--canary: {why}; choose a cluster with --cluster, on its login node")
        if site is not None and not canary:
            why = _no_answer()
        if site is None or why:
            yield TrialStep("sbatch", why, skipped=True)
            return
        yield from _test_only(site, request)
        if canary:
            yield self._canary(site, replace(request, partition=partition))

    def _run(self, request: submission.SubmitRequest) -> tuple[str, str, tuple[str, ...]]:
        """Submit, wait for the end: the state in words, what rank 0 said, and what failed. The job
        ends with this command. Raises FsdpkitError."""
        plan, _ = submission.plan(request, self.agreed)
        run = submission.submit_plan(plan, request.runs, self.agreed)
        try:
            state = run.wait()
        except BaseException:
            run.cancel()
            self.tell(f"the job {run.job_id} was cancelled")
            raise
        said, words = _said(run), state.describe()
        if state.outcome == "done" and said:
            return words, said, ()
        why = self.explain(run) or ["rank 0 did not say that the ranks had added their numbers"]
        return words, said, (words, *why)

    def _canary(self, site: LoadedSite, request: submission.SubmitRequest) -> TrialStep:
        """Two nodes that really meet; how it went is kept with the template."""
        self.tell(f"a canary of two nodes on {site.id}")
        try:
            asked = replace(request, nodes=2, time=shortest(site.profile))
            state, said, failures = self._run(asked)
        except FsdpkitError as error:
            state, said, failures = "not submitted", "", (str(error),)
        went = ": ".join(dict.fromkeys([state, *failures[:1]])) if failures else "ok"
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        release = answers_of(None).settings().get("SLURM_VERSION", "unknown")
        told = f"{went}, {date} (Slurm {release}, 2 nodes, 2 ranks)"
        try:
            kept = f"kept in {_shown(keep(self.template, site.id, told))}"
        except FsdpkitError as error:
            return TrialStep("canary", said or state, (*failures, str(error)))
        return TrialStep("canary", f"{said or state}; {kept}", failures)


def _said(run: Run) -> str:
    """The canary's own last word, of rank 0."""
    try:
        text = read_text(run.newest_attempt().rank_file(0, "out", 0))
    except (FsdpkitError, OSError):
        return ""
    return next((each for each in reversed(text.splitlines()) if each.startswith(f"{JOB}: ")), "")


def _slurm_of(cluster: str | None) -> tuple[LoadedSite | None, str]:
    """The Slurm cluster to ask; None and why there is none. Raises FsdpkitError."""
    if shutil.which("sbatch") is None:
        return None, "there is no Slurm on this machine"
    site, _ = choose_site(cluster)
    if site.profile.kind != "slurm":
        return None, f"{site.id} is no Slurm cluster"
    return site, ""


def _no_answer() -> str:
    """Why no cluster can be asked, as with Slurm's commands alone; empty: one can."""
    try:
        answers_of(None).config()
    except SchedulerError as error:
        return f"Slurm does not answer here: {'. '.join(str(error).splitlines())}"
    return ""


def _test_only(site: LoadedSite, request: submission.SubmitRequest) -> Iterator[TrialStep]:
    """Slurm's own opinion of the script, for each partition of the profile."""
    for name in partitions_of(site.profile):
        shown = f"{site.id}, {name or 'default partition'}"
        limits = site.profile.partitions.get(name) if name else None
        gpus = max(limits.min_gpus, 1) if limits else 1
        nodes = min(2, limits.max_nodes or 2) if limits else 2
        asked = replace(
            request, partition=name, nodes=nodes, gpus=gpus, time=shortest(site.profile)
        )
        try:
            plan, _ = submission.plan(asked)
        except UsageError as error:
            yield TrialStep("sbatch", f"{shown}: {error}", skipped=True)
            continue
        try:
            yield TrialStep("sbatch", f"{shown}: {submission.check(plan)}")
        except FsdpkitError as error:
            yield TrialStep("sbatch", shown, (str(error),))


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
