"""What is submitted, written down beside the job: script, commit, difference, packages, settings.

Made when a run directory is, never for a dry run. Nothing that cannot be learned keeps a job from
being submitted: it becomes one of the record's `problems`. Git is asked by `worktree.git`; the
text of what differs goes to source.diff, which can hold anything and is its owner's alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fsdpkit.config.entry import Entry
from fsdpkit.config.loading import dotted
from fsdpkit.errors import storage_errors
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.layout import RunPaths, write_atomically
from fsdpkit.runs.provenance import (
    Provenance,
    Published,
    Repository,
    Script,
    Setting,
    Snapshot,
    SourceDiff,
    read_provenance,
    save_provenance,
)
from fsdpkit.runs.reading import read_bytes
from fsdpkit.runs.record import now_s
from fsdpkit.scheduling.packages import packages_of
from fsdpkit.worktree.git import Git, GitError, git_in

_MOST_DIFF_BYTES = 8 << 20
_MOST_NEW_FILE_BYTES = 1 << 20
_MOST_SCRIPT_BYTES = 64 << 20
_MOST_NAMES = 200
_SOURCES = (
    *(".py", ".pyx", ".c", ".cpp", ".cu", ".h", ".sh"),
    *(".cfg", ".ini", ".json", ".toml", ".yaml", ".yml"),
)
_UNDER_WAY = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}


def write_provenance(
    plan: Plan, paths: RunPaths, entry: Entry, work_dir: Path, snapshot: Snapshot | None = None
) -> Provenance:
    """Make provenance.json and source.diff of a run. `entry` and `work_dir` are the person's own,
    also where the job runs in a copy. Raises StorageError where they cannot be written."""
    problems: list[str] = []
    script, text = _script(entry, problems)
    name = entry.path if entry.root else work_dir / entry.name
    repository, diff, cut = _repository(name, text, paths.dir.parent, problems)
    packages = packages_of(plan, work_dir, problems)
    made = Provenance(
        made_s=now_s(),
        command=[_written(word) for word in sys.argv],
        work_dir=_written(str(work_dir)),
        script=script,
        repository=repository,
        diff=SourceDiff(bytes=len(diff), cut=cut) if diff else None,
        packages=packages,
        settings=list(_settings(plan)),
        published=_published(plan),
        snapshot=snapshot,
        problems=problems,
    )
    with storage_errors(paths.dir, "written"):
        if diff:
            write_atomically(paths.source_diff, diff, private=True)
        else:
            paths.source_diff.unlink(missing_ok=True)
    save_provenance(paths, made)
    return made


def renew_provenance(plan: Plan, paths: RunPaths) -> None:
    """For the next job of a run: its settings and packages. The sources are looked at again, too,
    unless the job runs in the run's own copy, whose record stays. Raises StorageError."""
    before = read_provenance(paths)
    if before is None or before.snapshot is None:
        write_provenance(plan, paths, plan.job.entry, plan.work_dir)
        return
    problems = [text for text in before.problems if not text.startswith("packages: ")]
    made = msgspec.structs.replace(
        before,
        made_s=now_s(),
        command=[_written(word) for word in sys.argv],
        packages=packages_of(plan, plan.work_dir, problems),
        settings=list(_settings(plan)),
        published=_published(plan),
        problems=problems,
    )
    save_provenance(paths, made)


def _script(entry: Entry, problems: list[str]) -> tuple[Script, bytes]:
    if entry.file is None:  # installed, and so among the packages
        return Script(path=_written(str(entry))), b""
    try:
        text = read_bytes(entry.file, _MOST_SCRIPT_BYTES)
    except OSError as error:
        problems.append(f"{entry} cannot be read: {error.strerror}")
        return Script(path=_written(str(entry))), b""
    digest = hashlib.sha256(text).hexdigest()
    return Script(path=_written(str(entry)), sha256=digest, bytes=len(text)), text


def _settings(plan: Plan) -> Iterator[Setting]:
    """Every key of the job that was decided, with its origin."""
    for key, value in dotted(json.loads(plan.job.resolved)):
        yield Setting(key=key, value=value, origin=plan.job.origin(key))


