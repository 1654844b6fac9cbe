"""A template is compiled once, and nothing but the template decides what is rendered."""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from jinja2 import Environment

from fsdpkit.config.surroundings import of_this_process, stand_in
from fsdpkit.rendering.sandbox import sandbox_of
from fsdpkit.scheduling import compiled_templates as module
from fsdpkit.scheduling.compiled_templates import CompiledTemplates, compiled_templates
from tests.programs import Fsdpkit

DRY_RUN = ("submit", "--nodes", "2", "--gpus", "4", "--dry-run", "--cluster", "generic")
TEXT = b"#!/bin/bash\n{% if v %}\nX={{ v | sh }}\n{% endif %}\n"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "templates"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is compiled from here on."""
    found: list[str] = []
    real = Environment._compile

    def noting(self: Environment, source: str, filename: str) -> object:
        found.append(filename)
        return real(self, source, filename)

    monkeypatch.setattr(Environment, "_compile", noting)
    return found


def rendered(kept: Path, text: bytes = TEXT) -> str:
    return sandbox_of({"a": text}, CompiledTemplates(kept)).trace("a", {"v": "x y"}).script


def test_the_second_time_it_is_not_compiled(kept: Path, compiled: list[str]) -> None:
    assert rendered(kept) == rendered(kept) == "#!/bin/bash\nX='x y'\n"
    assert compiled == ["a"]
    (path,) = kept.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_changed_template_or_compiler_is_another(
    kept: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered(kept)
    assert rendered(kept, TEXT + b"true\n").endswith("true\n")
    monkeypatch.setattr("fsdpkit.__version__", "99.0.0")
    rendered(kept)
    assert compiled == ["a"] * 3


def test_a_dry_run_says_the_same_both_times(fsdpkit: Fsdpkit, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    first, again = (fsdpkit(*DRY_RUN, env=cache) for _ in range(2))
    assert first.returncode == again.returncode == 0
    assert first.stdout == again.stdout
    (path,) = (tmp_path / "fsdpkit" / "templates").iterdir()
    code = compile(
        "def root(context): yield 'kept'\ndebug_info = name = ''\nblocks = {}", "a", "exec"
    )
    path.write_bytes(_whole(marshal.dumps(code)))
    assert "no shebang" in fsdpkit(*DRY_RUN, env=cache).stderr  # it is what is kept that runs


def _whole(content: bytes) -> bytes:
    return sha256(content).digest() + content


def _link(path: Path) -> None:
    os.replace(path, path.with_suffix(".there"))
    path.symlink_to(path.with_suffix(".there"))


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "no code": lambda path: path.write_bytes(_whole(marshal.dumps(1))),
    "noise": lambda path: path.write_bytes(os.urandom(4096)),
    "others may write it": lambda path: path.chmod(0o666),
    "others may replace it": lambda path: path.parent.chmod(0o777),
    "a link": _link,
    "a pipe": _pipe,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_cannot_be_trusted_is_compiled_anew(
    damage: str, kept: Path, compiled: list[str]
) -> None:
    rendered(kept)
    DAMAGES[damage](next(kept.iterdir()))
    assert rendered(kept) == "#!/bin/bash\nX='x y'\n"
    assert compiled == ["a", "a"]


def test_without_a_place_to_keep_it_all_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", Path("/proc/nowhere")):
        assert rendered(place / "templates") == "#!/bin/bash\nX='x y'\n"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled_templates() is not None
    with stand_in(of_this_process()):
        assert compiled_templates() is None


def test_only_some_are_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 3)
    for number in range(6):
        rendered(kept, f"#!/bin/bash\necho {number}\n".encode())
    assert len(list(kept.iterdir())) == 3
