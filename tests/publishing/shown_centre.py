"""A centre as its users would find it: two clusters, a template that was released five times, jobs
of its own, all signed. The pictures in the documentation and the tests in a browser show it.

Its people, projects and machines are made up; its template is the packaged one with the changes
that a centre would make.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from fsdpkit.config import assets
from tests.publishing.centres import ALEX, KIM, line_of, make_key, typed

NAME = "Heron Research Computing"
_FOLDER = Path(__file__).parent / "folders" / "shown"
"""Profiles and jobs, as its administrators wrote them."""

_SCRIPT = """import sys
from fsdpkit.config.training.settings import TrainingSettings

print(TrainingSettings, sys.argv)
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
    shutil.copytree(_FOLDER, top / "drafts" / "folder")
    _write(top / "drafts" / "folder" / "jobs" / "pretrain.py", _SCRIPT)
    _write(top / "drafts" / "folder" / "jobs" / "train_vit.py", "print('epoch 0')\n")
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
