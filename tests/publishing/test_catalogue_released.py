"""What a signed centre's pages say of versions and signatures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from markupsafe import escape

from fsdpkit.errors import NotFoundError
from fsdpkit.publishing.catalogue.reading import Catalogue, read_catalogue
from fsdpkit.publishing.catalogue.rendering import Writing
from tests.publishing.catalogue_pages import LANE
from tests.publishing.made_centre import HOSTILE

pytestmark = LANE


@pytest.fixture(scope="module")
def page_of(catalogue: Catalogue) -> dict[str, str]:
    return Writing(catalogue, "Zoo").pages()


def test_a_templates_page_tells_its_versions_and_who_signed_them(page_of: dict[str, str]) -> None:
    page = page_of["templates/torchrun.html"]
    versions = page.partition('<ol class="versions">')[2].partition("</ol>")[0]
    shown = [part.partition("</h3>")[0] for part in versions.split("<h3>")[1:]]
    assert [one[:5] for one in shown] == ["4.0.0", "3.4.0", "3.3.1", "3.3.0", "3.2.0"]
    assert ["testing" in shown[0], "stable" in shown[1], "withdrawn" in shown[2]] == [True] * 3
    assert not any(word in shown[3] for word in ("stable", "testing", "withdrawn"))
    assert "alex@centre.example signed the centre&#39;s index on 2026-10-28" in page or (
        "alex@centre.example signed the centre's index on 2026-10-28" in page
    )
    assert "verified when these pages were built" in page
    assert '<time datetime="2026-09-28">' in versions


def test_why_a_version_was_withdrawn_is_on_its_page_and_the_form_does_not_offer_it(
    page_of: dict[str, str],
) -> None:
    page = page_of["templates/torchrun.html"]
    assert "by kim@centre.example:</b>" in page
    assert str(escape(f"asks {HOSTILE}")) in page
    form = page_of["generator.html"]
    assert 'value="torchrun@4.0.0"' in form
    assert 'value="torchrun@3.3.0"' in form
    assert 'value="torchrun@3.3.1"' not in form


def test_changes_are_those_of_the_scripts_and_what_jobs_may_set(page_of: dict[str, str]) -> None:
    page = page_of["templates/torchrun.html"]
    newest, stable = page.split("Changes since ")[1:3]
    assert newest.startswith("3.4.0")
    assert "<li>new parameter scratch_gb (default 20)</li>" in newest
    assert '<span class="add">+SCRATCH_GB=20\n</span>' in newest
    assert stable.startswith("3.3.0")  # 3.3.1 was withdrawn
    assert "<li>wait_s: default 60 → 120</li>" in stable
    assert '<span class="add">+export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID\n</span>' in stable
    assert "sha256" not in newest + stable.partition("</ol>")[0]  # what differs anyway


def test_parameters_of_a_version_that_differ_have_fields_of_their_own(
    page_of: dict[str, str],
) -> None:
    form = page_of["generator.html"]
    assert 'id="p.torchrun@4.0.0.scratch_gb"' in form
    assert 'id="p.torchrun.scratch_gb"' not in form


def test_a_version_whose_files_were_changed_is_named_and_not_offered(
    place: Path, tmp_path: Path
) -> None:
    centre = tmp_path / "heron"
    shutil.copytree(place / "heron", centre)
    script = centre / "published" / "template" / "torchrun" / "3.3.0" / "torchrun" / "job.sbatch.j2"
    script.write_bytes(script.read_bytes() + b"# more\n")
    read = read_catalogue([centre], clusters=("generic",))
    (problem,) = read.problems
    assert (problem.kind, problem.name) == ("template", "torchrun 3.3.0")
    assert "job.sbatch.j2 was changed" in problem.why
    pages = Writing(read, "Zoo").pages()
    assert "damaged" in pages["templates/torchrun.html"]
    assert 'value="torchrun@3.3.0"' not in pages["generator.html"]
    assert 'value="torchrun@4.0.0"' in pages["generator.html"]


def test_a_centre_that_is_not_to_be_believed_shows_nothing_as_signed(
    place: Path, tmp_path: Path
) -> None:
    centre = tmp_path / "heron"
    shutil.copytree(place / "heron", centre)
    index = centre / "published" / "index"
    index.write_bytes(index.read_bytes().replace(b"alex@centre", b"kimm@centre", 1))
    read = read_catalogue([centre])
    assert read.released == []
    assert {problem.kind for problem in read.problems} == {"site", "template", "job"}
    assert 'class="badge signed"' not in Writing(read, "Zoo").pages()["index.html"]


def test_a_cluster_that_there_is_not_is_refused_by_its_nearest_name() -> None:
    with pytest.raises(NotFoundError, match="Did you mean 'osc-ascend'"):
        read_catalogue([], clusters=["osc-ascent"])


def test_the_centres_clusters_come_first_and_the_others_are_one_click_away() -> None:
    index = Writing(read_catalogue([], clusters=["osc-ascend", "osc-pitzer"]), "OSC").pages()
    own, others = index["index.html"].split('<details class="others">')
    assert own.count('<li class="card">') == 2
    assert "OSC Ascend" in own
    assert "OLCF Frontier" in others
    assert "OLCF Frontier" not in own
