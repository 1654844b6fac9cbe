"""Profiles: found, layered, recognised, and never guessed."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.config import assets
from fsdpkit.config.site import choose_site, load_site
from fsdpkit.errors import ConfigError, NotFoundError
from tests.programs import Write

TOP = 'schema = "fsdpkit.site/1"\ntitle = "T"\n'


@pytest.fixture
def slurm_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this machine look like a login node with sbatch."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "sbatch").write_text("#!/bin/sh\n")
    (bin_dir / "sbatch").chmod(0o755)

    def become(host: str = "login.example.org", **variables: str) -> None:
        monkeypatch.setenv("PATH", f"{bin_dir}:{os.environ['PATH']}")
        monkeypatch.delenv("CLUSTER", raising=False)
        monkeypatch.setattr(socket, "gethostname", lambda: host.partition(".")[0])
        monkeypatch.setattr(socket, "getfqdn", lambda: host)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return become


def test_an_unknown_site_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(NotFoundError, match=r"'osc-asend'\. Did you mean 'osc-ascend'"):
        load_site("osc-asend")


def test_a_persons_profile_changes_one_key_of_the_packaged_one(user_file: Write) -> None:
    user_file("site/profiles/osc/ascend.toml", "[partitions.quad]\nmax_nodes = 6\n")
    partition = load_site("osc-ascend").profile.partitions["quad"]
    assert (partition.max_nodes, partition.node_type) == (6, "quad")


def test_nearer_layers_win(user_file: Write, centre_file: Write) -> None:
    centre_file("site/profiles/generic.toml", "title = 'centre'\ncontact = 'help@centre'\n")
    user_file("site/profiles/generic.toml", "title = 'mine'\n")
    profile = load_site("generic").profile
    assert (profile.title, profile.contact) == ("mine", "help@centre")


def test_without_slurm_it_is_the_local_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    site, why = choose_site(None)
    assert (site.id, why) == ("local", "no sbatch on this machine")


def test_a_login_node_is_recognised_by_its_variable_first(
    slurm_machine: Callable[..., None],
) -> None:
    slurm_machine("pitzer-login01.hpc.osc.edu", CLUSTER="ascend")
    site, why = choose_site(None)
    assert (site.id, why) == ("osc-ascend", "recognised by its environment variables")


@pytest.mark.parametrize("cluster", ["ascend", "cardinal", "pitzer"])
def test_a_login_node_is_recognised_by_its_name(
    cluster: str, slurm_machine: Callable[..., None]
) -> None:
    slurm_machine(f"{cluster}-login03.hpc.osc.edu")
    site, why = choose_site(None)
    assert (site.id, why) == (f"osc-{cluster}", "recognised by its host name")


def test_an_unknown_machine_with_slurm_is_generic(slurm_machine: Callable[..., None]) -> None:
    slurm_machine("ascend-login03.hpc.osc.edu.evil.org", CLUSTER="Ascend")
    assert choose_site(None)[0].id == "generic"


def test_the_persons_word_wins(
    slurm_machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_machine(CLUSTER="ascend")
    monkeypatch.setenv("FSDPKIT_CLUSTER", "osc-pitzer")
    assert choose_site(None)[0].id == "osc-pitzer"
    assert choose_site("osc-cardinal")[0].id == "osc-cardinal"


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (
            "environment.variables.WANDB_API_KEY",
            '[environment.variables]\nWANDB_API_KEY = "a1b2c3"',
        ),
        ("network.env.PROXY", '[network.env]\nPROXY = "http://me:secret@proxy.example.org"'),
    ],
)
def test_a_profile_with_a_secret_is_refused_and_the_secret_not_shown(
    tmp_path: Path, key: str, line: str
) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text(f"{TOP}{line}\n")
    with pytest.raises(ConfigError) as refused:
        load_site(str(profile))
    told = str(refused.value)
    assert told.startswith(f"site mine: {key} (")
    assert "environment.pass" in told
    assert not any(secret in told for secret in ("a1b2c3", "me:secret"))


def test_no_profile_recognises_a_login_node_or_variable_of_another() -> None:
    profiles = {name: load_site(name).profile.identify for name in assets.available("site")}
    examples = [(name, host) for name, one in profiles.items() for host in one.examples]
    assert examples
    for owner, host in examples:
        for name in (host, host.partition(".")[0]):
            claimed = [
                n for n, p in profiles.items() if p.hostname and re.fullmatch(p.hostname, name)
            ]
            assert claimed in ([owner], []), name
    assert all(one.examples for one in profiles.values() if one.hostname)
    variables = [pair for one in profiles.values() for pair in one.env.items()]
    assert len(variables) == len(set(variables))


CENTRES = [name for name in assets.available("site") if name not in ("generic", "local")]


@pytest.mark.parametrize("name", CENTRES)
def test_a_centre_s_profile_names_its_sources_and_what_is_not_known(name: str) -> None:
    profile = load_site(name).profile
    assert profile.sources
    assert profile.unknown
    assert profile.verified is None, "no profile claims a run that has not happened"
