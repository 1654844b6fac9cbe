"""A centre as its users would find it: two clusters, a template that was released five times, jobs
of its own, all signed. The pictures in the documentation and the tests in a browser show it.

Its people, projects and machines are made up; its template is the packaged one with the changes
that a centre would make.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from fsdpkit.config import assets
from tests.publishing.centres import ALEX, KIM, line_of, make_key, typed

NAME = "Heron Research Computing"

_HERON = """
schema = "fsdpkit.site/1"
title = "Heron"
docs = "https://docs.heron.example/heron"
contact = "help@heron.example"
verified = "2026-10-02, Slurm 25.05"
unknown = ["whether compute nodes reach the internet", "bandwidth between racks"]
[[sources]]
what = "scontrol show partition, sinfo: fsdpkit site draft on login01"
checked = "2026-09-30"
level = "measured"
[[sources]]
what = "https://docs.heron.example/heron/limits"
checked = "2026-09-12"
dated = "2026-03-01"
level = "centre-docs"
[identify]
env = { CLUSTER = "heron" }
[slurm]
version = "25.05"
[account]
required = true
pattern = '''hrc\\d{4}'''
example = "hrc0042"
find = "sacctmgr -nP show assoc user=$USER format=account"
[node_types.h100]
gpus = 4
gpu = "NVIDIA H100 80 GB"
gpu_memory_gb = 80
compute_capability = "9.0"
vendor = "nvidia"
arch = "x86_64"
nodes = 96
cpus = 96
memory_mb = 1000000
[node_types.a100]
gpus = 8
gpu = "NVIDIA A100 40 GB"
gpu_memory_gb = 40
compute_capability = "8.0"
vendor = "nvidia"
arch = "x86_64"
nodes = 24
cpus = 128
memory_mb = 980000
[partitions.gpu]
node_type = "h100"
max_nodes = 32
max_time = "2-00:00:00"
[partitions.gpu-short]
node_type = "h100"
max_nodes = 4
max_time = "01:00:00"
[partitions.a100]
node_type = "a100"
max_nodes = 8
max_time = "3-00:00:00"
whole_nodes = "required-multinode"
[partitions.backfill]
node_type = "h100"
max_nodes = 96
max_time = "12:00:00"
automatic = false
preempt = "requeue"
[network]
fabric = "infiniband"
[container]
engine = "apptainer"
arguments = ["--nv"]
[storage]
notes = "/scratch is removed after 60 days; /work is kept, 10 TB a project."
"""
_EGRET = """
schema = "fsdpkit.site/1"
title = "Egret"
docs = "https://docs.heron.example/egret"
contact = "help@heron.example"
unknown = ["names of the network interfaces", "what happens to a job that must make way"]
[[sources]]
what = "Tender documents of the extension"
checked = "2024-02-11"
level = "third-party"
[identify]
env = { CLUSTER = "egret" }
[account]
required = true
pattern = '''hrc\\d{4}'''
example = "hrc0042"
[node_types.gh200]
gpus = 4
gpu = "NVIDIA GH200 96 GB"
gpu_memory_gb = 96
compute_capability = "9.0"
arch = "aarch64"
nodes = 40
cpus = 288
[partitions.all]
node_type = "gh200"
max_nodes = 16
max_time = "1-00:00:00"
[network]
fabric = "slingshot"
"""
_JOB = """
schema = "fsdpkit.job/1"
name = "pretrain"
entry = "pretrain.py"
description = "Pretrain T5 v1.1 Large on the centre's copy of C4, with checkpoints in /work."
[resources]
nodes = 4
gpus = 4
time = "12:00:00"
[training]
batch_size = 32
[training.model]
preset = "t5-v1.1-large"
[retry]
on_preemption = "requeue"
"""
_SCRIPT = """import sys
from fsdpkit.config.training.settings import TrainingSettings

