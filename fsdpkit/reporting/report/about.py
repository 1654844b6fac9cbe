"""The text of a report: where the run ran, the ends of its logs, its settings and versions.

Settings are compared with fsdpkit's own defaults. Reports are passed around, so values of
environment variables and arguments that look like secrets are left out.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fsdpkit.bounded import read_end
from fsdpkit.config.job import Resources
from fsdpkit.config.loading import dotted
from fsdpkit.config.trainers import OWN, job_type, trainer_of
from fsdpkit.errors import FsdpkitError
from fsdpkit.listing import counted, node_list
from fsdpkit.reporting.logs.lines import last_written, split_lines, text
from fsdpkit.reporting.printable import printable
from fsdpkit.reporting.staged import stage_of
from fsdpkit.reporting.status.job_words import without_a_group
from fsdpkit.reporting.status.printed import STREAMS
from fsdpkit.reporting.training import Training
from fsdpkit.reporting.words import moment
from fsdpkit.runs.checkpoints import describe
from fsdpkit.runs.provenance import Provenance, read_provenance
from fsdpkit.runs.reading import read_text
from fsdpkit.runs.saved_steps import began_again
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.run_states import States

if TYPE_CHECKING:
    from fsdpkit.reporting.diagnosis.diagnose import Diagnosis

HIDDEN = "(not shown)"
_SECRET = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)
_PASSWORD = re.compile(r"//[^/\s@]+@")
"""Of a URL: `//user:password@host`."""
_ASSIGNED = re.compile(r"(?P<name>(?:--)?[\w.-]+)=(?P<value>.*)", re.DOTALL)
_DIRECTIVE = re.compile(r"#SBATCH --partition=(\S+)")
_IN_TEXT = re.compile(
    r"(?P<name>\b[\w-]*(?:(?:api|access)[_-]?key|secret|token|passw(?:or)?d|credentials?)"
    r"[\"']?\s*[=:]\s*[\"']?|\bbearer\s+)(?!\d+\b|[<\[])[^\s\"',;)@]{8,}"
    r"|\b(?:hf_|sk-|gh[pousr]_|glpat-)[\w-]{16,}",
    re.IGNORECASE,
)
"""What a program that prints its settings, or a request, may print with them."""
_LOG_BYTES, _LOG_LINES, _LINE = 1 << 16, 25, 400
"""Of each log that is quoted; characters of a line."""


def arguments(job: Mapping[str, Any], array_task: int | None) -> str:
    """What the script was called with, of an array one task's, without what looks like a secret."""
    words = job.get("args")
    if not isinstance(words, list):
        return ""
    if array_task is not None and isinstance(own := job.get("array_args"), dict):
        further = own.get(str(array_task))
        words = [*words, *further] if isinstance(further, list) else words
    number = "" if array_task is None else str(array_task)
    return command([str(word).replace("{array_task}", number) for word in words])


def facts(
    run: Run,
    one: Training | None,
    job: Mapping[str, Any],
    states: States,
) -> list[tuple[str, str]]:
    """What ran, where, since when: (name, words)."""
    record = run.record
    spare = _resource(job, "spare")
    shape = f"{counted(record.nodes, 'node')} × {counted(record.ranks_per_node, 'rank')}"
    found = [
        ("Job", str(job.get("description") or record.name)),
        ("Script", str(job.get("entry") or "")),
        ("Cluster", record.cluster or record.site),
        ("Partition", _partition(run, job)),
        ("Account", _resource(job, "account")),
        ("Shape", shape + (f", {spare} spare" if spare else "")),
        ("Nodes", _nodes(one, states)),
        ("Scheduler's jobs", ", ".join(job.job_id for job in record.jobs if job.job_id)),
        ("Submitted", moment(record.created_s)),
    ]
    if one is not None and one.task is not None:
        found.append(("Arguments", arguments(job, one.task)))
    if one is not None and one.history.attempts:
        newest = one.history.attempts[-1]
        ended = f"; the newest: {newest.ending.why}" if newest.ending else ""
        found.append(("Attempts", f"{len(one.history.attempts)}{ended}"))
        running = one.state is not None and one.state.phase == "running"
        stage = stage_of(one.history, record.nodes, running=running)
        found.append(("Copied to nodes", stage.outcome if stage is not None else ""))
        found.append(("Started again", began_again(one.history, job) or ""))
        found.append(("Process group", without_a_group(one.history) or ""))
    return [(name, words) for name, words in found if words]


