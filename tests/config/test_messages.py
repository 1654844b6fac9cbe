"""Every wrong value is answered with the file, the key, what is allowed, and the nearest word."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.config.job_loading import load_job
from fsdpkit.config.site import load_site
from fsdpkit.errors import ConfigError
from tests.programs import Write
from tests.rows import pairs

JobFile = Callable[[str], str]

HERE = Path(__file__).parent
SETS = {
    **dict(pairs(HERE / "messages_of_set.txt")),
    "description=" + "x" * 10_000: "10000 characters; at most 4096 are allowed",
    "training.steps=" + "9" * 5000: "out of range",
}


@pytest.mark.parametrize(("assignment", "message"), SETS.items(), ids=[k[:40] for k in SETS])
def test_set_says_what_is_allowed(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        load_job(sets=[assignment])
    assert "--set" in str(refused.value)
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", str(refused.value))


FILES = {
    "[training.model]\npresett = 'x'": (
        "training.model.presett (mine.toml)",
        "there is no key 'presett' in [training.model]. Did you mean 'preset'?",
    ),
    "[training.model]\npreset = 3": ("training.model.preset (mine.toml)", "must be one of tiny-"),
    "[training]\nsteps = 'many'": (
        "training.steps (mine.toml)",
        "must be a whole number, not 'many' "
        "(Maximum number of optimizer steps; 0: as many as `epochs` needs, else 100)",
    ),
    "[training]\ngrad_clip = nan": ("training.grad_clip (mine.toml)", "nan is not a number"),
    "[environment]\nconda = 'a'\nvenv = 'b'": (
        "environment.venv (mine.toml)",
        "conda is set as well; keep the one that has torch",
    ),
    "[environment]\nconda = ''": ("environment.conda (mine.toml)", "must not be empty"),
    "[environment]\nmodules = ['a', 3]": (
        "environment.modules[1] (mine.toml)",
        "must be text, not 3",
    ),
    "[environment.variables]\nA = 3": ("environment.variables.A (mine.toml)", "must be text"),
    "[environment.variables]\n'A B' = '3'": ("environment.variables.A B", "this name must match"),
    '"na\\nme" = 1': ("resources (mine.toml)", "control character"),
    "[[args]]\nx = 1": ("args[0] (mine.toml)", "must be text, not a table"),
}


@pytest.mark.parametrize(("text", "wanted"), FILES.items(), ids=[repr(k[:30]) for k in FILES])
def test_a_file_is_named_with_its_key(
    text: str, wanted: tuple[str, str], job_file: JobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(job_file(text)).parent)
    with pytest.raises(ConfigError) as refused:
        load_job("mine.toml")
    where, why = wanted
    assert str(refused.value).startswith("job mine.toml: ")
    assert where in str(refused.value)
    assert why in str(refused.value)


BROKEN = {
    "x = ": "is not valid TOML: Invalid value (at",
    "x = 1\nx = 2": "is not valid TOML: Cannot overwrite a value",
    "x = " + "9" * 5000: "is not valid TOML",
    "x = " + "[" * 5000: "too deep to read",
    ".".join("a" * 30) + " = 1": "tables in tables",
    "#" * 1_000_001: "more than 1000000 bytes",
}


@pytest.mark.parametrize(("text", "why"), BROKEN.items(), ids=[k[:20] for k in BROKEN])
def test_a_broken_file_is_refused(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(why)) as refused:
        load_job(str(path))
    assert str(path) in str(refused.value)


PROFILES = dict(pairs(HERE / "messages_of_profiles.txt"))


@pytest.mark.parametrize(("text", "why"), PROFILES.items(), ids=[repr(k[:40]) for k in PROFILES])
def test_a_profile_is_checked_as_a_whole(text: str, why: str, user_file: Write) -> None:
    top = 'schema = "fsdpkit.site/1"\ntitle = "Mine"\n'
    user_file("site/profiles/mine.toml", top + text)
    with pytest.raises(ConfigError, match=re.escape(why)):
        load_site("mine")
