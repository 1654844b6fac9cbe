"""What can be checked on a login node before anything is queued: `fsdpkit check`.

Every check runs, whatever the others found, but for those of a Slurm that does not answer. A check
that could not read what it needs is `unknown`, never `ok`. torch is imported by the Python that the
job will activate, in a process of its own; nothing is left in the run directory.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from fsdpkit.config.site import choose_site
from fsdpkit.config.trust import forbidden, items_of, strangers
from fsdpkit.errors import FsdpkitError, SchedulerError
from fsdpkit.rendering.script import Plan
from fsdpkit.runs import file_system
from fsdpkit.runs.failures import SHELLS_MARK
from fsdpkit.runs.store import runs_dir
from fsdpkit.scheduling import submission
from fsdpkit.scheduling.allowance import delays, request_of
from fsdpkit.scheduling.environment import scrubbed
from fsdpkit.scheduling.live_cluster import AS_OF
from fsdpkit.scheduling.live_placement import chosen
from fsdpkit.scheduling.refusals import remedy_for
from fsdpkit.scheduling.slurm_answers import RefusedError, SlurmAnswers, answers_of

_IMPORT_S = 300.0
"""Conda and torch from a busy file system; longer than any rank would be waited for."""
_SLOW_FILE_S = 0.1
_SLOW_MB_S = 50.0
_LITTLE_GB = 20.0
_CLOCK_S = 5.0


Outcome = Literal["ok", "warning", "failed", "unknown"]


@dataclass(frozen=True)
class CheckResult:
    """One check: what was found, in words, and what to do about it."""

    check: str
    outcome: Outcome
    told: str
    remedy: str | None = None


class Observed(NamedTuple):
    """The same of a check that is named elsewhere."""

    outcome: Outcome
    told: str
    remedy: str | None = None


def login_checks(
    request: submission.SubmitRequest, runs: str | os.PathLike[str] | None = None
) -> Iterator[CheckResult]:
    """All checks for a submission like `request`, each as soon as it is done."""
    plan, told = _planned(request)
    yield CheckResult("site and job", *told)
    for warning in plan.placement.warnings if plan is not None else ():
        yield CheckResult("request", "warning", warning)
    slurm = plan is None or plan.site.profile.kind == "slurm"
    answers = answers_of(plan.site.profile.slurm_clusters if plan else None)
    answered = slurm
    if slurm:
        yield (found := _guarded("slurm", lambda: _check_slurm(answers)))
        answered = found.outcome != "failed"
    if slurm and not answered:
        for check in ("account", "partition", "script", "clock"):
            yield CheckResult(check, "unknown", "Slurm does not answer")
    else:
        submitted = plan if told.outcome != "failed" else None
        script = _guarded("script", lambda: _check_script(submitted, runs))
        if slurm:
            yield _guarded("account", lambda: _check_account(submitted, script, answers))
            yield _guarded("partition", lambda: _check_partition(plan, answers))
        yield script
    yield _guarded("environment", lambda: _check_environment(plan, runs))
    place = _existing(runs_dir(runs))
    yield _guarded("file system", lambda: _check_file_system(place, shared=slurm))
    yield _guarded("disk speed", lambda: _check_speed(place))
    yield _guarded("disk space", lambda: _check_space(place))
    if answered:
        yield _guarded("clock", lambda: _check_clock(answers))


def _guarded(name: str, check: Callable[[], Observed]) -> CheckResult:
    """The finding; what it could not ask or foresee is unknown, and ends no other check."""
    try:
        return CheckResult(name, *check())
    except SchedulerError as error:
        return CheckResult(name, "unknown", str(error).splitlines()[0])
    except Exception as error:
        return CheckResult(
            name, "unknown", f"could not be checked: {type(error).__name__}: {error}"
        )


def _refusal(error: FsdpkitError) -> Observed:
    """The error, the remedy that the Slurm client put under it in its own place."""
    told = str(error)
    remedy = remedy_for(told)
    if remedy and told.endswith(f"\n{remedy}"):
        return Observed("failed", told.removesuffix(f"\n{remedy}"), remedy)
    return Observed("failed", told)


def _planned(request: submission.SubmitRequest) -> tuple[Plan | None, Observed]:
    """What a submission would decide, and whether it could."""
    try:
        plan, why = submission.plan(request)
    except FsdpkitError as error:
        return _with_example_account(request), _refusal(error)
    told = f"{plan.site.profile.title} ({plan.site.id}, {why})"
    if plan.site.id == "generic":
        what = "limits and node types are not known"
        return plan, Observed(
            "warning", told, f"{what}; choose a profile with --cluster (fsdpkit sites)"
        )
    return plan, Observed("ok", told)


def _with_example_account(request: submission.SubmitRequest) -> Plan | None:
    """The plan but for the account, so that what does not hang on it can be checked, too."""
    with suppress(FsdpkitError):
        example = choose_site(request.cluster)[0].profile.account.example
        return submission.plan(replace(request, account=example))[0]
    return None


def _check_slurm(answers: SlurmAnswers) -> Observed:
    try:
        found = answers.config()
    except RefusedError as error:
        return Observed("ok", f"Slurm answers; {error}")
    except SchedulerError as error:
        remedy = "is this a login node? Without Slurm, use --cluster local"
        told, _, ours = str(error).partition("\n")
        return Observed("failed", told, ours or remedy)
    told = f"Slurm {found['SLURM_VERSION']} of cluster {found['ClusterName']} answers"
    return Observed("ok", told)


def _check_script(plan: Plan | None, runs: str | os.PathLike[str] | None) -> Observed:
    """The template renders, and Slurm would take the result."""
    if plan is None:
        return Observed("unknown", "there is no script without a site and a job that fit")
    try:
        return Observed("ok", submission.check(plan, runs))
    except FsdpkitError as error:
        return _refusal(error)


def _check_account(plan: Plan | None, script: CheckResult, answers: SlurmAnswers) -> Observed:
    """By the accounting's own list; where that cannot be read, by Slurm's word on the script."""
    if plan is None:
        return Observed("unknown", "not known which")
    account, taken = plan.job.spec.resources.account, script.outcome == "ok"
    shown = account or "your default account"
    if script.outcome == "failed" and re.search("account", script.told, re.IGNORECASE):
        return Observed("failed", f"{shown}: {script.told}", script.remedy)
    try:
        accounts, why = answers.accounts(), "sacctmgr lists none of yours"
    except SchedulerError as error:
        accounts, why = [], str(error).splitlines()[0]
    if not accounts:
        by_slurm = "Slurm takes the job" if taken else "Slurm did not take the script"
        return Observed("ok" if taken else "unknown", f"{shown}: {by_slurm} ({why})")
    yours = ", ".join(accounts)
    if account is None or account.lower() in accounts:
        return Observed("ok", f"{shown}, of {yours}")
    told, remedy = f"{account} is not among yours: {yours}", "choose one of them with --account"
    return Observed("warning" if taken else "failed", told, remedy)


def _check_partition(plan: Plan | None, answers: SlurmAnswers) -> Observed:
    if plan is None:
        return Observed("unknown", "not known which")
    name = plan.placement.select.get("partition")
    live = answers.live(accounting=False)
    partitions = chosen(live, name)
    if not partitions:
        shown = f"there is no partition {name}" if name else "there is no default partition"
        return Observed("failed", shown, "list them with sinfo -s; use --partition")
    shown = partitions[0].name
    if not any(one.up for one in partitions):
        remedy = "choose another with --partition, or ask the centre when it comes back"
        return Observed("failed", f"{shown} is {partitions[0].state}", remedy)
    counted = Counter(node.state for node in live.nodes_of(partitions[0]))
    counted["not listed"] = live.unknown_nodes(partitions[0])
    states = ", ".join(f"{number} {state}" for state, number in counted.items() if number)
    waits = delays(request_of(plan), live, partitions)
    if waits:
        remedy = "the job will wait; see why with sinfo -R"
        return Observed("warning", f"{'; '.join(waits)} ({states})", remedy)
    return Observed("ok", f"{shown} is up: {states or 'its nodes are not listed'}")


_SECTION = re.compile(r"^# ---- .*$", re.MULTILINE)


def activation_of(script: str) -> str | None:
    """The part of a script that activates the job's environment, with what stands before the first
    heading (`set`, functions); None if it has no section `Environment`."""
    headings = list(_SECTION.finditer(script))
    for heading, after in pairwise(headings):
        if heading[0].startswith("# ---- Environment "):
            return script[: headings[0].start()] + script[heading.start() : after.start()]
    return None


_IMPORTS_TORCH = """
exec python -c 'import sys; sys.path[:] = filter(None, sys.path)
import torch
gpu = torch.version.cuda or torch.version.hip
print("torch", torch.__version__, f"for CUDA or ROCm {gpu}" if gpu else "without GPU support",
      "by", sys.executable)'