def _partition(run: Run, job: Mapping[str, Any]) -> str:
    with contextlib.suppress(OSError):
        if match := _DIRECTIVE.search(read_text(run.paths.script)):
            return match[1]
    return _resource(job, "partition")


def _resource(job: Mapping[str, Any], key: str) -> str:
    resources = job.get("resources")
    return str(resources.get(key) or "") if isinstance(resources, dict) else ""


def _nodes(one: Training | None, states: States) -> str:
    if one is not None:
        names = [n for a in one.history.attempts for launch in a.launches for n in launch.nodes]
        names += [node.name for a in one.history.attempts for node in a.nodes if node.name]
        if names:
            return node_list(names, ", ")
    told = [state.node_list for state in states.values() if state and state.node_list]
    return ", ".join(dict.fromkeys(told))


@dataclass(frozen=True)
class SettingRow:
    key: str
    value: str
    default: str
    origin: str = ""
    """Where it was set, if that is on record."""


@dataclass(frozen=True)
class Settings:
    changed: tuple[SettingRow, ...]
    as_default: tuple[SettingRow, ...]


def settings(job: Mapping[str, Any], made_from: Provenance | None = None) -> Settings:
    """job.json, key by key: what differs from fsdpkit's own defaults, and the rest."""
    defaults = _defaults()
    origins = {one.key: one.origin for one in made_from.settings} if made_from else {}
    changed, same = [], []
    for key, value in dotted(job):
        if key in ("schema", "description") or value == {}:
            continue
        shown = HIDDEN if _of_a_secret(key) else _shown(value)
        if key == "args" and isinstance(value, list):
            shown = command([str(word) for word in value])
        default = _shown(defaults[key]) if key in defaults else ""
        if key in defaults and defaults[key] == value:
            same.append(SettingRow(key, shown, default))
        else:
            changed.append(SettingRow(key, shown, default, origins.get(key, "")))
    return Settings(tuple(changed), tuple(same))


def _of_a_secret(key: str) -> bool:
    variable = key.partition("environment.variables.")[2]  # of all tasks, or of a single one
    return bool(variable and _SECRET.search(variable))


def all_settings(job: Mapping[str, Any], array_task: int | None) -> dict[str, str]:
    """Every key of the job as a report shows it; of an array with that task's arguments."""
    shown = settings(job)
    found = {one.key: one.value for one in (*shown.changed, *shown.as_default)}
    own = {} if array_task is None else {"args": arguments(job, array_task)}
    return found | own


_REQUIRED = ("name", "entry", "resources.nodes", "resources.gpus", "resources.time")


def _defaults() -> dict[str, Any]:
    """Of all keys of a job that have one."""
    bare = job_type()(
        schema="fsdpkit.job/1",
        name="job",
        entry="script.py",
        resources=Resources(nodes=1, gpus=1, time="1"),
        training=trainer_of(OWN).Settings(),
    )
    flat = dotted(json.loads(msgspec.json.encode(bare)))  # lists, as job.json has them
    return {key: value for key, value in flat if key not in _REQUIRED}


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _PASSWORD.sub(f"//{HIDDEN}@", text)


def command(words: Sequence[str]) -> str:
    """A command line for a person, without what looks like a secret."""
    return " ".join(shown for shown, _ in _without_secrets(words))


