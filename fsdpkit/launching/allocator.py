"""The CUDA allocator's setting for ranks: segments that grow, where the person has set none.

torch reads it when it is imported, which the agent does for its ranks: it has to stand in the
agent's environment before. Without it, batches of varying lengths leave gaps between blocks of
memory that no later batch fits into.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

from fsdpkit.launching.torch_release import installed_torch, release_of

SETTING = "expandable_segments:True"

_NAME = "PYTORCH_ALLOC_CONF"
_OLD_NAME = "PYTORCH_CUDA_ALLOC_CONF"  # newer releases read it, too
_OWN = (_NAME, _OLD_NAME, "PYTORCH_HIP_ALLOC_CONF")
_KNOWS_SETTING, _KNOWS_NAME = (2, 1), (2, 9)


def set_allocator(environ: MutableMapping[str, str], devices: Path = Path("/dev")) -> None:
    """Set it for what this process imports and starts, if there is an NVIDIA GPU for it here."""
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
