"""README and Appverse checklist of an export, which are for whoever installs it."""

from __future__ import annotations

from collections.abc import Sequence

import fsdpkit
from fsdpkit.publishing.export.places import told
from fsdpkit.publishing.export.script import ExportedScript, shared_fields
from fsdpkit.publishing.export.shared_job import SHARED

_README = """\
# {title}

{description}

Made by `fsdpkit template export {name} --to {to}`, for {release}, from the template
{name} {version} (sha256 `{sha256}`).
Do not edit it here: change the template, and export it again.

## Install

{install}

Jobs need torch and fsdpkit {fsdpkit} in {python}, installed from a clone of it:
`pip install -c constraints.txt '.[gpu]'`.

## To know

{to_know}

## Clusters

{clusters}
## What is asked for

| field | allowed |
|---|---|
{rows}
A job with anything else in a field ends at once, before any of it is used: exit status 65, and the
job's log names the field and what is allowed. No field is read as shell code.
{fixed}
## After a job

Its run lies in `runs/` of the job's directory. `fsdpkit status`, `logs`, `diagnose` and `report`
read it there.
"""

_CHECKLIST = """\
# Appverse checklist

Before this app is offered on openondemand.connectci.org. What is ticked, the export has checked.

- [x] `manifest.yml` has a name and a description
- [x] the files follow the rules of {release}
{paths}
- [x] what a form says is checked before it is used, and never evaluated
- [ ] `README.md` says on which cluster it was tried, and whom to ask
- [ ] tried by a person who is no administrator
- [ ] screenshots of the form, and of a finished job
- [ ] a license file in the repository that holds this app
- [ ] a release tag, and the version in the Appverse entry: template {name} {version}
"""

INSTALL = {
    "ondemand": (
        "Copy this folder to `/var/www/ood/apps/sys/` of the web node, or to `~/ondemand/dev/` to\n"
        "try it. `cluster` in `form.yml` names a file of `/etc/ood/config/clusters.d/`."
    ),
    "open-composer": (
        "Copy this folder into Open Composer's `apps_dir`. It submits with `--export=NONE`, from\n"
        "the directory that the form calls script location."
    ),
}

TO_KNOW = {
    "ondemand": """\
- Fields follow the choice of a partition only where `bc_dynamic_js: true` stands in a file of
  `/etc/ood/config/ondemand.d/`; without it the form lists the partitions of all its clusters. The
  limits stand behind each, and a form that goes beyond them is refused before anything is queued.
- The dashboard keeps its list of apps for six hours, and that of accounts for four. Help, Restart
  Web Server shows a new app, or its new title, at once. A page that is open keeps the old form.
- A form starts with what its user chose last. For a partition that is offered no more it shows the
  first of the list, which is the app's default.
- Blanks around a value are dropped.""",
    "open-composer": """\
- A script location that is not there yet is made, whether or not the form's values are accepted.
- Load open pages again after an update. A partition that is offered no more, also from the history,
  is answered by a page that says so, and nothing is queued.
- A blank in the script location or the script's name, or around a value, is refused; the quotes in
  the message show it.""",
}


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
    return _README.format(
        fsdpkit=fsdpkit.__version__,
        title=f"{first.spec.name} ({manifest.name})",
        description=_plain(manifest.description),
        name=manifest.name,
        to=to,
        version=manifest.version,
        sha256=first.template.sha256[:12],
        release=release,
        install=INSTALL[to],
        to_know=TO_KNOW[to],
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
    return _CHECKLIST.format(
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
