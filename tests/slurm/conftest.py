"""The command line pointed at the real cluster, small training scripts for it, and runs that are
made once and read by many tests."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import COLD, Completed, answer_of, require_newest_slurm, require_slurm
from tests.programs import until
from tests.slurm_cluster import Session, SlurmCluster
from tests.warm import WARM, Warm

# Ranks that only say who they are: launching is what is tested, and torch takes seconds to import.
WHO = """
    import json, os, pathlib
    keys = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "OMP_NUM_THREADS",
            "SLURM_ARRAY_TASK_ID", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES")
    told = {k: os.environ.get(k) for k in keys}
    told["cpus"] = os.environ.get("SLURM_CPUS_PER_TASK")
    print(json.dumps(told))
"""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("newest_slurm"):
        require_newest_slurm()


USERS_LANE = pytest.mark.xdist_group("ordinary-users")
"""Of tests on the cluster that has any."""
T5_LANE = pytest.mark.xdist_group("t5-on-slurm")
"""Of tests that train T5 on a cluster, beside those that mostly wait."""
ACCOUNT = ("--account", "pas1234", "--time", "15")


def wait_accounted(cluster: SlurmCluster, job_id: str | int, state: str) -> None:
    """Until accounting, too, has this state: the controller tells it in its own time."""
    ask = ["sacct", "-X", "-n", "-P", "-o", "State", "-j", str(job_id)]
    until(lambda: cluster.run(ask).stdout.startswith(state), f"{state} in accounting")


def write_profile(home: Path) -> dict[str, str]:
    """The cluster's profile in `home`, and the variables with which fsdpkit finds it."""
    profiles = home / "centre" / "site" / "profiles"
    profiles.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("testbed.toml"), profiles)
    return {"FSDPKIT_SITE_PATH": str(home / "centre"), "FSDPKIT_CLUSTER": "testbed"}


@dataclass(frozen=True)
class Person:
    """Somebody on the login node, with configuration and runs that no single test owns."""

    cluster: SlurmCluster
    home: Path
    site: Mapping[str, str]
    session: Session | None = None
    """Of an ordinary user; the person is root without."""
    warm: Warm = WARM

    @classmethod
    def at(cls, cluster: SlurmCluster, home: Path) -> Person:
        return cls(cluster, home, write_profile(home))

    @classmethod
    def named(cls, cluster: SlurmCluster, user: str) -> Person:
        """One of the cluster's users, at home; the profile is the centre's."""
        session = cluster.as_user(user)
        home = session.user.home
        return cls(cluster, home, write_profile(home), session, Warm(session))

    def fsdpkit(self, *words: str, cwd: Path | None = None) -> Completed:
        if self.session is not None:
            environ = self.session.env()
        else:
            environ = {
                **self.cluster.env(),
                "FSDPKIT_CONFIG_DIR": str(self.home / "config"),
                "FSDPKIT_STATE_DIR": str(self.home / "state"),
            }
        environ |= {**self.site, "OMP_NUM_THREADS": "1"}
        return self.warm.run(words, cwd or self.home, environ, timeout_s=540)


@dataclass(frozen=True)
class Finished:
    """A run that is over, and what `fsdpkit submit --wait` said of it."""

    dir: Path
    done: Completed


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[SlurmCluster]:
    """A cluster of two ordinary users, alex and sam, for whom it lies where anybody can enter."""
    require_slurm()
    with tempfile.TemporaryDirectory(prefix="fsdpkit-users-", dir="/tmp") as directory:
        options = {"users": ("alex", "sam"), "kill_wait_s": 10}
        with SlurmCluster(Path(directory), **options) as cluster:
            yield cluster


@pytest.fixture(scope="session")
def alex(shared_cluster: SlurmCluster) -> Person:
    return Person.named(shared_cluster, "alex")


@pytest.fixture(scope="session")
def sam(shared_cluster: SlurmCluster) -> Person:
    return Person.named(shared_cluster, "sam")


