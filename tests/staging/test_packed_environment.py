"""An environment works from a copy at another path, whose original is gone."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from typing import Literal

import pytest

from fsdpkit.config.surroundings import PythonEnvironment
from fsdpkit.errors import StorageError
from fsdpkit.scheduling import environment_files
from fsdpkit.scheduling.environment_files import files_of
from fsdpkit.scheduling.packing import LINK, PackedEnvironment, link_pack, packed
from fsdpkit.staging.manifest import BLOCK, Manifest, StageError
from fsdpkit.staging.relocate import LocalPython, relocate
from tests.programs import ran
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
        (home / where).with_name(".git").mkdir()
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
        blocks = [file.read(BLOCK) for _ in manifest.blocks]
    assert [hashlib.sha256(block).hexdigest() for block in blocks] == [*manifest.blocks]
    stream = io.BytesIO(b"".join(blocks))
    tree.mkdir()
    for path, kind, size, mode, mtime_ns, target in manifest.entries:
        if kind == "dir":
            (tree / path).mkdir()
        elif kind == "link":
            (tree / path).symlink_to(target)
        else:
            (tree / path).write_bytes(stream.read(size))
            (tree / path).chmod(mode)
            os.utime(tree / path, ns=(mtime_ns, mtime_ns))
    return manifest


def shown(local: LocalPython, *words: str) -> list[str]:
    done = ran([local.bin / words[0], *words[1:]], cwd="/", status=0)
    return done.stdout.split()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    venv = venv_in(tmp_path / "home")
    (venv / "lib" / "large").write_bytes(os.urandom(BLOCK + 5))
    return venv


def test_scripts_and_editable_packages_come_from_the_copy(tmp_path: Path) -> None:
    """Also where their path was too long for the first line of a script."""
    (real := tmp_path / "real").mkdir()
    (home := tmp_path / ("h" * 130)).symlink_to(real)
    venv_in(home, "flat/flat", "split/src/split")
    found = packed(of(home / "venv"), [tmp_path / "work"])
    assert found.notes == []
    tree = tmp_path / "tree"
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
    assert manifest.facts["prefix"] == str(home / "venv")


def test_a_place_too_long_for_the_first_line_of_a_script_is_refused(
    venv: Path, tmp_path: Path
) -> None:
    (venv / "bin" / "ours").write_text(f"#!{venv}/bin/python\n")
    tree = tmp_path / ("t" * 130)
    with pytest.raises(StageError, match="too long"):
        relocate(tree, unpacked(packed(of(venv)).path, tree))


def test_what_contains_the_work_stays_shared(tmp_path: Path) -> None:
    venv = venv_in(tmp_path / "home", "split/src/split")
    work = tmp_path / "home" / "split" / "src" / "jobs"
    found = packed(of(venv), [work])
    assert len(found.notes) == 1
    assert str(work.parent) in found.notes[0]
    tree = tmp_path / "tree"
    local = relocate(tree, unpacked(found.path, tree))
    file, prefix = shown(local, "split-run")
    assert Path(file).is_relative_to(work.parent)
    assert prefix == str(tree / "prefix")


def test_a_base_on_a_network_file_system_comes_along(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> Manifest:
        return files_of(of(venv)).manifest

    base = str(Path(sys.executable).resolve().parent.parent)
    (tmp_path / "current").symlink_to(base)
    (venv / "pyvenv.cfg").write_text(f"home = {tmp_path}/current/bin\n")
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
def test_what_cannot_be_packed_is_said(kind: Literal["container", "conda", "prefix"]) -> None:
    path, notes, *_ = packed(PythonEnvironment(kind, "/usr/bin"))
    assert path is None
    assert len(notes) == 1


def test_a_pack_is_made_once_and_named_by_what_is_in_it(venv: Path) -> None:
    told: list[tuple[int, int]] = []

    def pack() -> PackedEnvironment:
        return packed(of(venv), progress=lambda *now: told.append(now))

    first = pack()
    assert first.made
    assert told[-1][0] == told[-1][1] > BLOCK
    assert first.path is not None
    assert first.path.stat().st_mode & 0o777 == 0o600
    del told[:]
    assert pack() == first._replace(made=False)
    assert told == []
    os.utime(venv / "lib" / "large", ns=(1, 1))
    (venv / "__pycache__").mkdir()
    (venv / "__pycache__" / "1.pyc").touch()
    before = pack().path
    assert before != first.path
    (venv / "__pycache__" / "2.pyc").touch()  # an import, on the login node
    assert pack().path == before


def test_of_two_submissions_at_once_one_packs(venv: Path) -> None:
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(packed, [of(venv)] * 2))
    assert sorted(each.made for each in both) == [False, True]


def test_packs_that_no_run_needs_go(venv: Path, tmp_path: Path) -> None:
    def pack() -> Path:
        os.utime(venv / "lib" / "large", ns=(1, len(packs)))
        path = packed(of(venv)).path
        assert path is not None
        return path

    packs: dict[str, Path] = {}
    for name, state in {"over": "FAILED", "unknown": None, "unlinked": None}.items():
        run = made_run(tmp_path / name, state=state)
        packs[name] = pack()
        link_pack(packs[name], run.dir)
        assert (run.dir / LINK).resolve() == packs[name]
    (tmp_path / "unlinked" / LINK).unlink()
    packs["killed"] = packs["over"].with_suffix(".part")
    packs["killed"].touch()
    packs["recent"] = pack()
    assert all(path.exists() for path in packs.values())
    for path in packs["over"].parent.iterdir():
        os.utime(path, (1, 1))
    packed(of(venv))  # the recent one, again
    packs["newest"] = pack()
    kept = {name for name, path in packs.items() if path.exists()}
    assert kept == {"unknown", "recent", "newest"}


@pytest.mark.parametrize("times", [1, 9])
def test_a_change_while_it_is_packed_is_noticed(venv: Path, cache: Path, times: int) -> None:
    changes = iter(range(times))

    def change(done: int, total: int) -> None:
        if done == total and (number := next(changes, None)) is not None:
            (venv / "lib" / f"new{number}").touch()

    if times == 1:
        assert packed(of(venv), progress=change) == packed(of(venv))._replace(made=True)
    else:
        with pytest.raises(StorageError, match="changes"):
            packed(of(venv), progress=change)
    assert len(list(cache.rglob("*.pa*"))) == (times == 1)


@pytest.mark.parametrize("full", ["before", "meanwhile"])
def test_a_full_cache_says_so_and_keeps_nothing(
    venv: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    def quota(done: int, total: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    if full == "before":
        usage = shutil.disk_usage("/")._replace(free=1000)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match="XDG_CACHE_HOME"):
        packed(of(venv), progress=quota)
    assert not list(cache.rglob("*.pa*"))


def test_a_copy_that_cannot_be_used_is_refused(venv: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    manifest = unpacked(packed(of(venv)).path, tree)
    (tree / "prefix/pyvenv.cfg").unlink(missing_ok=True)
    before = sorted(tmp_path.rglob("*"))
    for written in [
        [],
        {"prefix/x": 3},
        *({path: [0o600, ""]} for path in ("prefix/../../x", "prefix/bin/..", "/x")),
        *({path: [0o600, ""]} for path in ("prefix/bin/python/x", "prefix/bin/python")),
        {},  # no pyvenv.cfg: the Python is that of its base
    ]:
        facts = {**manifest.facts, "written": json.dumps(written)}
        with pytest.raises(StageError):
            relocate(tree, replace(manifest, facts=facts))
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(StageError):
        relocate(tree.rename(tmp_path / "a b"), manifest)
    (tmp_path / "a b").rename(tree)
    for python in tree.glob("prefix/bin/python*"):
        python.unlink()
    with pytest.raises(StageError):
        relocate(tree, manifest)


def test_a_directory_in_what_is_left_out_of_another_one_is_copied_by_itself_or_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv, project = venv_in(tmp_path), tmp_path / "project"
    deps = project / ".deps"
    deps.mkdir(parents=True)
    for number in range(9):
        (deps / f"{number}.py").touch()
    site = next(venv.glob("lib/python3*/site-packages"))
    (site / "a.pth").write_text(f"{project}\n{deps}\n")

    def written() -> str:
        texts = json.loads(files_of(of(venv)).manifest.facts["written"])
        return "".join(text for path, (_, text) in texts.items() if path.endswith("a.pth"))

    assert written() == "\0/src1\n\0/src2\n"
    monkeypatch.setattr(environment_files, "_MOST_NAMES", 5)
    assert written() == f"\0/src1\n{deps}\n"
