"""An environment works from a copy at another path, whose original is gone."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from fsdpkit.config.surroundings import PythonEnvironment
from fsdpkit.errors import StorageError
from fsdpkit.scheduling import environment_files
from fsdpkit.scheduling.environment_files import files_of
from fsdpkit.scheduling.packing import LINK, PackedEnvironment, link_pack, packed
from fsdpkit.staging.manifest import BLOCK, Manifest, StageError
from fsdpkit.staging.relocate import LocalPython, relocate
from tests.reporting.made_run import made_run

PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "NAME"
version = "1"
scripts = {NAME-run = "NAME:main"}
"""
CODE = "import sys\n\ndef main():\n    print(__file__, sys.prefix, *sys.argv[1:])\n"


def venv_in(home: Path, *projects: str) -> Path:
    """A virtual environment, with projects installed editable by setuptools."""
    directory = home / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    for where in projects:
        project = home / where.partition("/")[0]
        (home / where).mkdir(parents=True)
        (home / where / "__init__.py").write_text(CODE)
        (project / "pyproject.toml").write_text(PROJECT.replace("NAME", Path(where).name))
        (project / ".git").mkdir()
    if projects:
        words = [word for each in projects for word in ("-e", str(home / each.partition("/")[0]))]
        pip = [str(directory / "bin/python"), "-m", "pip", "install", "--no-build-isolation"]
        subprocess.run(
            [*pip, "--no-deps", *words],
            env={**os.environ, "PYTHONPATH": str(distribution("setuptools").locate_file(""))},
            capture_output=True,
            check=True,
        )
    return directory


def of(venv: Path) -> PythonEnvironment:
    return PythonEnvironment("venv", str(venv))