"""


def _check_environment(plan: Plan | None, runs: str | os.PathLike[str] | None) -> Observed:
    """The script's own lines activate it here, so what fails is what would fail in the job."""
    if plan is None:
        return Observed("unknown", "not known which")
    if image := plan.job.spec.environment.container:
        there = os.path.exists(image)
        return Observed(
            "unknown" if there or "://" in image else "failed",
            f"container {image}: " + ("not started here" if there else "there is no such file"),
        )
    items = list(items_of(plan.job, plan.site, plan.template))
    if unknown := strangers(items) or [item for item, _ in filter(None, [forbidden(items)])]:
        told = f"{unknown[0].kind} {unknown[0].name} is not trusted: its lines are not run here"
        return Observed("unknown", told, "submit it once, which asks about it")
    activation = activation_of(submission.script_of(plan, runs))
    if activation is None:
        told = f"template {plan.template.manifest.name} has no section '# ---- Environment'"
        return Observed("unknown", told)
    started = time.monotonic()
    environ = scrubbed(os.environ)[0] | {"SLURM_CPUS_PER_TASK": "1", "FSDPKIT_RANKS_PER_NODE": "1"}
    try:
        done = subprocess.run(
            ["bash", "-p", "-s"],
            input=activation + _IMPORTS_TORCH,
            env=environ,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_IMPORT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        told = f"it did not import torch within {_IMPORT_S:.0f} s"
        return Observed("failed", told, "put it on a faster file system")
    if done.returncode != 0:
        lines = [s for s in done.stderr.splitlines() if s.strip() and not s.startswith(SHELLS_MARK)]
        lines = lines or [f"exit status {done.returncode}"]
        remedy = "see environment in the job, [environment] in the site profile"
        return Observed("failed", lines[-1].removeprefix("fsdpkit: "), remedy)
    seconds = time.monotonic() - started
    said = done.stdout.strip().splitlines()[-1]
    told = f"{said}, in {seconds:.0f} s"
    if "without GPU" in said and plan.placement.node_type.vendor in ("nvidia", "amd"):
        return Observed("failed", told, "install torch's build for the nodes' GPUs")
    return Observed("ok", told)


def _existing(path: Path) -> Path:
    """The directory itself, or the nearest one above that is there."""
    return next(each for each in (path, *path.parents) if each.is_dir())


def _check_file_system(place: Path, *, shared: bool) -> Observed:
    """Whether other nodes can see it: by its type, as nobody can ask them from here."""
    kind = file_system.type_of(place)
    if not shared:
        return Observed("ok", f"{place} is on {kind or 'a file system'}")
    if kind in file_system.NETWORK:
        return Observed("ok", f"{place} is on {kind}, which nodes share")
    remedy = "choose another with --runs or FSDPKIT_RUNS if the compute nodes do not see it"
    if kind in file_system.LOCAL:
        return Observed("warning", f"{place} is on {kind}, usually a disk of this node", remedy)
    told = f"{place} is on {kind or 'a file system that could not be read'}"
    return Observed("unknown", f"{told}; whether nodes share it is not known", remedy)


def _check_speed(place: Path) -> Observed:
    """Small files as checkpoints and records are written; one large file as a shard is."""
    try:
        with tempfile.TemporaryDirectory(prefix=".fsdpkit-check-", dir=place) as made:
            small_s = file_system.small_file_s(Path(made))
            mb_s = file_system.large_file_mb_s(Path(made))
    except OSError as error:
        told = f"{place} cannot be written: {error.strerror}"
        return Observed("failed", told, "choose another with --runs or FSDPKIT_RUNS")
    told = f"a small file is safe in {small_s * 1e3:.3g} ms, {mb_s:.0f} MB/s for a large one"
    if small_s > _SLOW_FILE_S or mb_s < _SLOW_MB_S:
        return Observed("warning", told, "checkpoints will take long; is there a scratch system?")
    return Observed("ok", told)


def _check_space(place: Path) -> Observed:
    import shutil

    free_gb = shutil.disk_usage(place).free / 2**30
    told = f"{free_gb:,.0f} GB free (a quota may allow less)"
    if free_gb < 1:
        return Observed("failed", told, "remove old runs, or choose another --runs")
    if free_gb < _LITTLE_GB:
        return Observed("warning", told, "a checkpoint holds 12 bytes a parameter")
    return Observed("ok", told)


def _check_clock(answers: SlurmAnswers) -> Observed:
    """This node's clock against slurmctld's, which stands over its configuration."""
    told_s = None
    with suppress(ValueError):
        told_s = time.mktime(time.strptime(answers.config().get(AS_OF, ""), "%Y-%m-%dT%H:%M:%S"))
    if told_s is None:
        return Observed("unknown", "slurmctld's time could not be read")
    before_s, after_s = answers.asked_s["config"]
    # It tells whole seconds, cut off.
    offset_s = max(before_s - told_s - 1, 0.0) + min(after_s - told_s, 0.0)
    if abs(offset_s) > _CLOCK_S:
        remedy = "tell the centre: at five minutes Slurm refuses what comes from this node"
        return Observed("warning", f"{offset_s:+.0f} s off slurmctld's", remedy)
    return Observed("ok", "agrees with slurmctld's to the second")


def worst(findings: Sequence[CheckResult]) -> int:
    """The exit status: 78 if a check failed, else 0."""
    return 78 if any(finding.outcome == "failed" for finding in findings) else 0
