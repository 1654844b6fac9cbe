"""The packaged profiles: a job of two nodes goes at every centre, or a rule of that centre refuses
it; what a profile lacks it lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.config.site import load_site
from tests.config.test_site import CENTRES
from tests.publishing.called import Call

REFUSED_BY = {
    "csc-roihu": ("gpumedium", "8 GPUs asked in all, a job may have at most 4"),
    "osc-pitzer": ("gpu-quad", "2 nodes asked, at most 1 allowed"),
    "tacc-lonestar6": ("gpu-a100", "4 GPUs per node asked, a node has 3"),
    "tacc-vista": ("gh", "4 GPUs per node asked, a node has 1"),
}
"""Of each centre that does not take two nodes of four GPUs: the partition and its rule."""


@pytest.mark.parametrize("name", CENTRES)
def test_two_nodes_of_four_gpus_render_or_are_refused_by_the_centre_s_rule(
    name: str, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    account = load_site(name).profile.account.example or "project_1"
    words = ("--nodes", "2", "--gpus", "4", "train.py", "--dry-run", "--account", account)
    result = call("submit", *words, "--cluster", name)
    if name in REFUSED_BY:
        partition, rule = REFUSED_BY[name]
        (line,) = (s for s in str(result.exception).splitlines() if s.strip().startswith(partition))
        assert rule in line
    else:
        assert result.exit_code == 0
        assert "#SBATCH --nodes=2\n" in result.stdout


@pytest.mark.parametrize("name", CENTRES)
def test_cores_memory_and_limits_are_in_a_profile_or_in_its_list_of_what_is_unknown(
    name: str,
) -> None:
    profile = load_site(name).profile
    said = " ".join(profile.unknown)
    for key, node in profile.node_types.items():
        for what, word in ((node.cpus, "cores"), (node.memory_mb, "memory"), (node.gpus, "GPUs")):
            assert what is not None or word in said, (key, word)
        assert node.network_gbit_s or "links" in said or "what joins the nodes" in said, key
    for key, partition in profile.partitions.items():
        for nodes in (1, 2):
            assert partition.max_time_s(nodes) is not None or "time" in said, key
