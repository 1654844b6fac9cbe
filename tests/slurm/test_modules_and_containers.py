"""Jobs with modules and in containers, through the programs that centres have: Lmod,
environment-modules and Apptainer, from Debian.

Each is unpacked once beside the roots of Slurm's releases; where that cannot be done, or where user
namespaces or overlays are refused, its tests are left out in one line.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsdpkit import Run
from tests.conftest import COLD, ROOT, answer_of
from tests.programs import Fsdpkit, Write
from tests.slurm.conftest import ACCOUNT, everything_said, told_by_ranks, write_profile
from tests.slurm_cluster import NEWEST, SlurmCluster, choice
from tests.slurm_cluster.machines import ClusterError
from tests.slurm_cluster.packages import laid_over, unpack

Submit = Callable[..., Run]

TELLS = """
    import json, os
    keys = ("GREETING", "OLD", "LOADEDMODULES", "SLURM_NODEID", "RANK", "WORLD_SIZE")
    told = {key: os.environ.get(key) for key in keys}
    told["image"] = os.path.exists("/etc/this-is-the-image")
    print(json.dumps(told))
"""

MEETS = """
    import torch
    from fsdpkit.training.distributed import process_group
    with process_group(300) as ranks:
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        assert total.item() == ranks.world_size == 4
"""


def unpacked(name: str) -> Path:
    try:
        return unpack(name)
    except ClusterError as error:
        pytest.skip(str(error))


def submitting(fsdpkit: Fsdpkit, tmp_path: Path, profile: str) -> Submit:
    """Submits to the cluster by a profile of the test's own, and waits for the end."""
    (tmp_path / "mine.toml").write_text(f'schema = "fsdpkit.site/1"\ntitle = "mine"\n{profile}')

    def submit(script: Path, *words: str, env: Mapping[str, str] | None = None) -> Run:
        shape = ("--nodes", "2", "--gpus", "2", "--cluster", "./mine.toml")
        argv = ("submit", str(script), *shape, *ACCOUNT, *COLD, *words, "--json")
        run = Run.open(answer_of(fsdpkit(*argv, env=env))["dir"])
        run.wait(poll_s=0.2)
        return Run.open(run.dir)

    return submit


# Modules


@dataclass(frozen=True)
class Modules:
    """A module system on all nodes, and a directory of modules: hello/1.0, old/1.0, clash/1.0."""

    name: str
    path: Path
    loaded: Mapping[str, str]
    """The environment of somebody who has loaded old/1.0."""


@pytest.fixture(params=["lmod", "environment-modules"])
def modules(
    request: pytest.FixtureRequest, on_slurm: SlurmCluster, tmp_path: Path
) -> Iterator[Modules]:
    root = unpacked(request.param)
    path = tmp_path / "modulefiles"  # Lmod takes no module in Tcl from a path with a space in it
    for name, variable in (("hello", "GREETING"), ("old", "OLD")):
        (path / name).mkdir(parents=True)
        (path / name / "1.0").write_text(f"#%Module1.0\nsetenv {variable} {name}-1.0\n")
    nodes = list(on_slurm.nodes())
    try:
        with laid_over(on_slurm, nodes, root):
            yield Modules(request.param, path, _loaded(on_slurm, nodes[0], path))
    except ClusterError as error:
        pytest.skip(str(error))


def _loaded(cluster: SlurmCluster, node: str, path: Path) -> dict[str, str]:
    shell = (
        "for init in /etc/profile.d/lmod.sh /etc/profile.d/modules.sh; do "
        '[ ! -r "$init" ] || . "$init"; done; module use "$1"; module load old; '
        f'exec "{sys.executable}" -c "import json, os; print(json.dumps(dict(os.environ)))"'
    )
    done = cluster.node_exec(node, ["bash", "-c", shell, "-", str(path)])
    told: dict[str, str] = json.loads(done.stdout)
    about = ("LMOD", "MODULE", "_ModuleTable", "LOADEDMODULES", "_LMFILES", "__MODULES", "OLD")
    return {key: value for key, value in told.items() if key.startswith(about)}


@pytest.mark.slurm
@pytest.mark.packages
def test_a_job_finds_the_modules_of_its_profile_and_none_of_the_submitter_s(
    modules: Modules, fsdpkit: Fsdpkit, tmp_path: Path, write_script: Write
) -> None:
    profile = (
        "[environment]\npurge_modules = true\n"
        f'use_modules = ["{modules.path}"]\nmodules = ["hello/1.0"]\n'
    )
    assert modules.loaded["OLD"] == "old-1.0"
    submit = submitting(fsdpkit, tmp_path, profile)
    run = submit(write_script("tells.py", TELLS), env=modules.loaded)
    ranks = told_by_ranks(run.dir)
    assert len(ranks) == 4, everything_said(run.dir)
    assert {(rank["GREETING"], rank["OLD"], rank["LOADEDMODULES"]) for rank in ranks} == {
        ("hello-1.0", None, "hello/1.0")
    }


