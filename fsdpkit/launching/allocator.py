"""The CUDA allocator's setting for ranks: expandable segments, unless the user has set something.

torch reads it on import, and the agent imports torch for its ranks, so it must be in the agent's
environment before that. Without it, batches of varying length leave gaps between blocks of memory
into which no later batch fits.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

SETTING = "expandable_segments:True"

_NAME = "PYTORCH_ALLOC_CONF"
_OWN = (_NAME, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""torch reads all of them."""


def set_allocator(environ: MutableMapping[str, str], devices: Path = Path("/dev")) -> None:
    """Set it for what this process imports and starts, if there is an NVIDIA GPU here."""
    if any(name in environ for name in _OWN):
        return
    if environ.get("FSDPKIT_DEVICE", "gpu") not in ("gpu", "nvidia"):
        return
    if any(devices.glob("nvidia[0-9]*")):
        environ[_NAME] = SETTING
