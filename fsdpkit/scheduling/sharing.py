"""A run that its owner shares is made known to the centre, which can then count it."""

from __future__ import annotations

import os
from pathlib import Path

import fsdpkit
from fsdpkit.config import assets
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import now_s
from fsdpkit.runs.shared_record import FOLDER, SharedRecord, Used, share


def tell_centre(plan: Plan, paths: RunPaths) -> None:
    """Nothing unless the job is shared and a centre has the folder for it."""
    if not plan.job.is_shared:
        return
    folders = [layer.dir / FOLDER for layer in assets.centre_layers()]
    if found := [folder for folder in folders if os.path.isdir(folder)]:
        share(paths, _record(plan, paths.dir), found)


def _record(plan: Plan, directory: Path) -> SharedRecord:
    resources, manifest = plan.job.spec.resources, plan.template.manifest
    site = next(reversed(plan.site.layered.releases), None)
    template = plan.template.release
    return SharedRecord(
        run=directory.name,
        submitted_s=now_s(),
        nodes=resources.nodes,
        ranks_per_node=plan.job.spec.ranks_per_node,
        fsdpkit=fsdpkit.__version__,
        used=[
            Used(
                kind="template",
                name=manifest.name,
                version=manifest.version,
                sha256=template.sha256 if template else None,
            ),
            Used(
                kind="site",
                name=plan.site.id,
                version=site.version if site else None,
                sha256=site.sha256 if site else None,
            ),
        ],
    )
