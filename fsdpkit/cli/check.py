"""`fsdpkit check`: the login node, or with `--nodes` the nodes themselves, as a short job."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import (
    GroupedCommand,
    as_typed,
    going_on,
    hanging,
    runs_option,
    say_what_is_not_read,
    table,
    wanted,
)
from fsdpkit.cli.submitting import failure_lines, print_script, rendered
from fsdpkit.cli.trusting import consent, trust_option
from fsdpkit.errors import BrokenNodeError, NodeError, NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

    from fsdpkit.rendering.script import Plan
    from fsdpkit.runs.node_report import NodeReport, NodeVerdict, ReportedNode
    from fsdpkit.scheduling.checks import CheckResult
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.submission import SubmitRequest

JOB = "check"
FAILED = 78
_AVOID_S = 7 * 86400


@answer("fsdpkit.check/1")
def _checked(ok: bool, checks: Sequence[CheckResult]) -> None:
    """`check` of the login node."""


@answer("fsdpkit.check-nodes/1")
def _measured(
    run: str,
    dir: Path,
    nodes: Sequence[NodeVerdict],
    remarks: Sequence[str],
    measured: NodeReport | None,
) -> None:
    """`check --nodes`: what a job measured on the nodes."""


@click.command("check", cls=GroupedCommand)
@wanted(
    *("nodes", "gpus", "time", "cluster", "partition", "account"),
    nodes="Measure this many nodes, in a job.",
    gpus="GPUs (ranks) per node; runs a job.",
    time="Time limit of the job.",
)
@wanted("sets", sets="Any key of the job.")
@click.option(
    "--avoid", is_flag=True, help="Let later jobs avoid slow and broken nodes for a week."
)
@click.option("--dry-run", is_flag=True, help="Print only the job's script; submit nothing.")
@runs_option
@trust_option
@json_option(_checked, _measured, rendered)
def command(
    avoid: bool,
    dry_run: bool,
    runs: str | None,
    trust: tuple[str, ...],
    as_json: bool,
    **asked: Any,
) -> int:
    """Check this login node, or measure nodes with a short job.

    \b
      fsdpkit check --account PAS2136
      fsdpkit check --nodes 2 --gpus 4
      fsdpkit check --nodes 12 --gpus 4 --avoid

    Exit status 0, or 78 if a check failed or a node is broken.
    """
    from fsdpkit.scheduling import submission

    say_what_is_not_read()
    request = submission.SubmitRequest(JOB, runs=runs, **asked)
    if request.nodes is None and request.gpus is None:
        if avoid or dry_run:
            raise click.UsageError("--avoid and --dry-run are for nodes to measure: add --nodes.")
        return _check_login(request, runs, as_json)
    agreed = consent(trust, submits=not dry_run)
    plan, _ = submission.plan(request, agreed)
    if dry_run:
        print_script(submission.script_of(plan, runs), plan, as_json)
        return 0
    return _check_nodes(submission.submit_plan(plan, runs, agreed), plan, avoid, as_json)


def _check_login(request: SubmitRequest, runs: str | None, as_json: bool) -> int:
    from fsdpkit.scheduling.checks import login_checks, worst

    findings = []
    for finding in login_checks(request, runs):
        findings.append(finding)
        if not as_json:
            _print(finding)
    status = worst(findings)
    if as_json:
        _checked(status == 0, findings)
    return status


def _print(finding: CheckResult) -> None:
    lines = hanging(finding.told, f"{finding.outcome:<8} {finding.check:<14} ", " " * 24)
    if finding.remedy:
        lines += hanging(finding.remedy, " " * 24 + "→ ", " " * 26)
    click.echo("\n".join(lines))


def _check_nodes(run: Run, plan: Plan, avoid: bool, as_json: bool) -> int:
    from fsdpkit.runs import node_report

    state = _wait(run, plan)
    refused = _failed_before(run)
    try:
        report = node_report.load(run.newest_attempt().dir)
    except NotFoundError:
        click.echo(f"fsdpkit: {run.id}: {state}, nothing was measured", err=True)
        for line in failure_lines(run):
            click.echo(f"fsdpkit: {line}", err=True)
        _tell(run, None, refused, [], avoid, as_json)
        return FAILED
    expected_gb_s = plan.site.profile.network.all_reduce_gb_s
    verdicts = [*refused, *node_report.judge(report, expected_gb_s)]
    remarks = node_report.remarks(report, expected_gb_s)
    _tell(run, report, verdicts, remarks, avoid, as_json)
    return FAILED if any(v.state == "broken" for v in verdicts) else 0


def _wait(run: Run, plan: Plan) -> str:
    """The job's end, in words."""
    from fsdpkit.cli.telling import tell_until_over
    from fsdpkit.reporting.status.job_words import shape

    asked = plan.job.spec.resources
    what = shape(asked.nodes, asked.gpus)
    click.echo(f"fsdpkit: job {run.job_id} measures {what}, in {run.dir}", err=True)
    with going_on(as_typed(run.dir)):
        tell_until_over(run)
        return run.wait().describe()


