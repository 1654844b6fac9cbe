"""What a centre signed, on its pages: the same script, though a page verifies nothing."""

from __future__ import annotations

import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fsdpkit.cli import in_page
from fsdpkit.config.surroundings import of_this_process
from fsdpkit.publishing.catalogue.bundle import folder, modules_zip
from tests.programs import ran
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
    asked = in_page.PageRequest(words=words, surroundings=here, centres=[place])
    files = in_page.CatalogueFiles({"centre0": folder(page.dir)})
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


def test_a_question_whose_files_found_no_room_harms_none_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    asked = in_page.PageRequest([], replace(of_this_process(), work_dir=str(work)), [], {})
    files, full = in_page.CatalogueFiles({}), Path.write_bytes

    def half(path: Path, content: bytes) -> int:
        full(path, content[:1])
        raise OSError(28, "No space left on device")

    more = msgspec.structs.replace(asked, files={str(work / "deep" / "a.py"): "a"})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", half)
        with pytest.raises(OSError, match="No space left"):
            files.lay(more)
    files.lay(asked)
    assert [*work.iterdir()] == []


def test_what_was_laid_for_one_question_is_not_there_for_the_next(tmp_path: Path) -> None:
    """But what the catalogue has lies there again, where the person's own file was put over it."""
    here, place = of_this_process(), tmp_path / "centre"
    job, own = place / "jobs" / "a.toml", tmp_path / "home" / "work" / "train.py"
    files = in_page.CatalogueFiles({"centre0": {"jobs/a.toml": b"theirs"}})

    def lay(work_dir: Path, more: dict[str, str], centre: Path = place) -> None:
        said = replace(here, work_dir=str(work_dir))
        files.lay(in_page.PageRequest([], said, [str(centre)], more))

    lay(own.parent, {str(own): "", str(job): "mine"})
    assert (job.read_bytes(), own.exists()) == (b"mine", True)
    lay(tmp_path / "elsewhere", {})
    assert job.read_bytes() == b"theirs"
    assert not own.parent.parent.exists()
    assert (tmp_path / "elsewhere").is_dir()
    lay(tmp_path / "elsewhere", {}, tmp_path / "moved")
    assert not place.exists()
    assert (tmp_path / "moved" / "jobs" / "a.toml").read_bytes() == b"theirs"
    files.take_away()
    assert [*tmp_path.iterdir()] == []


ASKED_ALONE = (
    ("t5", "--cluster", "local"),
    ("t5", "--cluster", "local", "--nodes", "900", "--gpus", "8"),
    ("t5", "--cluster", "generic", "--nodes", "2", "--gpus", "4"),
    ("t5", "--cluster", "osc-cardinal", "--account", "PAS2136"),
    ("t5", "--cluster", "osc-cardinal", "--account", "PAS2136", "--nodes", "9000"),
    ("t5", "--cluster", "generic", "--set", "training.sharding.strategy=none"),
    ("nobody", "--cluster", "generic"),
)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a page's Python has tomllib")
def test_the_modules_of_a_page_answer_without_any_other(tmp_path: Path) -> None:
    """A profile of each kind, refusals too: what is imported late is in the archive as well."""
    (tmp_path / "modules.zip").write_bytes(modules_zip())
    (tmp_path / "extracted").mkdir()
    with zipfile.ZipFile(tmp_path / "modules.zip") as archive:
        archive.extractall(tmp_path / "extracted")
    assert msgspec.__file__ is not None
    (tmp_path / "extracted" / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    here = replace(of_this_process(), work_dir=str(tmp_path / "work"))
    asked = [
        msgspec.json.encode(in_page.PageRequest([*words], here, [])).decode()
        for words in ASKED_ALONE
    ]
    program = (
        f"import json, sys; sys.path.insert(0, {str(tmp_path / 'extracted')!r})\n"
        "from fsdpkit.cli import in_page\n"
        "files = in_page.CatalogueFiles({})\n"
        "print(json.dumps([in_page.answer(each, files) for each in json.load(sys.stdin)]))\n"
    )
    alone = ran([sys.executable, "-I", "-S", "-c", program], input=json.dumps(asked), status=0)
    expected = [in_page.answer(each, in_page.CatalogueFiles({})) for each in asked]
    assert json.loads(alone.stdout) == expected
    statuses = [msgspec.json.decode(each)["status"] for each in expected]
    assert statuses.count(0) == 3


def test_a_defect_is_an_answer_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(words: list[str]) -> None:
        raise ModuleNotFoundError("No module named 'left_out'")

    monkeypatch.setattr(in_page, "dry_run", broken)
    asked = in_page.PageRequest(["t5"], of_this_process(), [])
    told = in_page.answer(msgspec.json.encode(asked).decode(), in_page.CatalogueFiles({}))
    found = msgspec.json.decode(told, type=in_page.Answered)
    assert (found.status, found.out) == (70, "")
    assert "left_out" in found.err
