"""What a login node shows of itself: interfaces, module system, container engines. Nothing is run;
compute nodes may differ, and whoever uses this says so.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fsdpkit.errors import SchedulerError
from fsdpkit.scheduling.answers import call

_HELP_LIMIT_S = 10.0


@dataclass(frozen=True)
class LoginNode:
    """One login node, as seen from a process on it."""

    host: str
    arch: str
    interfaces: tuple[str, ...]
    """All but the loopback."""
    adapters: tuple[tuple[str, str], ...]
    """Of /sys/class/infiniband, each with its link layer, such as InfiniBand or Ethernet."""
    modules: str | None
    """The module system and its version; None: no variable of one is set."""
    module_paths: tuple[str, ...]
    loaded_modules: tuple[str, ...]
    container: str | None
    """What runs containers: a command on PATH, or srun's plugin."""

    @property
    def fabric(self) -> str | None:
        """What joins the nodes, where the hardware says it without doubt."""
        if any(name.startswith("hsn") for name in self.interfaces):
            return "slingshot"
        if any(name.startswith("hfi1") for name, _ in self.adapters):
            return "omnipath"
        if any(layer == "InfiniBand" for _, layer in self.adapters):
            return "infiniband"
        return None


def see(sys: Path = Path("/sys"), environ: Mapping[str, str] = os.environ) -> LoginNode:
    """This machine; `sys` is where its kernel shows it."""
    interfaces = _names(sys / "class" / "net")
    adapters = [
        (name, _word(next(iter(sorted((path / "ports").glob("*/link_layer"))), None)))
        for name in _names(sys / "class" / "infiniband")
        for path in [sys / "class" / "infiniband" / name]
    ]
    engines = (name for name in ("apptainer", "singularity") if shutil.which(name))
    return LoginNode(
        host=host_name(),
        arch=platform.machine(),
        interfaces=tuple(name for name in interfaces if name != "lo"),
        adapters=tuple(adapters),
        modules=_module_system(environ),
        module_paths=tuple(p for p in environ.get("MODULEPATH", "").split(":") if p),
        loaded_modules=tuple(m for m in environ.get("LOADEDMODULES", "").split(":") if m),
        container=next(engines, None) or _container_plugin(),
    )


def _container_plugin() -> str | None:
    """pyxis, whose options srun lists among its own; it asks no slurmctld for that."""
    try:
        told = call(["srun", "--help"], _HELP_LIMIT_S).stdout
    except (SchedulerError, OSError, subprocess.TimeoutExpired):
        return None
    return "pyxis" if "--container-image" in told else None


def host_name() -> str:
    """With its domain; the short name where the name service calls it localhost."""
    name = socket.getfqdn()
    return socket.gethostname() if name.startswith("localhost") else name


def _module_system(environ: Mapping[str, str]) -> str | None:
    if version := environ.get("LMOD_VERSION"):
        return f"Lmod {version}"
    if environ.get("LMOD_CMD"):
        return "Lmod"
    if environ.get("MODULES_CMD") or environ.get("MODULESHOME"):
        return "environment-modules"
    return None


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _word(path: Path | None) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip() if path else ""
    except OSError:
        return ""
