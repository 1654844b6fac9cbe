"""What tests share: an isolated user, the command line as a person runs it, a Slurm cluster."""

from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.browsers import browser
from tests.programs import Completed, ended
from tests.slurm_cluster import (
    NEWEST,
    SlurmCluster,
    choice,
    is_made,
    point_at_roots,
    release_clients,
    unavailable_reason,
)
from tests.warm import WARM

__all__ = ["Completed", "browser"]  # the second is a fixture of all rooms

ROOT = Path(__file__).resolve().parent.parent
COLD = ("--set", "launch.warm=off")
"""For ranks without torch, which a process that has imported it would only delay."""

# The same examples every time, so that only a change can make a test fail; however long they take
# on a busy machine. HYPOTHESIS_PROFILE=search looks for new ones (and for more, where a test does
# not say how many).
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", patient, derandomize=True)
settings.register_profile("search", patient, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# Collecting 7,000 tests makes objects that all stay: each worker looks at them no more.
gc.disable()

# Read when torch is loaded: threads that wait for one another do so in circles, and where there are
# fewer cores than threads that is nearly all they do.
os.environ["OMP_NUM_THREADS"] = "1"

point_at_roots()  # before a test gets an XDG_CACHE_HOME of its own

# A suite started in the background is deaf to Ctrl-C, and so would be the commands under test.
signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST_FIRST = ("slurm", "other-slurm", "lost-nodes", "faults", "ordinary-users", "t5-on-slurm")
"""Lanes on a real cluster, each of which takes minutes."""
AT_ONCE = 3
"""How many of them start first: half of the workers that a small machine has."""
OTHER_SLURM = "tests/slurm/test_s[cilu]*"
"""Files of half of the tests that would otherwise be in the lane `slurm`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Divide the tests into lanes for `--dist loadgroup`, in the order in which workers take them.

    One worker runs all tests of a lane, in order. `pytest.mark.xdist_group` names the lane. Without
    it tests on the cluster share two, because a worker has one cluster, and the tests of a file
    share one, because its fixtures are expensive.
    """
    if not hasattr(config, "workerinput"):
        return
    turns: dict[str, int] = {}
    for item in items:
        slurm, newest, torch, local = (
            item.get_closest_marker(name) is not None
            for name in ("slurm", "newest_slurm", "torch", "local")
        )
        if item.get_closest_marker("xdist_group") is None:
            file = item.nodeid.partition("::")[0]
            on_cluster = "other-slurm" if fnmatch(file, OTHER_SLURM) else "slurm"
            item.add_marker(pytest.mark.xdist_group(on_cluster if slurm else file))
        turn = 0 if slurm or newest else 1 if torch or local else 2
        turns[lane_of(item)] = min(turn, turns.get(lane_of(item), turn))
    places = {lane: place for place, lane in enumerate(in_order(turns))}
    items.sort(key=lambda item: places[lane_of(item)])


def in_order(turns: Mapping[str, int]) -> list[str]:
    """The lanes as workers take them, by their turns: those that wait for Slurm (0) spread over
    those that start ranks (1), so that at any time some wait while others compute; then the rest.
    """
    rank = {lane: number for number, lane in enumerate(LONGEST_FIRST)}
    waiting = sorted((w for w in turns if turns[w] == 0), key=lambda w: rank.get(w, len(rank)))
    computing = sorted((c for c in turns if turns[c]), key=turns.__getitem__)
    found, later = waiting[:AT_ONCE], waiting[AT_ONCE:]
    between = max(1, [*turns.values()].count(1) // (len(later) + 1))
    for number, lane in enumerate(computing, start=1):
        found.append(lane)
        if later and number % between == 0:
            found.append(later.pop(0))
    return [*found, *later]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def lane_of(item: pytest.Item) -> str:
    (mark,) = item.iter_markers("xdist_group")
    return str(mark.args[0])


@pytest.fixture(scope="session")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each test's user lives. pytest numbers its own directories, and would look through
    thousands of them for each; and a template, the same for every user, is parsed once."""
    directory = tmp_path_factory.mktemp("users")
    (directory / "templates").mkdir()
    return directory


@pytest.fixture(autouse=True)
def isolated_user(users: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees or changes the configuration and runs of the person who runs it."""
    home = Path(tempfile.mkdtemp(dir=users))
    (home / "cache" / "fsdpkit").mkdir(parents=True)
    (home / "cache" / "fsdpkit" / "templates").symlink_to(users / "templates")
    monkeypatch.setenv("FSDPKIT_CONFIG_DIR", str(home / "config"))
    monkeypatch.setenv("FSDPKIT_STATE_DIR", str(home / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_", "FSDPKIT_CLUSTER", "FSDPKIT_SITE_PATH")):
            monkeypatch.delenv(name)
    for name in ("COLUMNS", "LINES"):  # pytest-xdist sets them, and rich believes them first
        monkeypatch.delenv(name, raising=False)
    if clients := release_clients():
        monkeypatch.setenv("PATH", f"{clients}:{os.environ['PATH']}")
    return home


@pytest.fixture
def fsdpkit(tmp_path: Path) -> Callable[..., Completed]:
    """Runs `fsdpkit ARGS…` as a process of its own in the test's directory. status: that it must
    end with; None: any."""

    def run(
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 300,
        status: int | None = None,
    ) -> Completed:
        done = WARM.run(args, cwd or tmp_path, {**os.environ, **(env or {})}, timeout_s)
        return ended(done, status)

    return run


@pytest.fixture
def believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has the number of a run's job is that job: stand-ins for Slurm's commands need not
    print what it is known by. Whose job it is is told in test_job_mark.py."""
    from fsdpkit.scheduling.job_mark import JobMark

    monkeypatch.setattr(JobMark, "fits", lambda self, traits: True)


def require_slurm() -> None:
    """Skip where no cluster can run; fail instead where FSDPKIT_REQUIRE_SLURM=1 says one must."""
    if reason := unavailable_reason():
        if os.environ.get("FSDPKIT_REQUIRE_SLURM") == "1":
            pytest.fail(f"Slurm is required here, but {reason}")
        pytest.skip(reason)


@functools.cache
def _reason_against_newest() -> tuple[bool, str | None]:
    """Whether the newest release must run here, and why it cannot; its root is made if need be."""
    release = choice() or NEWEST
    required = bool(choice()) or is_made(release)
    return required, unavailable_reason(release)


def require_newest_slurm() -> None:
    """Skip where no cluster of the newest release can run (or of the one that the environment asks
    for). FSDPKIT_REQUIRE_SLURM=1 makes that a failure if the release was asked for, or if its root
    is there: only a root that cannot be made may leave tests out."""
    required, reason = _reason_against_newest()
    if reason and required and os.environ.get("FSDPKIT_REQUIRE_SLURM") == "1":
        pytest.fail(f"Slurm {choice() or NEWEST} is required here, but {reason}")
    if reason:
        pytest.skip(f"on Slurm {choice() or NEWEST}: {reason}")


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A real Slurm cluster of three nodes with four GPUs each, with accounting."""
    require_slurm()
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few kilobytes, all of them taken."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(place)], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        (place / "filler").write_bytes(b"x" * 16_384)
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def write_script(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes a small training script; most tests of launching need ranks, not a model."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


Command = Callable[[str, str], Path]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Puts an executable of this name and text of a shell first on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "commands"), prepend=":")

    def put(name: str, text: str) -> Path:
        path = tmp_path / "commands" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
        return path

    return put


def answer_of(done: Completed) -> dict[str, Any]:
    """The JSON that `--json` printed, which fits its schema."""
    from tests.json_answers import checked

    assert done.returncode == 0, done.stderr
    return checked(done.stdout)
