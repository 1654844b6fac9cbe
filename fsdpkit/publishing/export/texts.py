"""README and Appverse checklist of an export, which are for whoever installs it."""

from __future__ import annotations

from fsdpkit.publishing.export.script import Exported

_README = """\
# {title}

{description}

Made by `fsdpkit template export {name} --to {to}` from the template {name} {version}
(`{sha256}`) for {site}. Do not edit the script here: change the template and export it again.

## Before it works

{install}

Nodes need fsdpkit and torch in the {python} that the form asks for: `pip install fsdpkit`.

## What the form asks for

| field | allowed |
|---|---|
{rows}
A job whose field holds anything else ends at once with status 65, and its log names the field and
what is allowed. What a field says is never part of a command.

## What is fixed

{fixed}
## After a job

Its run lies in `runs/` of the job's directory: `fsdpkit status`, `logs`, `diagnose` and `report`
read it.
"""

_CHECKLIST = """\
# Appverse checklist

Before this app is offered on openondemand.connectci.org:

- [ ] `README.md` says what the app does, on which cluster it was tried, and whom to ask
- [x] `manifest.yml` has a name and a description
- [x] no absolute path of a person or project, no account, no e-mail address
- [x] what a form says is checked before it is used, and is never evaluated
- [x] the script is smaller than 65 kB
- [ ] a license file for the repository that holds this app
- [ ] tried by a person who is no administrator, on {release}
- [ ] screenshots of the form and of a finished job
"""

INSTALL = {
    "ondemand": (
        "Copy this folder to `/var/www/ood/apps/sys/` of the web node, or to `~/ondemand/dev/` to\n"
        "try it. `cluster` in `form.yml` is the name of a file in `/etc/ood/config/clusters.d/`."
    ),
    "open-composer": (
        "Copy this folder into Open Composer's `apps_dir`. It submits with `--export=NONE`."
    ),
    "project-manager": (
        "Copy this folder to `/etc/ood/config/apps/dashboard/projects/`; \"New project\" then offers\n"
        "it as a template."
    ),
    "job-composer": (
        "Copy this folder to `/etc/ood/config/apps/myjobs/templates/`; \"New job from template\" then\n"
        "offers it. The values stand at the top of the script, to be edited."
    ),
}


def readme(exported: Exported, to: str, python: str, asked: list[tuple[str, str]]) -> str:
    manifest = exported.template.manifest
    rows = "".join(f"| {label} | {allowed.replace('|', chr(92) + '|')} |\n" for label, allowed in asked)
    fixed = "".join(f"- `{name}`: {why}\n" for name, why in exported.fixed.items())
    return _README.format(
        title=f"{manifest.name} on {exported.site.profile.title}",
        description=manifest.description,
        name=manifest.name,
        to=to,
        version=manifest.version,
        sha256=exported.template.sha256[:12],
        site=exported.site.id,
        install=INSTALL[to],
        python="conda environment" if python == "conda" else "virtual environment",
        rows=rows,
        fixed=fixed or "Nothing.\n",
    )


def checklist(release: str) -> str:
    return _CHECKLIST.format(release=release)
