"""Keys of a newer release are named, not refused."""

from __future__ import annotations

import pytest

import fsdpkit
from fsdpkit.config.key_changes import release_of
from fsdpkit.config.site import load_site
from fsdpkit.errors import ConfigError
from tests.programs import Write

SITE = 'schema = "fsdpkit.site/1"\ntitle = "T"\n'
NEWER = "comet = true\n[policy]\norbit = 3\nrequeue = true\n[node_types.gpu]\ntail = 1\n"


def test_a_profile_for_a_newer_release_is_used_without_what_that_brought(
    user_file: Write,
) -> None:
    path = user_file("site/profiles/new.toml", SITE + 'requires = "99.1"\n' + NEWER)
    for site in (load_site("new"), load_site(str(path))):
        assert site.profile.policy.requeue is True
        (warning,) = site.layered.warnings
        assert all(key in warning for key in ("comet", "policy.orbit", "node_types.gpu.tail"))
        assert "99.1" in warning
        assert fsdpkit.__version__ in warning


@pytest.mark.parametrize("requires", ["", f'requires = "{fsdpkit.__version__}"\n'])
def test_a_key_that_no_newer_release_explains_is_refused(user_file: Write, requires: str) -> None:
    user_file("site/profiles/new.toml", SITE + requires + NEWER)
    with pytest.raises(ConfigError, match=r"comet|orbit|tail"):
        load_site("new")


def test_what_a_newer_profile_says_wrongly_is_still_refused(user_file: Write) -> None:
    user_file("site/profiles/new.toml", SITE + 'requires = "99"\n[policy]\nwarning_s = 1\n')
    with pytest.raises(ConfigError, match=r"policy\.warning_s"):
        load_site("new")


def test_releases_compare_as_numbers() -> None:
    assert release_of("0.2") == release_of("0.2.0") < release_of("0.10.0rc1") < release_of("1")
