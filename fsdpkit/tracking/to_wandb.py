"""A training in Weights & Biases: one run, whose id follows from the training's own.

W&B counts what is logged to a run, and takes nothing for a count that it has passed. That count is
the number of the line in metrics.jsonl, so that a line can be sent again and still stands there
once; the curves are drawn over the training's own steps all the same. Offline W&B cannot say what
it has: then track.json says how far was written.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fsdpkit.errors import TrackerError
from fsdpkit.tracking.trackers import Sending, SentLines, TrackerMark, refused

_INIT_S = 30.0
_QUIET = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "WANDB_CONSOLE": "off"}
_FAILED = 1
_PROJECT = re.compile(r"[/\\#?%:\s]+")
"""What W&B does not take in a project's name."""


def send_to_wandb(sending: Sending, before: TrackerMark | None) -> SentLines:
    """Raises TrackerError with W&B's own words."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    offline, entity = sending.offline, sending.destination.entity
    project = _PROJECT.sub("-", sending.project)[:128]
    where = f"{'offline' if offline else 'online'} {entity or ''}/{project}"
    written = before.lines if before and before.where == where else 0
    kept = sending.files.dir / "wandb"
    if offline and before is not None and written >= sending.end:
        return SentLines(before, 0, str(kept))
    if offline:
        _make_directory(kept)
    try:
        with _in_an_empty_directory() as empty:
            directory = kept.parent if offline else empty
            run_id, new = _send(sending, project, directory, written if offline else None)
    except Exception as error:  # its own kinds, and those of what it is built on
        raise refused(_who(), error, _what_to_do(error)) from error
    place = str(kept) if offline else f"{where.split()[1]}, run {run_id}"
    return SentLines(TrackerMark(id=run_id, where=where, lines=sending.end), new, place)


@contextlib.contextmanager
def _in_an_empty_directory() -> Iterator[Path]:
    """W&B reads which server to send its key to from `wandb/settings` of the directory that it
    works in, which may be another's."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="fsdpkit-wandb-", ignore_cleanup_errors=True) as place:
        os.chdir(place)
        try:
            yield Path(place)
        finally:
            os.chdir(before)


def _send(sending: Sending, project: str, directory: Path, written: int | None) -> tuple[str, int]:
    """The run's id there, and how many lines were new. written: sent before; None: W&B says it."""
    import wandb

    run = wandb.init(
        project=project,
        entity=sending.destination.entity,
        id=sending.stable_id,
        name=sending.name,
        config={key: text for key, text in sending.settings.items() if text},
        notes="\n".join(f"{key}: {text}" for key, text in sending.tags.items()),
        dir=str(directory),
        mode="offline" if sending.offline else "online",
        resume="allow",
        settings=wandb.Settings(
            silent=True,
            console="off",
            init_timeout=_INIT_S,
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
            x_disable_meta=True,
        ),
    )
    first = run.step if written is None else written
    new = [line for line in sending.lines if line.index >= first]
    run.define_metric("step", hidden=True)
    run.define_metric("*", step_metric="step")
    for line in new:
        point = {**line.values, "step": line.step, "_timestamp": line.time_s}
        run.log(point, step=line.index)
    run.finish(exit_code=_FAILED if sending.outcome == "failed" else 0)
    return str(run.id), len(new)


def _make_directory(kept: Path) -> None:
    """W&B would make it by the umask; a run's files are no more open than the run."""
    from fsdpkit.runs.layout import make_directory

    try:
        make_directory(kept)
    except OSError as error:
        raise TrackerError(f"W&B: {error.filename}: {error.strerror}") from error


def _who() -> str:
    server = os.environ.get("WANDB_BASE_URL", "")
    return f"W&B ({server})" if server else "W&B"


def _what_to_do(error: Exception) -> str:
    text = str(error)
    if "api_key" in text or "API key" in text or "401" in text:
        return "wandb login stores your key; with --offline, wandb sync sends it later"
    return "try again, or from a machine that reaches it; with --offline, wandb sync sends it later"
