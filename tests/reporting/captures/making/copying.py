"""From a run to a capture: what is kept of it, how much, and without this machine's paths."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from fsdpkit.scheduling.slurm import SACCT_FORMAT, SQUEUE_FORMAT
from tests.faults.trial import Trial
from tests.slurm_cluster import SlurmCluster
from tests.slurm_cluster.machines import poll

from .stage import PROGRAMS, Scenario, Stage

ROOT = Path(__file__).resolve().parents[4]
CAPTURES = Path(__file__).resolve().parents[1]
KEPT = (
    *("run.json", "job.json", "job.*.json", "slurm-*.log"),
    *("submitit/*_log.out", "submitit/*_log.err", "metrics.jsonl", "stop-requested"),
    *("attempt-*/*", "attempt-*/failures/*"),
)
"""Not the script: the template makes it again, and it would be a third of all captures."""
MOST_BYTES = 20_000


def capture(stage: Stage, made: Scenario, trial: Trial, into: Path) -> Path:
    """Copy the run and what Slurm says of it into the capture's directory."""
    target = into / made.name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    scrubs = _scrubs(stage, trial)
    said = slurm_said(stage.cluster, trial.job_id)
    for file in _kept(trial.dir):
        copy = target / file.relative_to(trial.dir)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_scrubbed(_end_of(file), scrubs), encoding="utf-8")
    _write_texts(target / "scheduler", said, scrubs)
    _write_texts(target / "scheduler" / "before", stage.before, scrubs)
    command = " ".join(json.loads((target / "run.json").read_text())["command"][1:])
    (target / "capture.toml").write_text(_description(made, f"fsdpkit {command}"))
    return target


def slurm_said(cluster: SlurmCluster, job_id: str) -> dict[str, str]:
    """File name and text of what Slurm's commands answer about a job, as fsdpkit asks them.

    An answer that is refused is what the command printed as its error.
    """
    sacct = ["sacct", "-n", "-P", "-j", job_id, "-o"]
    questions = {
        "squeue.txt": ["squeue", "-h", "-r", "-o", SQUEUE_FORMAT, "-t", "all", "-j", job_id],
        "sacct.txt": [*sacct, SACCT_FORMAT, "-X"],
        "sacct-steps.txt": [*sacct, SACCT_FORMAT],
        "scontrol.txt": ["scontrol", "show", "job", "-o", job_id],
        "nodes.txt": ["sinfo", "-h", "-N", "-o", "%N|%T|%E"],
    }
    seconds = {**cluster.env(), "SLURM_TIME_FORMAT": "%s"}
    answers = {name: cluster.run(argv, env=seconds) for name, argv in questions.items()}
    return {name: done.stdout or done.stderr for name, done in answers.items()}


def finish(stage: Stage, trial: Trial) -> None:
    """Until the run is over, all its processes are gone, and the accounting knows of the end."""
    trial.wait_end()
    trial.wait_gone()

    def ended() -> bool:
        state = slurm_said(stage.cluster, trial.job_id)["sacct.txt"]
        return bool(state) and "RUNNING" not in state and "PENDING" not in state

    poll(ended, 30, f"job {trial.job_id} in the accounting")


def _kept(run: Path) -> list[Path]:
    found = {path for pattern in KEPT for path in run.glob(pattern) if path.is_file()}
    return sorted(path for path in found if not path.name.startswith("."))


def _end_of(file: Path) -> str:
    """The last whole lines; JSON files whole, for half of one tells nothing."""
    content = file.read_bytes()
    if len(content) > MOST_BYTES and file.suffix != ".json":
        content = content[-MOST_BYTES:].partition(b"\n")[2]
    return content.decode("utf-8", errors="replace")


def _scrubs(stage: Stage, trial: Trial) -> list[tuple[str, str]]:
    """What of this machine's paths stands for what; the longer ones first."""
    found = {
        str(PROGRAMS): "/home/ada/t5",
        str(ROOT): "/home/ada/t5",
        str(trial.dir.parent): "/scratch/ada/runs",
        str(trial.directory): "/home/ada/work",
        str(stage.directory): "/home/ada",
        str(stage.cluster.root): "/etc/slurm/cluster",
        stage.cluster.network.state.short_path: "/etc/slurm/cluster",
        str(Path(sys.prefix)): "/opt/venv",
        "/root": "/home/ada",
    }
    return sorted(found.items(), key=lambda pair: -len(pair[0]))


def _scrubbed(text: str, scrubs: Iterable[tuple[str, str]]) -> str:
    for here, shown in scrubs:
        text = re.sub(re.escape(here) + r"(?![\w-])", shown, text)
    return text


def _write_texts(place: Path, texts: Mapping[str, str], scrubs: Iterable[tuple[str, str]]) -> None:
    for name, text in texts.items():
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(_scrubbed(text, scrubs), encoding="utf-8")


def _description(made: Scenario, command: str) -> str:
    """capture.toml. A key that is missing: there is none (no rank, no node) to name."""
    fields: dict[str, object] = {
        "cause": made.cause,
        "rank": made.rank,
        "node": made.node,
        "undecided": list(made.undecided) or None,
        "how": "log" if made.source else "produced",
        "source": made.source,
        "done": " ".join((made.make.__doc__ or "").split()),
        "command": command,
    }
    lines = (f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in fields.items())
    shown = (line for line, value in zip(lines, fields.values(), strict=True) if value is not None)
    return "\n".join(shown) + "\n"
