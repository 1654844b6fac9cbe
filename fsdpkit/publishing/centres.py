"""`python -m fsdpkit.publishing.centres`: writes `docs/centres.md`, a table of the packaged
profiles: what is known of each cluster, as of when, and what is not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fsdpkit.config import assets
from fsdpkit.config.partition import NodeType, Partition
from fsdpkit.config.profile import SiteProfile, Source
from fsdpkit.config.site import load_site

_NO_CENTRE = ("generic", "local")
_HEAD = """\
# Clusters that come with a profile

Written by `python -m fsdpkit.publishing.centres` from the profiles in `site/profiles`, which are
what to change. A fact that stands here was read in the source named below it, on the date named
there; what is not known is not asked of Slurm. "Run there" says when fsdpkit last ran on that
cluster, as far as somebody has reported it. To use one: `fsdpkit submit --cluster NAME`. To hold
one against the cluster itself, on a login node: `fsdpkit site diff NAME`. More in
[profiles.md](profiles.md).

| name | cluster | GPU nodes | request for 4 GPUs per node | facts as of | run there |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole document."""
    profiles = {
        name: load_site(name).profile for name in assets.available("site") if name not in _NO_CENTRE
    }
    rows = "".join(_row(name, profile) for name, profile in profiles.items())
    parts = ["\n".join(_section(name, profile)) for name, profile in profiles.items()]
    return f"{_HEAD}{rows}\n" + "\n\n".join(parts) + "\n"


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _row(name: str, profile: SiteProfile) -> str:
    kinds = "; ".join(_nodes(kind) for kind in profile.node_types.values() if kind.gpus != 0)
    form = _request(profile)
    cells = (f"[{name}](#{name})", profile.title, kinds or "?", form, _as_of(profile.sources))
    return _cells(*cells, profile.verified or "no") + "\n"


def _nodes(kind: NodeType) -> str:
    count = f"{kind.nodes} x " if kind.nodes else ""
    gpus = "?" if kind.gpus is None else str(kind.gpus)
    return f"{count}{gpus} {kind.gpu or 'GPUs'}"


def _request(profile: SiteProfile) -> str:
    request = profile.gpu_request
    if request.form == "none":
        return "nodes alone"
    types = {kind.gpu_type or request.type for kind in profile.node_types.values()} or {None}
    shown = "type:" if len(types) > 1 else next((f"{kind}:" for kind in types if kind), "")
    return f"`--{request.form}={'gpu:' if request.form == 'gres' else ''}{shown}4`"


def _as_of(sources: list[Source]) -> str:
    """Of the document where it says so, else of the day it was read."""
    dates = sorted({one.dated or one.checked for one in sources if one.level != "vendor-docs"})
    return " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]])) or "?"


def _section(name: str, profile: SiteProfile) -> Iterator[str]:
    yield f'<a id="{name}"></a>'
    yield f"## {profile.title}"
    yield ""
    if profile.partitions:
        yield _cells("partition", "request", "node type", "limits of a job", "automatic")
        yield "|---|---|---|---|---|"
        for key, partition in profile.partitions.items():
            yield _cells(
                f"`{key}`",
                _requested(partition.directives(key)),
                partition.node_type or "?",
                "; ".join(limits_of(partition)) or "?",
                "yes" if partition.automatic else "no",
            )
        yield ""
    for source in profile.sources:
        dated = f"of {source.dated}, " if source.dated else ""
        yield f"- {source.what} ({source.level}, {dated}read {source.checked})"
    if profile.unknown:
        yield ""
        yield f"Not known: {'; '.join(profile.unknown)}."


def _requested(select: dict[str, str]) -> str:
    return " ".join(f"`--{key}={value}`" for key, value in select.items()) or "nothing"


def limits_of(partition: Partition) -> Iterator[str]:
    """What a partition allows, in a few words each."""
    by_nodes = [f"{one.time} up to {one.nodes} nodes" for one in partition.max_time_by_nodes]
    facts = (
        (partition.min_nodes, "at least {} nodes"),
        (partition.max_nodes, "{} nodes"),
        (partition.max_time, "{}"),
        (partition.max_time_multinode, "{} on several nodes"),
        (", ".join(by_nodes), "{}"),
        (partition.max_node_hours, "{:g} node-hours"),
        (partition.min_gpus or None, "at least {} GPUs per node"),
        (partition.min_gpus_per_job, "at least {} GPUs"),
        (partition.max_gpus_per_job, "{} GPUs"),
        (partition.max_gpus_per_user, "{} GPUs of a person's"),
        (partition.max_gpus_per_account, "{} GPUs of a project's"),
        (partition.max_nodes_per_user, "{} nodes of a person's"),
        (partition.max_jobs_per_user, "{} jobs of a person's"),
    )
    for value, text in facts:
        if value:
            yield text.format(value)
    if partition.whole_nodes is not None:
        yield (
            "whole nodes"
            if partition.whole_nodes != "required-multinode"
            else ("whole nodes if several")
        )


def document() -> Path:
    return assets.packaged_dir() / "docs" / "centres.md"


def main() -> None:
    for name in ("FSDPKIT_SITE_PATH", "XDG_CONFIG_HOME"):
        os.environ.pop(name, None)
    os.environ["FSDPKIT_CONFIG_DIR"] = os.devnull  # nobody's own profiles
    document().write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