@pytest.mark.slurm
@pytest.mark.packages
def test_without_a_purge_the_submitter_s_modules_stay(
    modules: Modules, fsdpkit: Fsdpkit, tmp_path: Path, write_script: Write
) -> None:
    profile = f'[environment]\nuse_modules = ["{modules.path}"]\nmodules = ["hello"]\n'
    submit = submitting(fsdpkit, tmp_path, profile)
    run = submit(write_script("tells.py", TELLS), "--nodes", "1", env=modules.loaded)
    assert {(rank["GREETING"], rank["OLD"]) for rank in told_by_ranks(run.dir)} == {
        ("hello-1.0", "old-1.0")
    }, everything_said(run.dir)


# Containers


@pytest.fixture(scope="module")
def apptainer_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Two nodes of the newest release's Debian, which Apptainer's package is made for."""
    release = choice() or NEWEST
    if release < NEWEST:
        pytest.skip(f"Apptainer of Debian sid runs beside Slurm {NEWEST}, not {release}")
    root = unpacked("apptainer-squashfuse")
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), release=release, nodes=2) as cluster:
        try:
            with laid_over(cluster, list(cluster.nodes()), root):
                yield cluster
        except ClusterError as error:
            pytest.skip(str(error))


@pytest.fixture(scope="module")
def image(apptainer_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SIF that Apptainer made of Debian's packages, without a network."""
    box = tmp_path_factory.mktemp("image") / "box"
    made = box.with_name("debian.sif")
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}

    def build(*argv: str | Path) -> None:
        words = ["apptainer", "build", *map(str, argv)]
        built = apptainer_cluster.node_exec("node1", words, env=environ)
        assert built.returncode == 0, built.stderr

    build("--sandbox", box, unpacked("image"))
    (box / "etc" / "this-is-the-image").touch()
    build("--mksquashfs-args", "-comp gzip -Xcompression-level 1", made, box)
    shutil.rmtree(box)
    tried = ["apptainer", "exec", "--userns", str(made), "/bin/true"]
    if (said := apptainer_cluster.node_exec("node1", tried, env=environ)).returncode != 0:
        pytest.skip(f"Apptainer cannot run an image here: {said.stderr.strip().splitlines()[-1]}")
    return made


@pytest.fixture
def in_container(
    apptainer_cluster: SlurmCluster,
    image: Path,
    isolated_user: Path,
    fsdpkit: Fsdpkit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Submit:
    variables = {
        **write_profile(isolated_user),
        "SLURM_CONF": apptainer_cluster.env()["SLURM_CONF"],
    }
    variables["PATH"] = apptainer_cluster.env()["PATH"]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    places = dict.fromkeys([str(ROOT), sys.prefix, sys.base_prefix, str(tmp_path)])
    binds = ", ".join(json.dumps(f"--bind={place}") for place in places)
    bin_dir = os.path.dirname(sys.executable)
    profile = (
        f'[container]\nengine = "apptainer"\narguments = ["--userns", {binds}]\n'
        f'[environment.variables]\nAPPTAINERENV_PREPEND_PATH = "{bin_dir}"\n'
    )
    submit = submitting(fsdpkit, tmp_path, profile)

    def call(script: Path, *words: str, **other: Any) -> Run:
        return submit(script, "--set", f"environment.container={image}", *words, **other)

    return call


@pytest.mark.newest_slurm
@pytest.mark.torch
def test_ranks_of_two_nodes_meet_inside_the_image(
    in_container: Submit, write_script: Write
) -> None:
    run = in_container(write_script("meets.py", MEETS + TELLS), "--set", "launch.warm=on")
    ranks = told_by_ranks(run.dir)
    assert len(ranks) == 4, everything_said(run.dir)
    assert all(rank["image"] for rank in ranks)
    assert {rank["SLURM_NODEID"] for rank in ranks} == {"0", "1"}
    state = run.job_states()
    assert {one.describe() for one in state.values()} == {"COMPLETED"}, everything_said(run.dir)


@pytest.mark.newest_slurm
def test_a_rank_s_failure_inside_the_image_is_the_job_s(
    in_container: Submit, write_script: Write
) -> None:
    failing = "import os, sys; sys.exit(7 if os.environ['RANK'] == '1' else 0)"
    stop = ("--set", "retry.on_crash=stop")
    run = in_container(write_script("fails.py", failing), *stop)
    (state,) = run.job_states().values()
    assert (state.state, state.exit_code) == ("FAILED", 7), everything_said(run.dir)
