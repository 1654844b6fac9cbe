"""`python -m tests.packaging.release`: an sdist and a wheel, tried, in build/release, with their
digests, what they need (CycloneDX) and how they were made (SLSA provenance, not signed).

The wheel is made of the unpacked sdist, and tests/packaging/test_wheel.py runs on it. Nothing is
uploaded, and nothing is built of a tree with changes or of a version that CHANGELOG.md lacks.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.packaging.installation import ROOT
from tests.programs import ran

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OUT = ROOT / "build" / "release"
WHEEL_VARIABLE = "FSDPKIT_TEST_WHEEL"
"""The wheel that tests/packaging tries; unset, they build one."""


def version_of(root: Path) -> str:
    (found,) = re.findall(
        r'^__version__ = "([^"]+)"$', (root / "fsdpkit/__init__.py").read_text("utf-8"), re.M
    )
    return str(found)


def refusals(root: Path) -> Iterator[str]:
    """Why there can be no release of the tree."""
    asked = ["git", "status", "--porcelain"]
    changed = ran(asked, cwd=root, status=0).stdout
    if changed:
        yield f"not committed: {', '.join(line[3:] for line in changed.splitlines()[:5])}"
    version = version_of(root)
    if f"## {version}" not in (root / "CHANGELOG.md").read_text("utf-8").splitlines():
        yield f"CHANGELOG.md has no section `## {version}`, the version of fsdpkit/__init__.py"
    if f"version: {version}" not in (root / "CITATION.cff").read_text("utf-8").splitlines():
        yield f"CITATION.cff names another version than {version}"


def build(root: Path, out: Path) -> Path:
    """The wheel, beside the sdist that it was made of."""
    hatchling = [sys.executable, "-m", "hatchling", "build", "-d", str(out), "-t"]
    subprocess.run([*hatchling, "sdist"], cwd=root, check=True)
    (sdist,) = out.glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="fsdpkit-release-") as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        subprocess.run([*hatchling, "wheel"], cwd=unpacked, check=True)
    (wheel,) = out.glob("*.whl")
    return wheel


def digests(out: Path, names: Iterable[str]) -> dict[str, str]:
    """By file name, SHA-256 in hexadecimal digits."""
    return {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in sorted(names)}


def sums(found: dict[str, str]) -> str:
    """For `sha256sum --check`."""
    return "".join(f"{digest}  {name}\n" for name, digest in found.items())


def provenance(root: Path, built: dict[str, str], began: datetime, ended: datetime) -> Any:
    """An in-toto statement (v1) with SLSA's provenance (v1) of the built files."""
    asked = ["git", "rev-parse", "HEAD"]
    commit = ran(asked, cwd=root, status=0).stdout
    lock = digests(root, ["locked.txt"])["locked.txt"]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": one}} for name, one in built.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:fsdpkit:make-release:1",
                "externalParameters": {"target": "release", "version": version_of(root)},
                "resolvedDependencies": [
                    {"uri": "urn:fsdpkit:source", "digest": {"gitCommit": commit.strip()}},
                    {"uri": "urn:fsdpkit:locked.txt", "digest": {"sha256": lock}},
                ],
            },
            "runDetails": {
                "builder": {
                    "id": "urn:fsdpkit:by-hand",
                    "version": {"hatchling": importlib.metadata.version("hatchling")},
                },
                "metadata": {"startedOn": in_utc(began), "finishedOn": in_utc(ended)},
            },
        },
    }


def in_utc(moment: datetime) -> str:
    """As in-toto and CycloneDX want it: RFC 3339 with a Z."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found
    return re.sub(r"[._]", "-", found[0].lower())


def locked(root: Path) -> list[tuple[str, str, str]]:
    """Name, version and the rest of each requirement in locked.txt."""
    one = r"^([A-Za-z0-9._-]+)==([^\s;]+)(.*?)(?=^[A-Za-z]|\Z)"
    found = re.findall(one, (root / "locked.txt").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [(name_of(name), version, rest) for name, version, rest in found]


def bill_of_materials(root: Path, built: dict[str, str], made: datetime) -> Any:
    """CycloneDX 1.6: the built files and what locked.txt has for them, with digests and what needs
    what. Whatever only builds has the scope `excluded`; torch and other extras are not listed."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    refs: dict[str, list[str]] = {}
    for name, version, _ in locked(root):
        refs.setdefault(name, []).append(f"pkg:pypi/{name}@{version}")
    ours = f"pkg:pypi/{project['name']}@{version_of(root)}"
    needs = {ours: _among(refs, project["dependencies"])}
    for name, versions in refs.items():
        needs |= dict.fromkeys(versions, _among(refs, _requirements(name)))
    reached = [ours]
    for ref in reached:
        reached += [needed for needed in needs[ref] if needed not in reached]
    components = [
        {
            **_component("library", name, f"pkg:pypi/{name}@{version}"),
            "scope": "required" if f"pkg:pypi/{name}@{version}" in reached else "excluded",
            "externalReferences": [
                _files(f"https://pypi.org/simple/{name}/", re.findall(r"sha256:(\w+)", rest))
            ],
        }
        for name, version, rest in locked(root)
    ]
    released = {
        **_component("application", project["name"], ours),
        "licenses": [{"license": {"id": project["license"]}}],
        "externalReferences": [_files(name, [digest]) for name, digest in built.items()],
    }
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": in_utc(made), "component": released},
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": needed} for ref, needed in needs.items()],
    }


def _requirements(name: str) -> list[str]:
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:  # of another Python
        return []


def _among(refs: dict[str, list[str]], requirements: Iterable[str]) -> list[str]:
    names = {name_of(text) for text in requirements if "extra ==" not in text}
    return [ref for name in sorted(names) for ref in refs.get(name, [])]


def _component(kind: str, name: str, ref: str) -> dict[str, Any]:
    version = ref.rpartition("@")[2]
    return {"bom-ref": ref, "type": kind, "name": name, "version": version, "purl": ref}


def _files(url: str, digests: list[str]) -> dict[str, Any]:
    hashes = [{"alg": "SHA-256", "content": digest} for digest in digests]
    return {"type": "distribution", "url": url, "hashes": hashes}


def main() -> int:
    if found := [*refusals(ROOT)]:
        print("\n".join(f"make release: {why}" for why in found), file=sys.stderr)
        return 1
    shutil.rmtree(OUT, ignore_errors=True)
    began = datetime.now(timezone.utc)
    wheel = build(ROOT, OUT)
    built = digests(OUT, [path.name for path in OUT.iterdir()])
    tests = [sys.executable, "-m", "pytest", "--quiet", "tests/packaging/test_wheel.py"]
    tried = subprocess.run(tests, cwd=ROOT, env={**os.environ, WHEEL_VARIABLE: str(wheel)})
    if tried.returncode:
        shutil.rmtree(OUT)
        return tried.returncode
    ended = datetime.now(timezone.utc)
    statements = {
        "provenance.json": provenance(ROOT, built, began, ended),
        "sbom.json": bill_of_materials(ROOT, built, ended),
    }
    for name, statement in statements.items():
        (OUT / name).write_text(json.dumps(statement, indent=2) + "\n", "utf-8")
    shutil.copy(ROOT / "locked.txt", OUT)
    listed = digests(OUT, [path.name for path in OUT.iterdir()])
    (OUT / "SHA256SUMS").write_text(sums(listed), "ascii")
    print(f"{OUT}: {', '.join(sorted(path.name for path in OUT.iterdir()))}; nothing is uploaded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
