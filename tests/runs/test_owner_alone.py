"""What a run writes is its owner's, whatever the umask; what others could write is not trusted."""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.errors import DamagedError
from fsdpkit.runs.job_file import DIGEST, bytes_of_job
from fsdpkit.runs.layout import write_atomically
from tests.config.access_lists import GROUP_OBJ, MASK, OTHER, USER, USER_OBJ, set_list
from tests.conftest import Command
from tests.publishing.centres import Said, typed

Submit = Callable[..., Said]


@pytest.fixture
def submit(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """`fsdpkit submit` with this umask, to an sbatch that takes every job."""
    command("sbatch", "echo 12")
    monkeypatch.chdir(tmp_path)

    def run(*words: str, umask: int = 0o022) -> Said:
        before = os.umask(umask)
        try:
            return typed("submit", "--cluster", "generic", *words)
        finally:
            os.umask(before)

    return run


def modes(top: Path) -> dict[str, set[int]]:
    """Permission bits of directories and of files, each kind once; without source.diff, which is
    its owner's alone whatever the rest is (test_provenance.py)."""
    found = [top, *(p for p in top.rglob("*") if not p.is_symlink() and p.name != "source.diff")]
    return {
        "directories": {stat.S_IMODE(p.stat().st_mode) for p in found if p.is_dir()},
        "files": {stat.S_IMODE(p.stat().st_mode) for p in found if p.is_file()},
    }


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize(
    ("words", "directory", "file"),
    [((), 0o700, 0o600), (("--set", "files.group=true"), 0o2750, 0o640)],
)
def test_a_run_is_its_owner_s_or_open_to_be_read_by_the_group(
    words: tuple[str, ...], directory: int, file: int, umask: int, submit: Submit, tmp_path: Path
) -> None:
    done = submit(*words, umask=umask)
    assert done.status == 0, done.err
    assert modes(tmp_path / "runs") == {"directories": {directory}, "files": {file}}


def test_runs_are_not_kept_where_everybody_could_replace_them(
    submit: Submit, tmp_path: Path
) -> None:
    top = tmp_path / "runs"
    top.mkdir()
    top.chmod(0o777)
    done = submit()
    assert done.status == 74
    assert "everyone can write" in done.err
    assert list(top.iterdir()) == []
    top.chmod(0o1777)  # like /tmp
    assert submit().status == 0


def test_an_access_list_that_runs_would_inherit_opens_none_of_them(
    submit: Submit, tmp_path: Path
) -> None:
    top = tmp_path / "runs"
    top.mkdir()
    everything = [
        (USER_OBJ, 0, 7),
        (USER, 12002, 7),
        (GROUP_OBJ, 0, 7),
        (MASK, 0, 7),
        (OTHER, 0, 7),
    ]
    set_list(top, everything, default=True)
    done = submit("--set", "files.group=true", umask=0o077)
    assert done.status == 0, done.err
    (run,) = (path.parent for path in top.glob("*/run.json"))
    assert modes(run) == {"directories": {0o2750}, "files": {0o640}}
    kept = [path for path in [run, *run.rglob("*")] if not path.is_symlink()]
    assert {path.name: os.listxattr(path) for path in kept if os.listxattr(path)} == {}


def test_nobody_can_make_a_record_be_written_to_another_file(tmp_path: Path) -> None:
    """A link under the name that the draft once had."""
    theirs, record = tmp_path / "theirs", tmp_path / "run.json"
    theirs.write_text("as it was")
    (tmp_path / f".run.json.{os.getpid()}.tmp").symlink_to(theirs)
    record.symlink_to(theirs)
    write_atomically(record, "{}")
    assert theirs.read_text() == "as it was"
    assert record.read_text() == "{}"
    assert not record.is_symlink()


def test_a_node_believes_the_job_that_the_script_was_made_with_alone(tmp_path: Path) -> None:
    job, data = tmp_path / "job.json", b'{"name": "t5"}'
    environ = {DIGEST: hashlib.sha256(data).hexdigest(), "SLURM_JOB_ID": "12"}
    job.write_bytes(data)
    assert bytes_of_job(tmp_path, environ) == data
    job.write_bytes(b'{"name": "changed"}')
    with pytest.raises(DamagedError, match="is not what was submitted"):
        bytes_of_job(tmp_path, environ)
    (tmp_path / "job.12.json").write_bytes(data)  # as `resume --chained` leaves it
    assert bytes_of_job(tmp_path, environ) == data
    (tmp_path / "job.12.json").write_bytes(b"{}")
    with pytest.raises(DamagedError):
        bytes_of_job(tmp_path, environ)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_node_does_not_believe_another_user_s_copy_of_the_job(tmp_path: Path) -> None:
    """Who may read the run can have one, and put it where the run was."""
    job, data = tmp_path / "job.json", b'{"name": "t5"}'
    job.write_bytes(data)
    os.chown(job, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        bytes_of_job(tmp_path, {DIGEST: hashlib.sha256(data).hexdigest(), "SLURM_JOB_ID": "12"})


def test_a_job_that_is_exchanged_while_it_is_read_is_believed_as_it_was_submitted_or_not(
    tmp_path: Path,
) -> None:
    """By two at once, who put another file, a link and a pipe in its place."""
    job, kept, data = tmp_path / "job.json", tmp_path / "job.12.json", b'{"name": "t5"}'
    environ = {DIGEST: hashlib.sha256(data).hexdigest(), "SLURM_JOB_ID": "12"}
    forged, over = data.replace(b"t5", b"me"), threading.Event()
    job.write_bytes(data)

    def exchange(path: Path) -> None:
        fresh = tmp_path / f"{path.name}.{threading.get_ident()}"
        kinds = [
            lambda: fresh.write_bytes(forged),
            lambda: fresh.symlink_to(path),
            lambda: os.mkfifo(fresh),
            lambda: fresh.write_bytes(data),
        ]
        for put in itertools.cycle(kinds):
            if over.is_set():
                return
            put()
            fresh.replace(path)

    threads = [threading.Thread(target=exchange, args=(path,)) for path in (job, kept)]
    for thread in threads:
        thread.start()
    read, refused = 0, 0
    try:
        while min(read, refused) < 20:
            try:
                assert bytes_of_job(tmp_path, environ) == data
                read += 1
            except (OSError, DamagedError):
                refused += 1
    finally:
        over.set()
        for thread in threads:
            thread.join()
