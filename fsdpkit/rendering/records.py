"""What a run's owner is told of the record that it leaves (runs/shared_record.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsdpkit.config.job_loading import LoadedJob
    from fsdpkit.config.site import LoadedSite

_SAID = (
    "id, size, times, partition, {account}versions, what was used of GPUs, processors, memory and "
    "energy, how each attempt ended, nodes that failed"
)


def record_notes(job: LoadedJob, site: LoadedSite) -> list[str]:
    """A sentence for each place that gets one: who reads it, what it says, how to have none."""
    audit, notes = site.profile.audit, []
    if (why := job.shared_by(site.profile)) is not None:
        readers = audit.readers or "the centre"
        said = _SAID.format(account="account, " if audit.projects else "")
        less = "; audit.share = false keeps it back" if why.startswith("site") else ""
        notes.append(f"audit: {readers} can read a record of the run ({why}): {said}{less}")
    if job.record_folder is not None:
        said = _SAID.format(account="account, ")
        notes.append(
            f"audit: whoever can read {job.record_folder} can read a record of the run "
            f"(job: audit.folder): {said}"
        )
    return notes
