"""At submission: which script, which commit and what was changed in it, which packages.

git and the job's Python are asked with a time limit, and told to run nobody else's programs. What
does not answer is written down as unknown: no submission fails for its account.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.config.job import LoadedJob
from fsdpkit.config.site import LoadedSite
from fsdpkit.runs.layout import RunPaths, write_atomically
from fsdpkit.runs.provenance import Commit, Provenance, Setting
from fsdpkit.scheduling.entry import python_of

MOST_DIFF_BYTES = 1 << 20
_GIT_S, _PYTHON_S = 20.0, 30.0
_GIT = (
    *("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false"),
    *("-c", "core.hooksPath=/dev/null", "-c", "submodule.recurse=false"),
)
_PACKAGES = """
import importlib.metadata as m, json
print(json.dumps({d.metadata["Name"]: d.version for d in m.distributions() if d.metadata["Name"]}))
"""


def write_provenance(paths: RunPaths, job: LoadedJob, site: LoadedSite) -> None:
    """Leave `provenance.json` and `source.diff` in a run's directory; what cannot be written is
    left out."""
    found, diff = provenance_of(job, site)
    try:
        write_atomically(paths.provenance, msgspec.json.format(msgspec.json.encode(found)) + b"\n")
        if diff:
            write_atomically(paths.source_diff, diff)
            paths.source_diff.chmod(
                0o600
            )  # what is not committed is nobody else's, whatever [files] says
        else:
            paths.source_diff.unlink(missing_ok=True)
    except OSError:
        pass


def provenance_of(job: LoadedJob, site: LoadedSite) -> tuple[Provenance, bytes]:
    """What is known of the job's making, and the difference to the commit, cut to its limit."""
    unknown: list[str] = []
    digest = None
    try:
        digest = hashlib.sha256(job.entry.read_bytes()).hexdigest()
    except OSError as error:
        unknown.append(f"the script cannot be read: {error.strerror}")
    commit, diff = _commit(job.entry, unknown)
    python = python_of(job, site)
    if python is None:
        unknown.append("the packages of the job's environment are known on its nodes alone")
    found = Provenance(
        command=sys.argv,
        script=str(job.entry),
        script_sha256=digest,
        commit=commit,
        python=None if python is None else str(python),
        packages={} if python is None else _packages(python, unknown),
        settings=dict(_settings(job)),
        unknown=unknown,
    )
    return found, diff[:MOST_DIFF_BYTES]


def _settings(job: LoadedJob) -> list[tuple[str, Setting]]:
    found: list[tuple[str, Setting]] = []

    def walk(value: Any, key: str) -> None:
        if isinstance(value, dict) and value:
            for name, below in value.items():
                walk(below, f"{key}.{name}" if key else str(name))
        elif value is not None:
            found.append((key, Setting(value, job.origin(key))))

    walk(msgspec.to_builtins(job.spec), "")
    return found


def _packages(python: Path, unknown: list[str]) -> dict[str, str]:
    if python == Path(sys.executable):
        every = importlib.metadata.distributions()
        found = {one.metadata["Name"]: one.version for one in every if one.metadata["Name"]}
        return dict(sorted(found.items(), key=lambda item: item[0].lower()))
    try:
        done = subprocess.run(
            [str(python), "-c", _PACKAGES], capture_output=True, timeout=_PYTHON_S, check=True
        )
        told = msgspec.json.decode(done.stdout, type=dict[str, str])
        return dict(sorted(told.items(), key=lambda item: item[0].lower()))
    except (OSError, subprocess.SubprocessError, ValueError):
        unknown.append(f"{python} did not say which packages it has")
        return {}


def _commit(script: Path, unknown: list[str]) -> tuple[Commit | None, bytes]:
    """Of the work tree around the script, if git knows one."""
    if not any((above / ".git").exists() for above in script.parents):
        return None, b""
    try:
        top = Path(os.fsdecode(_git(script.parent, "rev-parse", "--show-toplevel")[:-1]))
        status = _git(top, "status", "--porcelain", "-z", "--no-renames", "--ignore-submodules")
        lines = [line for line in status.split(b"\0") if line]
        commit = _git(top, "rev-parse", "--verify", "-q", "HEAD", fails=True).decode().strip()
        branch = _git(top, "symbolic-ref", "-q", "--short", "HEAD", fails=True).decode().strip()
        diff = _git(top, "diff", "--no-ext-diff", "--no-textconv", "HEAD") if commit else b""
        tracked = _git(top, "ls-files", "-z", "--", str(script))
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        unknown.append(f"git did not answer about {script.parent}: {_why(error)}")
        return None, b""
    return Commit(
        top=str(top),
        id=commit,
        branch=branch or None,
        changed=sum(not line.startswith(b"?? ") for line in lines),
        untracked=sum(line.startswith(b"?? ") for line in lines),
        diff_bytes=len(diff),
        script_tracked=bool(tracked),
    ), diff


def _git(where: Path, *words: str, fails: bool = False) -> bytes:
    """What git prints. fails: it may end with 1, having nothing to say."""
    done = subprocess.run(
        [*_GIT, "-C", str(where), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_GIT_S,
        check=False,
        env=_without_git(),
    )
    if done.returncode != 0 and not (fails and done.returncode == 1):
        raise subprocess.CalledProcessError(done.returncode, words[0], stderr=done.stderr)
    return done.stdout


def _without_git() -> dict[str, str]:
    """This environment without variables that point git elsewhere (a hook sets them)."""
    return {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}


def _why(error: Exception) -> str:
    said = getattr(error, "stderr", None)
    if isinstance(said, bytes) and said:
        text = said.decode(errors="replace").strip().splitlines()[0][:200]
        return "".join(c if c.isprintable() else "?" for c in text)
    return type(error).__name__


def kept_files(paths: RunPaths) -> Sequence[Path]:
    """What is set aside with the job's script when the run gets its next job."""
    return [path for path in (paths.provenance, paths.source_diff) if path.exists()]
