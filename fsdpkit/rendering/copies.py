"""`[stage]` of a job as words for the program that copies on a node, fsdpkit.staging.node."""

from __future__ import annotations

from pathlib import Path

from fsdpkit.config.job import JobSpec
from fsdpkit.config.profile import SiteProfile
from fsdpkit.errors import UsageError


def copied(spec: JobSpec, profile: SiteProfile, work_dir: Path, run_dir: Path) -> list[str]:
    """Empty if nothing is. Raises UsageError for data in the run's own directory."""
    stage, storage = spec.staged, profile.storage
    if not stage.is_asked:
        return []
    words = [f"--local={storage.local}", f"--share={stage.share}"]
    if storage.local_kept_h:
        words.append(f"--kept-h={storage.local_kept_h:g}")
    if stage.environment:
        words.append(f"--environment={run_dir}/environment.pack")
    for item in stage.items(work_dir):
        if Path(item.pattern).is_relative_to(run_dir):
            raise UsageError(
                f"stage.data: {item.pattern} is in the run's own directory, to which it writes"
            )
        words.append(f"--data={item.name}={item.pattern}")
    words += [f"--back={path}" for path in stage.back]
    return words
