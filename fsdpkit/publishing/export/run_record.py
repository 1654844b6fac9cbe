"""The record of a run that a portal submitted: job.json and run.json, as `submit` writes them.

Nobody of fsdpkit's is there when a portal submits, so the script writes both on the first node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

import fsdpkit
from fsdpkit.config.assets import hold_script
from fsdpkit.publishing.export import checks
from fsdpkit.publishing.export.fields import SCRIPT, Field
from fsdpkit.rendering.script import Plan


def record_lines(plan: Plan, fields: Sequence[Field]) -> str:
    """Bash that makes the run directory and writes both."""
    spec = plan.job.spec
    job: dict[str, Any] = msgspec.to_builtins(spec)
    words = checks.Expanded("[$words]")
    gpus = next((f for f in fields if f.key == "gpus"), None)
    script = next(f for f in fields if f.key == "script")
    ranks = checks.number_of(gpus.variable) if gpus else plan.job.spec.resources.gpus
    job |= {"entry": checks.text_of(SCRIPT.variable), "args": words}
    job["template"] = plan.template.manifest.name
    if environment := next((f for f in fields if f.key == "environment"), None):
        job["environment"][plan.python.kind] = checks.text_of(environment.variable)
    job["resources"] = {
        **{k: v for k, v in job["resources"].items() if k != "account"},
        "nodes": checks.number_of(checks.NODES),
        "gpus": ranks,
        "time": checks.text_of(checks.TIME),
        "partition": None if gpus else spec.resources.partition,
    }
    for field in fields:
        if field.key.startswith("p_"):
            number = field.kind in ("int", "float") or not isinstance(field.default, str)
            make = checks.number_of if number else checks.text_of
            make = checks.quoted_text_of if checks.is_free_text(field) else make
            job["parameters"][field.key[2:]] = make(field.variable)
    record = {
        "schema": "fsdpkit.run/1",
        "id": checks.text_of(checks.RUN_ID),
        "state": "submitted",
        "created_s": checks.Expanded("$(printf '%(%s)T' -1)"),
        "name": spec.name,
        "site": plan.site.id,
        "kind": "slurm",
        "cluster": plan.site.profile.slurm_clusters,
        "job_id": checks.text_of("SLURM_JOB_ID"),
        "slurm_cluster": checks.Expanded("$cluster"),
        "slurm_submit_s": checks.Expanded("$taken_s"),
        "nodes": checks.number_of(checks.NODES),
        "ranks_per_node": spec.launch.ranks_per_node or ranks,
        "work_dir": checks.text_of("PWD"),
        "version": fsdpkit.__version__,
        "template": f"{plan.template.manifest.name} {plan.template.manifest.version}",
        "digests": {**plan.digests, "job": checks.Expanded(f'"${{{checks.SHA256}%% *}}"')},
    }
    if spec.entry == str(hold_script()):
        record["holds"] = True
    return checks.file_lines(
        script,
        job,
        record,
        time=spec.resources.time,
        settings=spec.training is not msgspec.UNSET,
        container=spec.environment.container is not None,
    )
