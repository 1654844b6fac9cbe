"""The CUDA allocator's setting for ranks: expandable segments, unless the user has set something.

torch reads it on import, and the agent imports torch for its ranks, so it must be in the agent's
environment before that. Without it, batches of varying length leave gaps between blocks of memory
into which no later batch fits.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

from fsdpkit.launching.torch_release import installed_torch, release_of

SETTING = "expandable_segments:True"

_NAME = "PYTORCH_ALLOC_CONF"
_OLD_NAME = "PYTORCH_CUDA_ALLOC_CONF"  # newer releases also read it
_OWN = (_NAME, _OLD_NAME, "PYTORCH_HIP_ALLOC_CONF")
_KNOWS_SETTING, _KNOWS_NAME = (2, 1), (2, 9)


def set_allocator(environ: MutableMapping[str, str], devices: Path = Path("/dev")) -> None:
    """Set it for what this process imports and starts, if there is an NVIDIA GPU here."""
    if any(name in environ for name in _OWN):
        return
    if environ.get("FSDPKIT_DEVICE", "gpu") not in ("gpu", "nvidia"):
        return
    if not any(devices.glob("nvidia[0-9]*")):
        return
    version = installed_torch()
    release = release_of(version) if version else None
    if release is not None and release >= _KNOWS_SETTING:
        environ[_NAME if release >= _KNOWS_NAME else _OLD_NAME] = SETTING