def _failed_before(run: Run) -> list[NodeVerdict]:
    """Nodes that refused to start, by their status in the attempt's failures. The others were
    ended because of them, which says nothing of those."""
    from fsdpkit.runs.history import failures_in
    from fsdpkit.runs.node_report import NodeVerdict

    try:
        failures = failures_in(run.newest_attempt())
    except NotFoundError:
        return []
    refused = {NodeError.exit_code, BrokenNodeError.exit_code}
    found: dict[str, NodeVerdict] = {}
    for told in (failure.record for failure in failures):
        if told is not None and told.rank is None and told.status in refused:
            why = told.words.partition("\n")[0]
            found.setdefault(told.name, NodeVerdict(told.name, "broken", (why,)))
    return list(found.values())


def _tell(
    run: Run,
    report: NodeReport | None,
    verdicts: Sequence[NodeVerdict],
    remarks: Sequence[str],
    avoid: bool,
    as_json: bool,
) -> None:
    """The table, the reasons, the remedy; or all of it as JSON."""
    bad = [verdict for verdict in verdicts if verdict.state != "ok"]
    if avoid:
        _avoid(run, bad)
    if as_json:
        _measured(run.id, run.dir, verdicts, remarks, report)
        return
    if report is not None:
        states = {verdict.node: verdict.state for verdict in verdicts}
        table(COLUMNS, [_row(report, node, states[node.name]) for node in report.nodes])
        if report.all_nodes_gb_s is not None:
            click.echo(f"all nodes together: {report.all_nodes_gb_s:.3g} GB/s")
    for verdict in verdicts:
        for text in verdict.reasons:
            click.echo(f"{verdict.node} is {verdict.state}: {text}")
        for text in verdict.notes:
            click.echo(f"{verdict.node}: {text}")
    for text in remarks:
        click.echo(text)
    if bad:
        names = ",".join(verdict.node for verdict in bad)
        click.echo(
            f"leave {'it' if len(bad) == 1 else 'them'} out: --set resources.exclude={names}"
        )


COLUMNS = [
    *("NODE", "GPUS", "GPU MEMORY", "CLOCK", "TFLOP/s", "GB/s INSIDE", "GB/s BETWEEN"),
    *("CPUS", "MEMORY FREE", "TIME OFF", "VERDICT"),
]


def _row(report: NodeReport, node: ReportedNode, state: str) -> list[str]:
    names = {gpu.name for gpu in node.gpus if gpu.name}
    smallest_mib = min((g.memory_total_mib for g in node.gpus if g.memory_total_mib), default=None)
    clock_mhz = min((c for c in node.loaded_clock_mhz if c), default=None)
    return [
        node.name,
        f"{len(node.gpus)} x {', '.join(sorted(names)) or '?'}" if node.gpus else "-",
        f"{smallest_mib / 1024:.0f} GB" if smallest_mib else "-",
        f"{clock_mhz} MHz" if clock_mhz else "-",
        _figure(node.slowest_tflop_s),
        _figure(node.in_node_gb_s),
        _figure(report.between_nodes_gb_s(node.name)),
        str(node.cpus),
        f"{node.memory_available_gb:.0f} of {node.memory_total_gb:.0f} GB",
        f"{node.clock_offset_s * 1e3:+.1f} ms",
        state,
    ]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _avoid(run: Run, bad: Iterable[NodeVerdict]) -> None:
    """On record for a week, in the directory of runs: where nodes are repaired, they come back."""
    from fsdpkit.runs.avoided_nodes import avoid

    for verdict in bad:
        why = f"{verdict.state} in fsdpkit check: {'; '.join(verdict.reasons)}"
        until_s = time.time() + _AVOID_S
        avoid(run.dir.parent, verdict.node, why=why, run_id=run.id, until_s=until_s)
        click.echo(f"fsdpkit: later jobs avoid {verdict.node} for a week", err=True)
