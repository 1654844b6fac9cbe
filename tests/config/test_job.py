"""A job: its layers, its script, its array."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fsdpkit.config.job_loading import LoadedJob, load_job, reload_job
from fsdpkit.config.site import load_site
from fsdpkit.config.units import parse_array
from fsdpkit.errors import ConfigError, UsageError
from tests.programs import Write

JobFile = Callable[[str], str]


def test_defaults_lie_beneath_the_jobs_own_values(
    user_file: Write, centre_file: Write, job_file: JobFile
) -> None:
    centre_file("defaults.toml", "[resources]\naccount = 'centre'\nqos = 'normal'\nnodes = 9\n")
    user_file("defaults.toml", "[resources]\naccount = 'mine'\n")
    job = load_job(job_file(""))
    resources = job.spec.resources
    assert (resources.account, resources.qos, resources.nodes) == ("mine", "normal", 2)
    assert job.origin("resources.account") == "user defaults.toml"
    assert job.origin("resources.qos") == "centre defaults.toml"


def test_the_command_line_wins_over_set_which_wins_over_files(job_file: JobFile) -> None:
    job = load_job(
        job_file(""), options={"resources.nodes": 5}, sets=["resources.nodes=4", "resources.gpus=1"]
    )
    assert (job.spec.resources.nodes, job.spec.resources.gpus) == (5, 1)
    assert job.origin("resources.nodes") == "command line"
    assert job.origin("resources.gpus") == "--set"


def test_arguments_are_appended_to_the_jobs(job_file: JobFile) -> None:
    job = load_job(job_file(""), sets=['args=["--a"]'], args=["--b", "{array_task}"])
    assert job.spec.args == ["--a", "--b", "{array_task}"]


def test_a_bare_script_is_a_small_job(tmp_path: Path) -> None:
    script = tmp_path / "my train (2).py"
    script.write_text("")
    job = load_job(str(script))
    assert (job.spec.name, job.entry.path) == ("my-train--2-", script)
    assert (job.spec.resources.nodes, job.spec.resources.gpus) == (1, 1)


def test_a_script_beside_the_job_file_wins_over_the_current_directory(
    job_file: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.py").write_text("")
    monkeypatch.chdir(elsewhere)
    path = job_file("")
    assert load_job(path).entry.path == tmp_path / "train.py"
    assert load_job(path, sets=["entry=train.py"]).entry.path == elsewhere / "train.py"


def resolved(path: Path, job: LoadedJob) -> Path:
    path.write_bytes(msgspec.json.encode(job.spec))
    return path


def test_a_resolved_job_is_read_back_without_the_defaults_of_today(
    job_file: JobFile, user_file: Write, tmp_path: Path
) -> None:
    first = load_job(job_file("[retry]\non_crash = 'stop'\n"), args=["--lr", "1"])
    user_file("defaults.toml", "[resources]\nqos = 'normal'\n")
    path = resolved(tmp_path / "job.json", first)
    again = reload_job(path, "run r", work_dir=tmp_path)
    assert (again.spec, again.entry) == (first.spec, first.entry)
    changed = reload_job(
        path, "run r", work_dir=tmp_path, options={"resources.nodes": 7}, sets=["retry.restarts=0"]
    )
    assert (changed.spec.resources.nodes, changed.spec.retry.restarts) == (7, 0)
    assert changed.origin("resources.nodes") == "command line"
    assert changed.origin("resources.gpus") == "run r"


ARRAYS = {
    "0-3": ([0, 1, 2, 3], None),
    "1,3,5": ([1, 3, 5], None),
    "0-15:5": ([0, 5, 10, 15], None),
    "0-3%2": ([0, 1, 2, 3], 2),
    "7": ([7], None),
    "1-2,9": ([1, 2, 9], None),
}


@pytest.mark.parametrize(("text", "wanted"), ARRAYS.items())
def test_an_array_is_read_as_sbatch_does(text: str, wanted: tuple[list[int], int | None]) -> None:
    assert parse_array(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "3-1", "1:2", "0-9:0", "0-3%0", "0-3%", "1,1", "-1", "1,,2", "٣", "1-2-3"),
        *("0-1e9", "0-3%1%2", "0-99999999", " 1", "1;rm"),
    ],
)
def test_what_is_no_array_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--array"):
        parse_array(text)


OPENS = "[audit]\nshare = true\nfolder = '/p'\n[files]\ngroup = true\n"
CENTRES_JOB = (
    'schema = "fsdpkit.job/1"\nname = "theirs"\nentry = "train.py"\n'
    '[resources]\nnodes = 2\ngpus = 4\ntime = "01:00:00"\n'
)


@pytest.mark.parametrize("where", ["by name", "by path", "by links", "defaults"])
def test_who_sees_a_run_is_not_a_centres_to_say(
    where: str,
    centre_file: Write,
    job_file: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = "theirs"
    centre_file("jobs/train.py", "")
    if where == "defaults":
        centre_file("defaults.toml", OPENS)
        job = job_file("")
    else:
        path = centre_file("jobs/theirs.toml", CENTRES_JOB + OPENS + "room_gb = 5\n")
        job = job if where == "by name" else str(path)
    if where == "by links":
        (tmp_path / "centre-link").symlink_to(tmp_path / "centre")
        (tmp_path / "mine.toml").symlink_to(tmp_path / "centre-link" / "jobs" / "theirs.toml")
        (tmp_path / "train.py").touch()
        monkeypatch.setenv("FSDPKIT_SITE_PATH", str(tmp_path / "centre-link"))
        job = str(tmp_path / "mine.toml")
    loaded = load_job(job)
    profile = load_site("local").profile
    assert loaded.shared_by(profile) is None
    assert loaded.record_folder is None
    assert not loaded.opens_to_group
    assert loaded.on_disk.room_gb == (None if where == "defaults" else 5)
    assert [text.partition(" ")[0] for text in loaded.layered.warnings] == [
        "audit.share",
        "audit.folder",
        "files.group",
    ]
    asked = load_job(job, sets=["audit.share=true", "files.group=true"])
    assert asked.shared_by(profile) == "job: audit.share"
    assert asked.opens_to_group


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("-m lab/train.py", "such as -m lab.train"),
        ("-m lab.train --lr 1", 'such as -m lab.train; its arguments .* behind "--": --lr 1'),
        ("-m", "not ''"),
        ("-m ../lab", "such as -m lab"),
        ("-m a;b", "not 'a;b'"),
        ("python train.py --lr 1", "fsdpkit submit train.py -- --lr 1"),
        ("train.py --lr 1", 'train.py; its arguments .* behind "--": --lr 1'),
    ],
)
def test_an_entry_is_one_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    for job, sets in ((text, []), (None, [f"entry={text}"])):
        with pytest.raises(UsageError, match=told):
            load_job(job, sets=sets)


def test_a_module_or_a_command_is_read_back_as_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "train.py").touch()
    (tmp_path / "bash").mkdir()  # a directory is no program
    for text, kind, file in (
        ("-m lab.train", "module", tmp_path / "lab" / "train.py"),
        ("-m json.tool", "module", None),
        ("bash", "command", Path(shutil.which("bash") or "")),
    ):
        monkeypatch.chdir(tmp_path)
        job = load_job(text)
        assert (str(job.entry), job.entry.kind, job.entry.file) == (text, kind, file)
        path = tmp_path / "job.json"
        path.write_text(job.resolved)
        monkeypatch.chdir(tmp_path / "lab")  # resumed from elsewhere
        assert reload_job(path, "run r", work_dir=tmp_path).entry == job.entry


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"at (?P<step>\d+): (?P<loss>\S+)", None),
        ("(?P<step>", "it is no regular expression"),
        (r"step \d+", r"it names no group; there are \(\?P<step>"),
        (r"(?P<speed>\d+)", "the group speed has no meaning"),
        (r"(?P<step>\d+)(?=/)", "cannot be used here"),
        ("(?P<step>a{1000}){1000}", "too large"),
        ("(?P<step>a)" + "a" * 500, ""),
    ],
)
def test_a_pattern_for_the_output_is_checked_when_the_job_is_read(
    pattern: str, why: str | None, job_file: JobFile
) -> None:
    text = f"[metrics]\npattern = '{pattern}'\n"
    if why is None:
        assert load_job(job_file(text)).spec.metrics.pattern == pattern  # type: ignore[union-attr]
        return
    with pytest.raises(ConfigError, match=rf"metrics(?:\.pattern)?.*{why}"):
        load_job(job_file(text))