def _without_secrets(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each word as it is shown, and what that hides."""
    hide_next = False
    for word in words:
        assigned = _ASSIGNED.fullmatch(word)
        name = assigned["name"] if assigned else word
        # `--set environment.variables={HF_TOKEN = "…"}` has the name in the value.
        told = word if name.startswith("environment.") else name.rpartition(".")[2]
        suspect = bool(_SECRET.search(told)) and not name.startswith("training.")
        if hide_next:
            yield HIDDEN, word
        elif assigned and suspect:
            yield f"{name}={HIDDEN}", assigned["value"]
        else:
            yield shlex.quote(_shown(word)), ""
        hide_next = not hide_next and suspect and not assigned and word.startswith("--")


def hiding(job: Mapping[str, Any]) -> Callable[[str], str]:
    """What takes out of a text the values that the job's settings hide, and what looks so."""
    known = {str(value) for key, value in dotted(job) if _of_a_secret(key)}
    words = job.get("args")
    if isinstance(words, list):
        known |= {hidden for _, hidden in _without_secrets([str(word) for word in words])}
    longest_first = sorted((one for one in known if len(one) > 3), key=len, reverse=True)

    def hide(text: str) -> str:
        for one in longest_first:
            text = text.replace(one, HIDDEN)
        text = _PASSWORD.sub(f"//{HIDDEN}@", text)
        return _IN_TEXT.sub(lambda found: f"{found['name'] or ''}{HIDDEN}", text)

    return hide


def log_ends(one: Training, found: Diagnosis | None) -> list[tuple[str, str]]:
    """(what, lines): the last that the rank wrote which failed, or the first; what went wrong
    first. Of a job whose ranks wrote nothing, the batch shell's."""
    attempts = one.history.attempts
    number = found.attempt if found is not None else None
    attempt = next((a for a in attempts if a.number == number), attempts[-1] if attempts else None)
    if attempt is None:
        return []
    rank = (found.rank if found is not None else None) or 0
    launch = attempt.launches[-1].number if attempt.launches else 0
    streams = STREAMS[::-1] if found is not None else STREAMS[:1]
    files = [attempt.paths.rank_file(rank, stream, launch) for stream in streams]
    ends = [(file, end) for file in files if (end := _end_of(file))]
    batch = one.run.dir / f"slurm-{attempt.job_id}.log"
    if not ends and (end := _end_of(batch)):
        ends = [(batch, end)]
    return [(_what(file, end, one.run.dir), "\n".join(end)) for file, end in ends]


def _what(file: Path, lines: Sequence[str], directory: Path) -> str:
    what = "Traceback" if any(_TRACEBACK in line for line in lines) else "What it printed"
    return f"{what}: the last {counted(lines, 'line')} of {file.relative_to(directory)}"


_TRACEBACK = "Traceback (most recent call last)"


def _end_of(file: Path) -> list[str]:
    with contextlib.suppress(OSError):
        lines, rest = split_lines(read_end(file, _LOG_BYTES))
        whole = [line for one in (*lines, rest) for line in last_written(text(one))]
        shown = [printable(line)[:_LINE] for line in whole if line.strip()]
        return shown[-_LOG_LINES:]
    return []


def provenance_of(run: Run) -> Provenance | None:
    """None also for one that cannot be read."""
    with contextlib.suppress(FsdpkitError):
        return read_provenance(run.paths)
    return None


def sources(run: Run, made_from: Provenance) -> list[tuple[str, str]]:
    """Which code ran, and in what: (name, words)."""
    script, snapshot, installed = made_from.script, made_from.snapshot, made_from.packages
    facts = [("Script", script.path), ("SHA-256", script.sha256 or "not known")]
    if (repository := made_from.repository) is not None:
        facts += [("Work tree", repository.top), ("Commit", repository.commit or "none yet")]
        facts += [("Branch", repository.branch or "none (detached)")]
    if snapshot is not None:
        size = f"{snapshot.files:,} files, {snapshot.bytes:,} bytes"
        facts.append(("Ran in a copy", f"of {snapshot.source}: {size}, {snapshot.sha256[:12]}"))
    if made_from.diff is not None:
        cut = " (its beginning)" if made_from.diff.cut else ""
        size = f"{made_from.diff.bytes:,} bytes{cut}"
        facts.append(("Difference", f"{run.paths.source_diff}, {size}"))
    if installed is not None:
        python = f", Python {installed.python}" if installed.python else ""
        facts.append(("Environment", f"{installed.environment}{python}"))
    return [*facts, *(("Not known", text) for text in made_from.problems)]


def versions(run: Run, trainings: Sequence[Training]) -> list[tuple[str, str]]:
    """What the nodes had, and what wrote the newest checkpoint and the run."""
    found: dict[str, str] = {}
    for one in trainings[:1]:
        for checkpoint in one.history.checkpoints[-1:]:
            with contextlib.suppress(FsdpkitError):
                found |= describe(checkpoint.dir).versions
        for node in [n for attempt in one.history.attempts for n in attempt.nodes]:
            if isinstance(software := node.findings.get("software"), dict):
                found |= {str(name): str(version) for name, version in software.items()}
    found["fsdpkit"] = run.record.version
    found["template"] = run.record.template
    found |= {f"digest of the {name}": text[:12] for name, text in run.record.digests.items()}
    return sorted(found.items(), key=lambda item: item[0].startswith("digest"))
