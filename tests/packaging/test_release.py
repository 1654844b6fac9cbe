"""A release is of what is committed and described; it can be cited, and its faults reported."""

from __future__ import annotations

import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from fsdpkit import __version__
from hatch_build import CommitHook
from tests.packaging.installation import ROOT
from tests.packaging.release import (
    bill_of_materials,
    digests,
    provenance,
    refusals,
    sums,
    version_of,
)

FORM = ROOT / ".github" / "ISSUE_TEMPLATE" / "run.yml"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A committed tree that could be released as 1.2."""
    (tmp_path / "fsdpkit").mkdir()
    (tmp_path / "fsdpkit" / "__init__.py").write_text('__version__ = "1.2"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 1.2\n\n- One.\n")
    (tmp_path / "CITATION.cff").write_text("version: 1.2\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(tmp_path)
    return tmp_path


def commit(tree: Path) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "add", "-A"], cwd=tree, check=True)
    subprocess.run(["git", *who, "commit", "-qm", "x"], cwd=tree, check=True)


def test_what_is_committed_and_described_can_be_released(tree: Path) -> None:
    assert [*refusals(tree)] == []


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.py"])
def test_a_tree_with_changes_is_refused(tree: Path, name: str) -> None:
    with (tree / name).open("a") as file:
        file.write("more\n")
    assert [*refusals(tree)] == [f"not committed: {name}"]


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CITATION.cff"])
def test_a_version_that_is_not_described_is_refused(tree: Path, name: str) -> None:
    text = (tree / name).read_text()
    (tree / name).write_text(text.replace("1.2", "1.20"))
    commit(tree)
    (told,) = refusals(tree)
    assert name in told
    assert "1.2" in told


def test_this_version_is_described() -> None:
    assert version_of(ROOT) == __version__
    assert [why for why in refusals(ROOT) if not why.startswith("not committed")] == []


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_files_that_a_page_installs_are_of_this_version(page: str) -> None:
    named = re.findall(r"fsdpkit-([0-9][^-\s]*)-py3", (ROOT / page).read_text(encoding="utf-8"))
    assert set(named) == {__version__}


def test_the_citation_has_what_its_schema_requires() -> None:
    """Citation File Format 1.2.0: these keys are required, an entity has a name, and `type` and
    `license` are of its lists."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0"
    assert cited["message"]
    assert cited["title"]
    assert all(author["name"] for author in cited["authors"])
    assert (cited["type"], cited["license"]) == ("software", "MIT")
    assert str(cited["version"]) == __version__
    assert len(set(cited["keywords"])) == len(cited["keywords"])


def test_an_issue_brings_the_diagnosis_and_no_secret() -> None:
    text = FORM.read_text(encoding="utf-8")
    fields = {one["id"]: one for one in yaml.safe_load(text)["body"] if "id" in one}
    assert "fsdpkit diagnose RUN --json" in fields["diagnosis"]["attributes"]["label"]
    assert re.search(r"No secrets.*tokens.*passwords", text, re.DOTALL)


def test_what_is_released_can_be_checked(tree: Path) -> None:
    (tree / "locked.txt").write_text("click==8\n")
    (tree / "a.whl").write_bytes(b"wheel")
    commit(tree)
    built = digests(tree, ["a.whl"])
    (tree / "SHA256SUMS").write_text(sums(built))
    checked = subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=tree, check=False)
    assert checked.returncode == 0
    moment = datetime(2026, 1, 2, tzinfo=timezone.utc)
    told = provenance(tree, built, moment, moment)
    assert told["subject"] == [{"name": "a.whl", "digest": {"sha256": built["a.whl"]}}]
    made_of = told["predicate"]["buildDefinition"]["resolvedDependencies"]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, capture_output=True, check=True)
    assert made_of[0]["digest"]["gitCommit"] == head.stdout.decode().strip()
    assert told["predicate"]["runDetails"]["metadata"]["startedOn"] == "2026-01-02T00:00:00Z"


def test_the_bill_of_materials_names_the_release_and_all_that_it_needs() -> None:
    """Validated by cyclonedx-python-lib against CycloneDX 1.6 when it was written."""
    wheel = f"fsdpkit-{__version__}-py3-none-any.whl"
    bill = bill_of_materials(ROOT, {wheel: "ab" * 32}, datetime.now(timezone.utc))
    ours = bill["metadata"]["component"]
    assert (ours["name"], ours["version"]) == ("fsdpkit", __version__)
    assert [(one["url"], one["hashes"][0]["content"]) for one in ours["externalReferences"]] == [
        (wheel, "ab" * 32)
    ]
    parts = {one["bom-ref"]: one for one in bill["components"]}
    assert len(parts) == len(bill["components"])
    assert all(one["externalReferences"][0]["hashes"] for one in parts.values())
    scopes = {one["name"]: one["scope"] for one in parts.values()}
    assert (scopes["markupsafe"], scopes["hatchling"]) == ("required", "excluded")
    needs = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert set(needs) == {ours["bom-ref"], *parts}
    assert [ref for refs in needs.values() for ref in refs if ref not in parts] == []
    assert any(ref.startswith("pkg:pypi/submitit@") for ref in needs[ours["bom-ref"]])


@pytest.mark.parametrize(("changed", "after"), [(False, "\n"), (True, "-dirty\n")])
def test_what_is_built_of_changed_files_says_so(tree: Path, changed: bool, after: str) -> None:
    if changed:
        (tree / "fsdpkit" / "new.py").write_text("")
    hook = CommitHook(str(tree), {}, None, None, "", "wheel")  # type: ignore[arg-type]
    data: dict[str, dict[str, str]] = {"force_include": {}}
    hook.initialize("standard", data)
    ((path, name),) = data["force_include"].items()
    assert name == "fsdpkit/commit.txt"
    assert re.fullmatch("[0-9a-f]{40}" + after, Path(path).read_text())
