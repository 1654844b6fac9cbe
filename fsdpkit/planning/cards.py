"""GPUs as `--gpu` and a site's profile name them, with their memory. No torch here."""

from __future__ import annotations

import re

import msgspec

from fsdpkit.config.gpu import Capability, parse_capability
from fsdpkit.config.gpu_models import GPU_MODELS, ONLY_BY_SIZE, GpuModel, gpu_models
from fsdpkit.config.profile import NodeType
from fsdpkit.errors import ConfigError, UsageError

MIB, GB = 2**20, 10**9


class Card(msgspec.Struct, frozen=True):
    """`memory` in bytes; `known`: it is in the table, and not only somebody's number."""

    name: str
    memory: int
    capability: Capability | None = None
    known: bool = True
    network_gbit_s: float | None = None
    """Of a node's links, where a site's profile has the card."""
    job_memory_mb: int | None = None
    """Host memory that the job gets of a node, as far as the profile tells."""


def _card(model: GpuModel, network_gbit_s: float | None = None) -> Card:
    memory = model.memory_mib * MIB
    return Card(model.name, memory, model.capability, network_gbit_s=network_gbit_s)


CARDS = tuple(_card(row) for row in GPU_MODELS if row.rates and row.name not in ONLY_BY_SIZE)
"""What a plan may suggest."""


def card_named(text: str) -> Card:
    """`--gpu`: a GPU by any of its names, or a memory such as "80" or "24GB". Raises UsageError."""
    words = text.strip().lower()
    if size := re.fullmatch(r"(\d{1,3}(?:\.\d+)?)[-_ ]?(?:g|gb|gib)?", words):
        return Card(f"{size[1]} GB", _bytes(float(size[1])), known=False)
    found = gpu_models(words, typed=True)
    if len(found) == 1:
        return _card(found[0])
    if found:
        names = " or ".join(row.name.lower() for row in found)
        raise UsageError(f"--gpu {text}: there are several of them: {names}")
    from difflib import get_close_matches  # only to explain a mistake

    known = [row.name.lower() for row in GPU_MODELS]
    near = get_close_matches(words.replace(" ", "-").replace("_", "-"), known, 3)
    near = near or list(dict.fromkeys(name.rsplit("-", 1)[0] for name in known))
    raise UsageError(
        f"--gpu {text[:60]}: not a GPU that fsdpkit knows ({', '.join(near)}); or give its memory "
        "in GB, such as --gpu 48"
    )


def card_of(node: NodeType, where: str) -> Card:
    """The GPU of a site's node type. Raises ConfigError where neither the profile says its memory
    nor its name; `where` names the site."""
    title, size = node.gpu or node.gpu_type or "", node.gpu_memory_gb
    found = gpu_models(title if size is None else f"{title} {size:g}GB")
    rows = [row for row in found if size is None or row.has_size(size)]
    if len(rows) == 1:
        return _card(rows[0], node.network_gbit_s)
    if size is None:
        raise ConfigError(
            f"{where} does not say how much memory its GPUs have: name one with --gpu, such as "
            "--gpu h100-80 or --gpu 80"
        )
    capability = parse_capability(node.compute_capability) if node.compute_capability else None
    return Card(title or f"{size:g} GB", _bytes(size), capability, False, node.network_gbit_s)


def _bytes(gigabytes: float) -> int:
    """Of a number whose unit nobody gave: the smaller one, so that a plan that fits does fit."""
    return round(gigabytes * GB)
