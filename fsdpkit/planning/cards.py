"""GPUs as `--gpu` and a site's profile name them, with their memory. No torch here."""

from __future__ import annotations

import re

import msgspec

from fsdpkit.config.gpu import Capability, parse_capability
from fsdpkit.config.gpu_models import GPU_MODELS
from fsdpkit.config.profile import NodeType
from fsdpkit.errors import ConfigError, UsageError

MIB, GB = 2**20, 10**9
_FOLLOWED_BY = r"(?![a-z0-9])"


class Card(msgspec.Struct, frozen=True):
    """`memory` in bytes; `known`: it is in the table, and not only somebody's number."""

    name: str
    memory: int
    capability: Capability | None = None
    known: bool = True
    network_gbit_s: float | None = None
    """Of a node's links, where a site's profile has the card."""


CARDS = tuple(
    Card(f"{model.name.split()[0]}-{size}", mib * MIB, model.capability)
    for model in GPU_MODELS
    for size, mib in model.cards
)


def card_named(text: str) -> Card:
    """`--gpu`: a name of the table, part of one that fits one only, or a memory such as "80" or
    "24GB". Raises UsageError."""
    words = text.strip().lower().replace(" ", "-").replace("_", "-")
    if size := re.fullmatch(r"(\d{1,4}(?:\.\d+)?)-?(?:g|gb|gib)?", words):
        return Card(f"{size[1]} GB", _bytes(float(size[1])), known=False)
    bare = re.sub(r"(\d)-?(?:gb|gib|g)$", r"\1", words)
    exact = [card for card in CARDS if card.name.lower() == bare]
    found = exact or [card for card in CARDS if card.name.lower().split("-")[0] == bare]
    if len(found) == 1:
        return found[0]
    if found:
        names = " or ".join(card.name.lower() for card in found)
        raise UsageError(f"--gpu {text}: there are several of them: {names}")
    from difflib import get_close_matches  # only to explain a mistake

    near = get_close_matches(bare, [card.name.lower() for card in CARDS], 3)
    known = ", ".join(card.name.lower() for card in CARDS)
    raise UsageError(
        f"--gpu {text[:60]}: not a GPU that fsdpkit knows "
        f"({'did you mean ' + ' or '.join(near) if near else known}); "
        "or give its memory in GB, such as --gpu 48"
    )


def card_of(node: NodeType, where: str) -> Card:
    """The GPU of a site's node type. Raises ConfigError where the profile does not say its memory;
    `where` names the site."""
    if node.gpu_memory_gb is None:
        raise ConfigError(
            f"{where} does not say how much memory its GPUs have: name one with --gpu, such as "
            "--gpu h100-80 or --gpu 80"
        )
    title = (node.gpu or "").lower()
    for card in CARDS:
        model, _, size = card.name.lower().partition("-")
        if re.search(model + _FOLLOWED_BY, title) and float(size) == node.gpu_memory_gb:
            return msgspec.structs.replace(card, network_gbit_s=node.network_gbit_s)
    capability = parse_capability(node.compute_capability) if node.compute_capability else None
    name = node.gpu or f"{node.gpu_memory_gb:g} GB"
    return Card(name, _bytes(node.gpu_memory_gb), capability, False, node.network_gbit_s)


def _bytes(gigabytes: float) -> int:
    """Of a number whose unit nobody gave: the smaller one, so that a plan that fits does fit."""
    return round(gigabytes * GB)
