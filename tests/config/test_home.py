"""A home directory that cannot be read, or that there is not, stops nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fsdpkit.config import assets
from fsdpkit.config.job_loading import load_job
from fsdpkit.config.trust import Item, forbidden, remembered


@contextmanager
def ordinary() -> Iterator[None]:
    """Root may read everything: as somebody else."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(61234)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory that anybody may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def closed_home(top: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    own = top / "home" / ".config" / "fsdpkit"
    own.mkdir(parents=True)
    (own / "defaults.toml").write_text('[resources]\naccount = "mine"\n')
    monkeypatch.delenv("FSDPKIT_CONFIG_DIR")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(top / "home"))
    assert load_job("check").spec.resources.account == "mine", "it is read while it can be"
    (top / "home").chmod(0)
    yield own
    (top / "home").chmod(0o700)


def test_what_cannot_be_read_is_left_out_and_said(closed_home: Path) -> None:
    with ordinary():
        assert load_job("check").spec.resources.account is None
        assert {layer.name for layer in assets.layers()} == {"packaged"}
        assert assets.available("template")
        assert remembered() == set()
        why = assets.why_not_read()
    assert why is not None
    assert why.startswith(f"{closed_home} cannot be read (Permission denied)")


def test_a_centre_still_says_what_is_allowed(
    closed_home: Path, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    centre = top / "centre"
    centre.mkdir()
    (centre / "trust.toml").write_text('schema = "fsdpkit.trust/1"\nmessage = "no"\njob = []\n')
    monkeypatch.setenv("FSDPKIT_SITE_PATH", str(centre))
    job = Item("job", "mine", top / "mine.toml", "0" * 64, {})
    with ordinary():
        assert [layer.dir for layer in assets.centre_layers()] == [centre]
        assert assets.layers()[-1].dir == centre
        assert forbidden([job]) == (job, "no")
