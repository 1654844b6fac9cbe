"""A root of another release is whole or not there, and what stands in the way is said in a line.

None of these tests needs Slurm, a mirror or root: mmdebstrap is a stand-in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.release_table import PAGE
from tests.slurm import releases as matrix
from tests.slurm_cluster import ClusterError, releases
from tests.slurm_cluster.releases import Release, chosen, make, path_with, reason_against_making

Bootstrap = Callable[[str], None]
FINISHED = 'mkdir -p "$root/usr"; echo 26.05.5-1 > "$root/version"'


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bootstrap:
    """Puts an mmdebstrap on PATH that does this with `$root`, and a dpkg-query that reads it."""
    commands = tmp_path / "commands"
    commands.mkdir()
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    monkeypatch.setenv("FSDPKIT_SLURM_ROOTS", str(tmp_path / "roots"))
    monkeypatch.setattr(releases.os, "geteuid", lambda: 0)
    monkeypatch.setattr(releases, "debian_mirror", lambda: "mirror")
    read = 'root=${1#--admindir=}; cat "${root%/var/lib/dpkg}/version"'
    _command(commands / "dpkg-query", read)

    def put(text: str) -> None:
        argv = "for word; do case $word in */.26.05.new-*) root=$word;; esac; done\n"
        _command(commands / "mmdebstrap", argv + text)

    return put


def _command(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_root_is_made_once(bootstrap: Bootstrap) -> None:
    bootstrap(FINISHED)
    make(Release("26.05"))
    assert (Release("26.05").root / "usr").is_dir()
    bootstrap("exit 1")
    make(Release("26.05"))


def test_a_root_that_fails_half_way_is_not_there(bootstrap: Bootstrap) -> None:
    bootstrap('mkdir "$root/usr"; echo "E: no such mirror" >&2; exit 25')
    with pytest.raises(ClusterError, match="cannot be made: E: no such mirror"):
        make(Release("26.05"))
    assert [path.name for path in releases.roots().iterdir()] == [".26.05.lock"]


def test_what_the_machine_lacks_is_said(
    bootstrap: Bootstrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap(FINISHED)
    assert reason_against_making(Release("26.05")) is None
    monkeypatch.setattr(releases, "ROOM_MB", 10**9)
    assert "has room for" in (reason_against_making(Release("26.05")) or "")
    monkeypatch.setattr(releases, "debian_mirror", lambda: None)
    assert "apt on this machine knows none" in (reason_against_making(Release("26.05")) or "")
    monkeypatch.setattr(releases.os, "geteuid", lambda: 1000)
    assert "this is not root" in (reason_against_making(Release("26.05")) or "")


def test_a_release_that_nobody_knows_is_refused_with_those_that_are() -> None:
    with pytest.raises(ClusterError, match=r"known are 22\.05, 24\.11, 26\.05"):
        chosen("23.02")


def test_clients_of_two_releases_are_never_on_one_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSDPKIT_SLURM_ROOTS", str(tmp_path))
    first = path_with(Release("24.11"), "/bin")
    assert path_with(Release("26.05"), first) == f"{Release('26.05').clients}:/bin"
    assert path_with(None, first) == "/bin"


def test_the_table_of_releases_is_that_of_the_results() -> None:
    page = PAGE.read_text("utf-8")
    assert matrix.TABLE.within(page) == page, "run make test-releases"


def test_a_junit_report_is_counted_with_the_reasons(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="a" name="good"/>'
        '<testcase classname="a" name="bad"><failure/></testcase>'
        '<testcase classname="a" name="not"><skipped message="no tc"/></testcase>'
        "</testsuite></testsuites>"
    )
    counted = matrix.counted(report)
    assert counted == {"passed": 1, "failed": ["a::bad"], "left_out": {"no tc": 1}}
    assert matrix.counted(tmp_path / "none") == {"passed": 0, "failed": [], "left_out": {}}