print(TrainingSettings, sys.argv)
"""
_OWN_JOB = """
schema = "fsdpkit.job/1"
name = "train-vit"
description = "A vision transformer, as the summer school used it."
entry = "train_vit.py"
args = ["--epochs", "90"]
[resources]
nodes = 2
gpus = 4
time = "06:00:00"
"""
RELEASES = ("3.2.0", "3.3.0", "3.3.1", "3.4.0", "4.0.0")
WITHDRAWN, STABLE, TESTING = "3.3.1", "3.4.0", "4.0.0"
REASON = "jobs of one node waited ten minutes for a second one"
_DAY_S = 86_400.0
_FIRST_S = 1_788_000_000.0
"""When the first of its releases was published: 2026-08-29."""


def shown_centre(top: Path, reason: str = REASON) -> Path:
    """The folder `heron` below `top`, which publishes. reason: why a version was withdrawn."""
    centre = top / "heron"
    centre.mkdir()
    alex, kim = make_key(top / "alex"), make_key(top / "kim")
    (centre / "allowed_signers").write_text(line_of(alex, ALEX) + line_of(kim, KIM))
    for day, version in enumerate(RELEASES):
        draft = top / "drafts" / "torchrun"
        _draft(draft, version)
        channel = "testing" if version == TESTING else "stable"
        with _on_day(10 * day):
            _publish(draft, "--channel", channel, to=centre, key=alex)
            if version == WITHDRAWN:
                words = ("withdraw", f"torchrun@{WITHDRAWN}", "--reason", reason)
                _publish(*words, to=centre, key=kim)
    for name, text in {
        "site/profiles/hrc/heron.toml": _HERON,
        "site/profiles/hrc/egret.toml": _EGRET,
        "jobs/pretrain.toml": _JOB,
        "jobs/pretrain.py": _SCRIPT,
        "jobs/train-vit.toml": _OWN_JOB,
        "jobs/train_vit.py": "print('epoch 0')\n",
    }.items():
        _write(top / "drafts" / "folder" / name, text)
    with _on_day(60):
        _publish(top / "drafts" / "folder", to=centre, key=alex)
    return centre


def _publish(*words: str | Path, to: Path, key: Path) -> None:
    done = typed("publish", *words, "--to", to, "--key", key)
    assert done.status == 0, done.err


@contextmanager
def _on_day(day: int) -> Iterator[None]:
    """Signed at a date of its own; the key counts at any."""
    with patch.object(time, "time", lambda: _FIRST_S + day * _DAY_S):
        yield


def _draft(folder: Path, version: str) -> None:
    """The packaged template as the centre had it in this version."""
    packaged = assets.packaged_dir() / "templates" / "torchrun"
    manifest = (packaged / "template.toml").read_text()
    script = (packaged / "job.sbatch.j2").read_text()
    changed = _CHANGES[version]
    for old, new in changed.items():
        assert old in manifest + script, old
        manifest, script = manifest.replace(old, new), script.replace(old, new)
    manifest = re.sub(r'version = "[\d.]+"', f'version = "{version}"', manifest)
    _write(folder / "template.toml", manifest)
    _write(folder / "job.sbatch.j2", script)
    _write(folder / "README.md", _ABOUT)


_ABOUT = """# torchrun at Heron

For every job that starts with torchrun. Questions: help@heron.example, or the Tuesday hour.
"""
_BODY = "set -euo pipefail\n\nfail() {"
_SCRATCH = """set -euo pipefail
# Caches of Triton and torch.compile belong on the node's own disk, not in a home of 20 GB.
export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID

fail() {"""
_PARAMETER = """
[parameters.scratch_gb]
type = "int"
default = 20
minimum = 0
maximum = 2000
help = "Gigabytes that the job needs on each node's own disk."
"""
_LAST = (
    'help = "Check each node before training: address, port, GPUs, GPU memory in use, versions."\n'
)
_LONGER: Mapping[str, str] = {"default = 60\n": "default = 120\n"}
_CACHES: Mapping[str, str] = {_BODY: _SCRATCH}
_DEVICE = "FSDPKIT_DEVICE={{ device | sh }}\n"
_CHANGES: Mapping[str, Mapping[str, str]] = {
    "3.2.0": {"default = 60\n": "default = 30\n"},
    "3.3.0": {},
    "3.3.1": {"default = 60\n": "default = 600\n"},
    "3.4.0": {**_LONGER, **_CACHES},
    "4.0.0": {
        **_LONGER,
        **_CACHES,
        _DEVICE: _DEVICE + "SCRATCH_GB={{ parameters.scratch_gb | sh }}\n",
        _LAST: _LAST + _PARAMETER,
    },
}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """`python -m tests.publishing.shown_centre DIR`: make it there, to be looked at."""
    import sys

    os.environ.setdefault("FSDPKIT_STATE_DIR", f"{sys.argv[1]}/state")
    Path(sys.argv[1]).mkdir(parents=True)
    print(shown_centre(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
