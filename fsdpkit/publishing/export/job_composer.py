"""A template of Open OnDemand's Job Composer: a folder with a script that its user edits.

There is no form. The values stand at the top of the script, are checked there like a form's, and
Slurm reads the directives above them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from fsdpkit.publishing.export import texts
from fsdpkit.publishing.export.script import ExportedScript

SCRIPT = "job.sh"


def files(exports: Sequence[ExportedScript], release: str) -> dict[str, str | dict[str, Any]]:
    """The template, by path."""
    (exported,) = exports
    about = exported.template.manifest
    manifest = {
        "name": f"{exported.spec.name} ({about.name} {about.version})",
        "host": exported.portal,
        "script": SCRIPT,
        "notes": f"{about.description} Edit the values at the top of {SCRIPT}, and its #SBATCH "
        "lines for nodes and time, before submitting.",
    }
    inputs = ["", "# ---- Values: edit these; what is allowed stands behind each. "]
    for field in exported.fields:
        inputs += [
            f"# {' '.join(f'{field.label}: {field.help}'.split())}",
            f"{field.variable}={shlex.quote(field.shown)}    # {' '.join(field.allowed.split())}",
        ]
    script = exported.script("\n".join(inputs) + "\n\n")
    return {"manifest.yml": manifest, SCRIPT: script}


def asked(exports: Sequence[ExportedScript]) -> list[tuple[str, str]]:
    """What is to be edited, with what is allowed, for the README."""
    (exported,) = exports
    return [*texts.limits([exported]), *((f.label, f.allowed) for f in exported.fields)]