def unpacked(pack: Path | None, tree: Path) -> Manifest:
    """The tree that a node makes of a pack, by another reader than the node's."""
    assert pack is not None
    with open(pack, "rb") as file:
        assert file.read(8) == b"fsdpkpk1"
        manifest = Manifest.decode(file.read(int.from_bytes(file.read(8), "big")))
        stream = file.read()
    assert len(stream) == manifest.size
    assert len(manifest.blocks) == -(-len(stream) // BLOCK)
    tree.mkdir(parents=True)
    for path, kind, size, mode, mtime_ns, target in manifest.entries:
        if kind == "dir":
            (tree / path).mkdir()
        elif kind == "link":
            (tree / path).symlink_to(target)
        else:
            (tree / path).write_bytes(stream[:size])
            (tree / path).chmod(mode)
            os.utime(tree / path, ns=(mtime_ns, mtime_ns))
            stream = stream[size:]
    return manifest


def shown(local: LocalPython, *words: str) -> list[str]:
    done = subprocess.run(
        [local.bin / words[0], *words[1:]], cwd="/", capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    venv = venv_in(tmp_path / "home")
    site = next(venv.glob("lib/python3*/site-packages"))
    (site / "one.py").write_text("x = 1\n")
    (site / "large").write_bytes(os.urandom(BLOCK + 5))
    return venv


@pytest.mark.parametrize(
    ("home_name", "tree_name"), [("home", "tree"), ("h" * 130, "t" * 130)], ids=["short", "long"]
)
def test_scripts_and_editable_packages_come_from_the_copy(
    tmp_path: Path, home_name: str, tree_name: str
) -> None:
    """Also where a path is too long for the first line of a script, before or after."""
    (real := tmp_path / "real").mkdir()
    (home := tmp_path / home_name).symlink_to(real)
    venv_in(home, "flat/flat", "split/src/split")
    # The job names it by another path than the scripts do.
    found = packed(of(real / "venv"), [tmp_path / "work"], cache=tmp_path / "cache")
    assert found.notes == []
    tree = tmp_path / tree_name
    manifest = unpacked(found.path, tree)
    local = relocate(tree, manifest)
    real.rename(tmp_path / "gone")
    for name in ("flat", "split"):
        file, prefix, *arguments = shown(local, f"{name}-run", "a", "b")
        assert Path(file).is_relative_to(tree)
        assert (prefix, arguments) == (str(tree / "prefix"), ["a", "b"])
    assert not list(tree.rglob(".git"))
    before = {path: path.lstat().st_mtime_ns for path in tree.rglob("bin/*")}
    relocate(tree, manifest)
    assert {path: path.lstat().st_mtime_ns for path in tree.rglob("bin/*")} == before
    assert manifest.facts["prefix"] == str(real / "venv")


def test_what_contains_the_work_stays_shared(tmp_path: Path) -> None:
    venv = venv_in(tmp_path / "home", "split/src/split")
    work = tmp_path / "home" / "split" / "src" / "jobs"
    found = packed(of(venv), [work], cache=tmp_path / "cache")
    assert len(found.notes) == 1
    assert str(work.parent) in found.notes[0]
    tree = tmp_path / "tree"
    local = relocate(tree, unpacked(found.path, tree))
    file, prefix = shown(local, "split-run")
    assert Path(file).is_relative_to(work.parent)
    assert prefix == str(tree / "prefix")


def test_a_base_on_a_network_file_system_comes_along(
    venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> Manifest:
        return files_of(of(venv)).manifest

    base = str(Path(sys.executable).resolve().parent.parent)
    monkeypatch.setattr(environment_files, "type_of", lambda path: "ext4")
    assert set(told().roots) == {"prefix"}
    monkeypatch.setattr(environment_files, "type_of", {Path(base): "lustre"}.get)
    monkeypatch.setattr(environment_files, "_SYSTEM", Path("/nowhere"))
    assert told().roots == {"prefix": str(venv), "base": base}
    paths = {entry.path: entry for entry in told().entries}
    assert not any("site-packages/" in path for path in paths if path.startswith("base/"))
    python = os.path.normpath(f"prefix/bin/{paths['prefix/bin/python'].target}")
    while paths[python].kind == "link":
        python = os.path.normpath(f"{os.path.dirname(python)}/{paths[python].target}")
    assert python.startswith("base/bin/")
    (line, *_) = json.loads(told().facts["written"])["prefix/pyvenv.cfg"][1].splitlines()
    assert line == "home = \0/base/bin"


def test_links_and_what_is_not_of_the_environment(venv: Path, tmp_path: Path) -> None:
    """As in conda's own prefix, which holds its other environments."""
    for name in ("condabin", "envs/other/bin", "pkgs/torch"):
        (venv / name).mkdir(parents=True)
    links = {
        "in": (f"{venv}/bin/python3", "../bin/python3"),
        "out": (str(tmp_path), str(tmp_path)),
        "up": ("../../..", str(tmp_path)),
        "left": (f"{venv}/envs/other", str(venv / "envs/other")),
        "nowhere": (f"{venv}/none", str(venv / "none")),
    }
    (venv / "links").mkdir()
    for name, (target, _) in links.items():
        (venv / "links" / name).symlink_to(target)
    os.mkfifo(venv / "links" / "pipe")
    script = venv / "bin" / "script"
    script.write_text(f"#!{venv}/bin/sh\n{venv}/x {venv}2/y /a{venv}/z --to={venv}\n")
    (venv / "conda-meta").mkdir()
    manifest, _, notes = files_of(PythonEnvironment("conda", str(venv)))
    found = {entry.path: entry.target for entry in manifest.entries}
    assert {name: found[f"prefix/links/{name}"] for name in links} == {
        name: target for name, (_, target) in links.items()
    }
    assert "prefix/envs" not in found
    assert "prefix/pkgs" not in found
    assert [str(venv / "links/pipe") in note for note in notes] == [True]
    _, text = json.loads(manifest.facts["written"])["prefix/bin/script"]
    assert text == f"#!\0/prefix/bin/sh\n\0/prefix/x {venv}2/y /a{venv}/z --to=\0/prefix\n"


@pytest.mark.parametrize("kind", ["container", "conda", "prefix"])
def test_what_cannot_be_packed_is_said(kind: str, tmp_path: Path) -> None:
    python = {
        "container": PythonEnvironment("container"),
        "conda": PythonEnvironment("conda", "none-such"),
        "prefix": PythonEnvironment("prefix", "/usr/bin"),
    }[kind]
    path, notes, *_ = packed(python, cache=tmp_path)
    assert path is None
    assert len(notes) == 1


def test_a_pack_is_made_once_and_named_by_what_is_in_it(venv: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    def pack() -> PackedEnvironment:
        return packed(of(venv), progress=lambda *now: told.append(now), cache=tmp_path / "cache")

    first = pack()
    assert first.made
    assert told[-1][0] == told[-1][1] > BLOCK
    assert first.path is not None
    assert first.path.stat().st_mode & 0o777 == 0o600
    del told[:]
    site = next(venv.glob("lib/python3*/site-packages"))
    assert pack() == first._replace(made=False)
    assert told == []
    os.utime(site / "one.py", ns=(1, 1))
    assert pack().path != first.path
    (site / "__pycache__").mkdir()
    (site / "__pycache__" / "one.pyc").touch()
    before = pack().path
    (site / "__pycache__" / "two.pyc").touch()  # an import, on the login node
    assert pack().path == before


def test_packs_that_no_run_needs_go(venv: Path, tmp_path: Path) -> None:
    site = next(venv.glob("lib/python3*/site-packages"))
    states = {"over": "FAILED", "unknown": None, "none": "gone"}
    packs: dict[str, Path] = {}
    for number, (name, state) in enumerate(states.items(), 1):
        os.utime(site / "one.py", ns=(number, number))
        path = packed(of(venv), cache=tmp_path / "cache").path
        assert path is not None
        run = made_run(tmp_path / "runs" / name, state=state)
        link_pack(path, run.dir)
        assert (run.dir / LINK).resolve() == path
        packs[name] = path
    (packs["none"].parent / "killed.part").touch()
    (tmp_path / "runs" / "none" / LINK).unlink()
    os.utime(site / "one.py", ns=(9, 9))
    assert (packed(of(venv), cache=tmp_path / "cache").made, len(packs)) == (True, 3)
    assert all(path.exists() for path in packs.values())  # used a moment ago
    for path in packs["none"].parent.iterdir():
        os.utime(path, (1, 1), follow_symlinks=False)
    os.utime(site / "one.py", ns=(10, 10))
    newest = packed(of(venv), cache=tmp_path / "cache").path
    assert set(packs["none"].parent.glob("*.pa*")) == {packs["unknown"], newest}


@pytest.mark.parametrize("times", [1, 9])
def test_a_change_while_it_is_packed_is_noticed(venv: Path, tmp_path: Path, times: int) -> None:
    left = [times]

    def change(done: int, total: int) -> None:
        if done == total and left[0]:
            left[0] -= 1
            (venv / "lib" / f"new{left[0]}").touch()

    if times == 1:
        found = packed(of(venv), progress=change, cache=tmp_path / "cache")
        assert "prefix/lib/new0" in {e.path for e in unpacked(found.path, tmp_path / "t").entries}
    else:
        with pytest.raises(StorageError, match="changes"):
            packed(of(venv), progress=change, cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").rglob("*.pa*"))) == (times == 1)


@pytest.mark.parametrize("full", ["before", "meanwhile"])
def test_a_full_cache_says_so_and_keeps_nothing(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    def quota(done: int, total: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    if full == "before":
        usage = shutil.disk_usage("/")._replace(free=1000)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match="XDG_CACHE_HOME"):
        packed(of(venv), progress=quota, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.pa*"))


@pytest.mark.parametrize(
    "written",
    [
        {"prefix/../../x": [0o600, ""]},
        {"prefix/bin/..": [0o600, ""]},
        {"prefix/bin/python/x": [0o600, ""]},
        {"prefix/bin/python": [0o600, ""]},
        {"/x": [0o600, ""]},
        {"prefix/x": 3},
        [],
    ],
)
def test_texts_are_written_into_the_tree_alone(venv: Path, tmp_path: Path, written: object) -> None:
    tree = tmp_path / "tree"
    manifest = unpacked(packed(of(venv), cache=tmp_path / "cache").path, tree)
    before = sorted(tmp_path.rglob("*"))
    facts = {**manifest.facts, "written": json.dumps(written)}
    with pytest.raises(StageError):
        relocate(tree, dataclasses.replace(manifest, facts=facts))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("missing", ["bin/python3", "pyvenv.cfg"])
def test_a_copy_whose_python_does_not_start_there_is_refused(
    venv: Path, tmp_path: Path, missing: str
) -> None:
    tree = tmp_path / "tree"
    manifest = unpacked(packed(of(venv), cache=tmp_path / "cache").path, tree)
    (tree / "prefix" / missing).unlink(missing_ok=True)
    with pytest.raises(StageError):
        relocate(tree, dataclasses.replace(manifest, facts={}))