@pytest.fixture(scope="session")
def person(slurm_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Person:
    return Person.at(slurm_cluster, tmp_path_factory.mktemp("person"))


def finish(person: Person, name: str, text: str, *words: str, runs: str) -> Finished:
    """Submit a script and wait for its end; `runs` is a new directory in the person's home."""
    script = person.home / name
    script.write_text(textwrap.dedent(text))
    done = person.fsdpkit("submit", str(script), *words, *ACCOUNT, "--wait", "--runs", runs)
    (directory,) = (person.home / runs).glob(f"{script.stem}-*")
    return Finished(directory, done)


@pytest.fixture(scope="session")
def good_run(person: Person) -> Finished:
    """Two nodes of four ranks that say who they are, in a directory with a name to trip over."""
    name = 'it\'s a "run" of 100% $HOME `x` #1'
    return finish(person, "who.py", WHO, "--nodes", "2", "--gpus", "4", runs=name)


@pytest.fixture(scope="session")
def failed_run(person: Person) -> Finished:
    """Rank 3 of two nodes of two ends with a status and last words; the others would go on."""
    text = """
        import os, sys, time
        if os.environ["RANK"] == "3":
            time.sleep(1)
            print("the walrus is on fire", file=sys.stderr)
            sys.exit(3)
        time.sleep(3600)
    """
    words = ("--nodes", "2", "--gpus", "2", "--set", "retry.on_crash=stop", *COLD)
    return finish(person, "fails.py", text, *words, runs="failed")


@pytest.fixture(scope="session")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A poorer cluster: no slurmdbd, so sacct answers nothing, and every node's own name resolves
    to loopback, as Debian installs it; memory is counted. Its mails are lines of the file `sent` in
    its root."""
    require_slurm()
    root = tmp_path_factory.mktemp("bare")
    mail = root.with_name(f"{root.name}-mail")
    mail.write_text(f'#!/bin/bash\necho "$*" >>{root}/sent\n')
    mail.chmod(0o755)
    conf = f"MailProg={mail}\nSelectTypeParameters=CR_Core_Memory"
    options = {"accounting": False, "loopback_hosts": True, "extra_conf": conf}
    with SlurmCluster(root, **options) as cluster:
        yield cluster


@pytest.fixture
def on_bare(bare_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """This process and all it starts see the poorer cluster, which has no profile."""
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, bare_cluster.env()[name])
    monkeypatch.setenv("FSDPKIT_CLUSTER", "generic")
    return bare_cluster


@pytest.fixture
def on_slurm(
    slurm_cluster: SlurmCluster, isolated_user: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    """This process and all it starts see the real cluster, through a profile of the test's own."""
    on_cluster = {name: slurm_cluster.env()[name] for name in ("SLURM_CONF", "PATH")}
    for name, value in {**write_profile(isolated_user), **on_cluster}.items():
        monkeypatch.setenv(name, value)
    yield slurm_cluster
    slurm_cluster.run(["scancel", "--user=root"])
    slurm_cluster.wait_idle()


@pytest.fixture
def submit(
    on_slurm: SlurmCluster, fsdpkit: Callable[..., Completed]
) -> Callable[..., dict[str, Any]]:
    """`fsdpkit submit … --json` with the cluster's account; its answer. warm: as by default."""

    def call(*args: str, warm: bool = False, **kwargs: Any) -> dict[str, Any]:
        at = args.index("--") if "--" in args else len(args)
        words = (*args[:at], *ACCOUNT, *(() if warm else COLD), "--json", *args[at:])
        return answer_of(fsdpkit("submit", *words, **kwargs))

    return call


def told_by_ranks(run_dir: str | os.PathLike[str], pattern: str = "attempt-0") -> list[Any]:
    """What the WHO script's ranks printed, in rank order. No rank may have been started twice."""
    found = list(Path(run_dir).glob(f"{pattern}/rank-*.out"))
    assert not any(".restart-" in path.name for path in found), everything_said(run_dir)
    files = sorted(found, key=lambda p: int(p.stem.split("-")[1]))
    return [json.loads(path.read_text()) for path in files]


def everything_said(run_dir: str | os.PathLike[str]) -> str:
    """All logs of a run, for the message of a failed assertion."""
    top = Path(run_dir)
    logs = [*top.glob("slurm-*.log"), *top.glob("submitit/*log*"), *top.glob("attempt-*/rank-*")]
    return "\n".join(f"== {p.name}\n{p.read_text(errors='replace')[-2000:]}" for p in logs)
