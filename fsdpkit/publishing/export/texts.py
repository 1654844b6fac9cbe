"""README and Appverse checklist of an export, which are for whoever installs it."""

from __future__ import annotations

from collections.abc import Sequence

import fsdpkit
from fsdpkit.publishing.export.parts import part
from fsdpkit.publishing.export.places import told
from fsdpkit.publishing.export.script import ExportedScript, shared_fields
from fsdpkit.publishing.export.shared_job import SHARED


def readme(exports: Sequence[ExportedScript], to: str, release: str) -> str:
    first = exports[0]
    manifest = first.template.manifest
    python = {field.label for exported in exports for field in exported.fields}
    kinds = {"Conda environment": "the conda environment that the job names"}
    kinds["Python environment"] = "the virtual environment that the job names"
    found = [words for label, words in kinds.items() if label in python]
    fixed = "".join(
        f"- `{name}`{_of(exported, exports)}: {_plain(why)}\n"
        for exported in exports
        for name, why in exported.fixed.items()
    )
    fixed = f"\n## What is not asked for\n\n{fixed}" if fixed else ""
    return part(
        "about.md",
        fsdpkit=fsdpkit.__version__,
        title=f"{first.spec.name} ({manifest.name})",
        description=_plain(manifest.description),
        name=manifest.name,
        to=to,
        version=manifest.version,
        sha256=first.template.sha256[:12],
        release=release,
        install=part(f"{to}.install.md").rstrip(),
        to_know=part(f"{to}.to-know.md").rstrip(),
        python=found[0] if found else "the job's container",
        clusters="\n".join(map(_cluster, exports)),
        rows="".join(
            f"| {_cell(name)} | {_cell(allowed)} |\n" for name, allowed in _asked(exports)
        ),
        fixed=fixed,
    )


def _of(exported: ExportedScript, exports: Sequence[ExportedScript]) -> str:
    return f" on {exported.portal}" if len(exports) > 1 else ""


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """One line without markup."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")


def _cluster(exported: ExportedScript) -> str:
    title = _plain(exported.site.profile.title)
    lines = [f"`{exported.portal}`: {title} (profile {exported.site.id})", ""]
    lines += [f"- {_plain(place.label)}: {told(place)}" for place in exported.places]
    lines += [f"- not offered: {_plain(why)}" for why in exported.left_out]
    told_of = dict.fromkeys(w for place in exported.places for w in place.placement.warnings)
    lines += [f"- to know: {_plain(warning)}" for warning in told_of]
    return "\n".join(lines) + "\n"


def checklist(exports: Sequence[ExportedScript], release: str) -> str:
    manifest = exports[0].template.manifest
    of_job = any(why.endswith(SHARED) for each in exports for why in each.fixed.values())
    return part(
        "checklist.md",
        paths=_JOBS_PATHS if of_job else _NO_PATHS,
        release=release,
        name=manifest.name,
        version=manifest.version,
    )


_NO_PATHS = "- [x] no path of a person or a project, no account, no e-mail address"
_JOBS_PATHS = (
    "- [x] no account, no e-mail address\n"
    "- [ ] every user can read the paths that came with the job (README.md, what is not asked for)"
)


def _asked(exports: Sequence[ExportedScript]) -> list[tuple[str, str]]:
    """What the form asks for, with what is allowed."""
    nodes = max(exported.most_nodes for exported in exports)
    needed = any(exported.site.profile.account.required for exported in exports)
    rows = [("Partition and GPUs", "one of the list")]
    rows.append(("Nodes", f"1 to {nodes}, as the cluster's list says"))
    most = max(exported.most_time for exported in exports)
    least = min(exported.place.least_time for exported in exports)
    rows.append((exports[0].unit.label, f"{least} to {most}, as the cluster's list says"))
    rows.append(("Account", "one of your own" if needed else "one of your own, or nothing"))
    return rows + [(f.label, f.allowed) for f in shared_fields(exports) if f.key != "gpus"]
