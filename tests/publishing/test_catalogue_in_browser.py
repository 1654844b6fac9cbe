"""The catalogue in a real browser: its form writes what the command line writes."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from fsdpkit.cli.in_page import Answered, dry_run
from fsdpkit.config.published.centre import open_centre
from fsdpkit.config.surroundings import of_this_process
from tests.programs import ran
from tests.publishing.catalogue_pages import LANE, Shown, centres_of
from tests.publishing.drawn import Drawn, drawn

REQUESTS = 40
pytestmark = LANE


def surroundings(place: Path, request: Drawn, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Go where the request is typed; the same as the form would say it."""
    home = place / "ann"
    own = home / ".config" / "fsdpkit" / "defaults.toml"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.unlink(missing_ok=True)
    if request.defaults:
        own.write_text(request.defaults)
    for name in ("FSDPKIT_CONFIG_DIR", "FSDPKIT_RUNS", "SBATCH_ACCOUNT", "CONDA_EXE"):
        patch.delenv(name, raising=False)
    patch.setenv("HOME", str(home))
    patch.setenv("PATH", "/nowhere")  # no Slurm is asked
    patch.setenv("FSDPKIT_SITE_PATH", ":".join(map(str, centres_of(place))))
    patch.setenv("FSDPKIT_STATE_DIR", str(place / "state"))  # the index was verified, and is known
    if request.runs is not None:
        patch.setenv("FSDPKIT_RUNS", request.runs)
    if request.sbatch_account is not None:
        patch.setenv("SBATCH_ACCOUNT", request.sbatch_account)
    if request.python == "conda":
        patch.setenv("CONDA_EXE", "/opt/conda's/bin/conda")
    patch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 60))
    patch.setattr(sys, "prefix", str(place / request.python))
    patch.setattr(sys, "executable", str(place / "prefix" / "bin" / "python"))
    patch.chdir(home / request.below)
    here = of_this_process()
    files = {str(own): request.defaults} if request.defaults else {}
    files |= {str(home / request.below / name): "" for name in ("train.py", "sub/it's.py")}
    said = asdict(replace(here, variables=dict(here.variables)))
    return {
        "words": list(request.words),
        "surroundings": said,
        "centres": [str(centre) for centre in centres_of(place)],
        "files": files,
    }


def seen_from_anywhere(answered: Answered) -> Answered:
    """Without what a page cannot see: how much room a file system has, and what Slurm knows."""
    lines = answered.err.splitlines(keepends=True)
    unseen = ("fsdpkit: the file system of ", "fsdpkit: how many cores a node has is not known")
    kept = [line for line in lines if not line.startswith(unseen)]
    return Answered(answered.status, answered.out, "".join(kept))


def answers(form: Shown, asked: Sequence[dict[str, Any]]) -> list[Answered]:
    """What the page's own Python says to each."""
    told = form.page.evaluate(
        """async (asked) => {
            const answering = (window.inTest ??= new Answering());
            const told = [];
            for (const one of asked) told.push(await answering.ask(one));
            return told;
        }""",
        list(asked),
    )
    return [Answered(**one) for one in told]


def test_drawn_requests_give_the_command_lines_script_or_error(form: Shown, place: Path) -> None:
    requests = list(drawn(REQUESTS, seed=19))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSDPKIT_STATE_DIR", str(place / "state"))
        open_centre(place / "heron")
    expected, asked = [], []
    for request in requests:
        with pytest.MonkeyPatch.context() as patch:
            asked.append(surroundings(place, request, patch))
            expected.append(seen_from_anywhere(dry_run(list(request.words))))
    got = answers(form, asked)
    different = [
        (request, want, have)
        for request, want, have in zip(requests, expected, got, strict=True)
        if want != have
    ]
    assert different == []
    statuses = [one.status for one in expected]
    assert min(statuses.count(0), len(statuses) - statuses.count(0)) > REQUESTS // 4
    assert {2, 65, 66} <= {*statuses}


def test_a_few_are_the_same_as_a_process_of_their_own_writes(form: Shown, place: Path) -> None:
    python = sys.executable
    for request in drawn(4, seed=7):
        with pytest.MonkeyPatch.context() as patch:
            asked = surroundings(place, replace(request, python="venv"), patch)
            # Its own Python decides which environment is activated: that of these tests.
            patch.undo()
        with pytest.MonkeyPatch.context() as patch:
            surroundings(place, request, patch)
            done = ran(
                [python, "-m", "fsdpkit", "submit", "--dry-run", *request.words],
                timeout=300,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )
        asked["surroundings"]["python"] = asdict(of_this_process().python)
        (got,) = answers(form, [asked])
        want = seen_from_anywhere(Answered(done.returncode, done.stdout, done.stderr))
        assert got == want, request


@pytest.mark.skipif(shutil.which("node") is None, reason="node compiles it, and is not here")
def test_the_pages_python_is_compiled(pages: Path) -> None:
    def held(name: str) -> set[str]:
        with zipfile.ZipFile(pages / "engine" / name) as archive:
            return set(archive.namelist())

    sources = {name for name in held("modules.zip") | held("msgspec.zip") if name.endswith(".py")}
    assert sources == set()
    assert {"typing.pyc", "tomllib/_parser.pyc", "encodings/utf_8.pyc"} <= held("python_stdlib.zip")
