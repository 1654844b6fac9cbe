"""What a centre signed, on its pages: the same script, though a page verifies nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdpkit.cli import in_page
from fsdpkit.config.surroundings import of_this_process
from fsdpkit.publishing.catalogue.bundle import folder
from tests.publishing.centres import Centre, submit


@pytest.fixture
def page(centre: Centre) -> Centre:
    """A centre with two versions for all, and one to be tested."""
    centre.publish_version("1.0.0")
    centre.publish_version("2.0.0")
    centre.publish_version("3.0.0", "--channel", "testing")
    return centre


def answered(page: Centre, template: str, tmp_path: Path) -> in_page.Answered:
    """The page's answer to what `submit` asks, its files laid out in a place of their own."""
    words = ["own.toml", "--cluster", "generic", "--set", f"template={template}"]
    place = str(tmp_path / "page" / "centre")
    here = of_this_process()
    here.variables["FSDPKIT_SITE_PATH"] = place
    asked = in_page.Asked(words=words, surroundings=here, centres=[place])
    files = in_page.Files({"centre0": folder(page.dir)})
    found = in_page.answer(msgspec.json.encode(asked).decode(), files)
    return msgspec.json.decode(found, type=in_page.Answered)


@pytest.mark.parametrize("template", ["small", "small@1", "small@testing", "small@9", "none"])
def test_a_page_writes_the_script_of_what_was_signed(
    page: Centre, template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = submit(template)
    monkeypatch.setenv("PATH", "/nonexistent")  # no ssh-keygen in a browser
    found = answered(page, template, tmp_path)
    there, here = str(tmp_path / "page" / "centre"), str(page.dir)
    assert found.status == expected.status
    if expected.status == 0:
        assert found.out.replace(there, here) == expected.out
    else:
        assert found.err.replace(there, here) == f"fsdpkit: {expected.err}\n"


def test_a_byte_that_changed_on_the_page_is_refused_there_too(page: Centre, tmp_path: Path) -> None:
    submit()  # writes the job
    script = page.version(version="2.0.0") / "small" / "job.sbatch.j2"
    script.write_bytes(script.read_bytes().replace(b"says", b"sayS", 1))
    found = answered(page, "small", tmp_path)
    assert (found.status, found.out) == (65, "")
    assert "job.sbatch.j2 was changed" in found.err


def test_history_and_lock_do_not_travel(page: Centre) -> None:
    tops = {Path(name).parts[1] for name in folder(page.dir) if name.startswith("published/")}
    assert tops == {"index", "template"}