def _published(plan: Plan) -> list[Published]:
    return [
        Published(
            kind=one.kind,
            name=one.name,
            version=one.version,
            sha256=one.sha256,
            channel=one.channel,
            signer=one.signer,
            centre=_written(str(one.centre)),
        )
        for one in plan.releases
    ]


# ---- The sources


def _repository(
    entry: Path, script: bytes, runs: Path, problems: list[str]
) -> tuple[Repository | None, bytes, bool]:
    """The work tree around the script, the text of what its commit does not have, and whether that
    was cut. Without git the text is the script's."""
    try:
        git = git_in(entry.parent)
        top = git.top
    except GitError as error:
        problems.append(f"git: {error}")
        return None, _as_new_file(entry.name, script), False
    try:
        return _described(git, top, runs, problems)
    except GitError as error:
        problems.append(f"git: {error}")
        return Repository(top=str(top)), _as_new_file(entry.name, script), False


def _described(
    git: Git, top: Path, runs: Path, problems: list[str]
) -> tuple[Repository, bytes, bool]:
    git = Git(top, git.environ)
    commit = _line_or_none(git, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    changed: list[str] = []
    text, cut = b"", False
    if commit:
        how = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty")
        changed = git.ask("diff", "--name-only", "-z", *how, "HEAD", "--").names
        if changed:
            answer = git.ask(
                *("diff", "--binary", *how, "HEAD", "--"), most_bytes=_MOST_DIFF_BYTES, cut=True
            )
            text, cut = answer.output, answer.cut
    else:
        changed = git.ask("ls-files", "-z").names
    untracked = [
        name
        for name in git.ask("ls-files", "-z", "--others", "--exclude-standard").names
        if not (top / name).is_relative_to(runs.resolve())  # what runs wrote is no source
    ]
    new = untracked if commit else [*changed, *untracked]
    for name in new:
        added = _new_source(top, name)
        cut = cut or bool(added and len(text) + len(added) > _MOST_DIFF_BYTES)
        text += b"" if cut else added
    for what, names in (("changed", changed), ("untracked", untracked)):
        if len(names) > _MOST_NAMES:
            problems.append(f"of {len(names):,} {what} files {_MOST_NAMES} are named")
    found = Repository(
        top=str(top),
        commit=commit,
        branch=_line_or_none(git, "symbolic-ref", "--quiet", "--short", "HEAD"),
        clean=not changed and not untracked,
        under_way=_under_way(git),
        changed=[_written(name) for name in changed[:_MOST_NAMES]],
        untracked=[_written(name) for name in untracked[:_MOST_NAMES]],
    )
    return found, text, cut


def _line_or_none(git: Git, *words: str) -> str | None:
    try:
        return _written(git.ask(*words).line) or None
    except GitError:
        return None


def _under_way(git: Git) -> str | None:
    place = _line_or_none(git, "rev-parse", "--absolute-git-dir")
    if place is None:
        return None
    return next((what for file, what in _UNDER_WAY.items() if Path(place, file).exists()), None)


def _written(name: str) -> str:
    """A name of any bytes as text that JSON can hold."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _new_source(top: Path, name: str) -> bytes:
    """An untracked source file as a difference; nothing for data, and for what cannot be read."""
    if Path(name).suffix not in _SOURCES:
        return b""
    try:
        return _as_new_file(name, read_bytes(top / name, _MOST_NEW_FILE_BYTES))
    except OSError:
        return b""


def _as_new_file(name: str, text: bytes) -> bytes:
    """As `git diff` shows an added file; nothing: no text, or a name that git quotes."""
    if not text or b"\0" in text or not name.isprintable() or set(name) & set('"\\'):
        return b""
    lines = text.split(b"\n")
    end = b"" if lines[-1] == b"" else b"\n\\ No newline at end of file"
    lines = lines if end else lines[:-1]
    path = name.encode()
    head = (
        b"diff --git a/%b b/%b\nnew file mode 100644\n--- /dev/null\n+++ b/%b\n@@ -0,0 +1,%d @@\n"
    )
    return head % (path, path, path, len(lines)) + b"\n".join(b"+" + x for x in lines) + end + b"\n"
