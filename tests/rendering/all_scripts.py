"""The scripts that the packaged template makes, for each profile and each shape of job.

`python -m tests.rendering.all_scripts` writes a digest for each profile beside this file, so that a
change names the clusters that it reaches; `fsdpkit template diff` and `submit --dry-run` show it.
"""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import replace
from pathlib import Path

from fsdpkit.config.site import load_site
from fsdpkit.config.template import load_template
from fsdpkit.publishing.template_cases import (
    HOME,
    RUN_DIR,
    SHAPES,
    Case,
    Shape,
    fitting,
    neutral,
    plan_of,
    sites,
)
from fsdpkit.rendering.script import Dependency, render

DIGESTS = Path(__file__).with_name("all_scripts.txt")
_STEPS = {"before": ("bash",), "each_node": ("/bin/bash", "-p"), "after": ("bash",)}
STEPS = Shape(
    "own steps",
    tables={
        "environment": {"prepend": {"LD_LIBRARY_PATH": "/home/alex/x lib"}},
        "slurm": {"options": {"hold": True, "licenses": "scratch"}},
    },
)
WAITING = Shape(
    "array after another", array="0-3%2", plan={"after": (Dependency("afterok", "1234"),)}
)
SETTINGS = Shape(
    "settings of tasks",
    array="0-2%2",
    tables={"array_settings": {"1": {"environment": {"variables": {"NOTE": "it's; x"}}}}},
)

TRAINING = Shape("training", tables={"training": {"steps": 5}})
_DATA = {"data": ["/home/alex/it's/*.txt"], "back": ["logs/"]}
STAGED = Shape(
    "local disks",
    tables={"stage": {**_DATA, "environment": True}, "resources": {"spare": 1}},
)
STAGED_CONTAINER = Shape(
    "local disks, container",
    sizes=((1, 4),),
    tables={"stage": _DATA, "environment": {"container": "/images/torch.sif"}},
)
OWN_SHAPES = (STEPS, WAITING, SETTINGS, TRAINING, STAGED, STAGED_CONTAINER)


def script_of(case: Case) -> str:
    """One script, without what differs from release to release."""
    template = load_template("torchrun")
    plan = plan_of(case, template)
    if case.shape is STEPS:
        steps = {key: (*words, str(HOME / key)) for key, words in _STEPS.items()}
        plan = replace(plan, job=replace(plan.job, steps=steps))
    version = f"# template torchrun {template.manifest.version} "
    return neutral(render(plan, RUN_DIR), plan).replace(version, "# template torchrun ")


@functools.cache
def scripts() -> list[tuple[Case, str]]:
    """Every shape for every profile that takes it; what no template's test has, for one."""
    cardinal = load_site("osc-cardinal")
    pairs = [(site, shape) for site in sites()[0] for shape in SHAPES]
    pairs += [(cardinal, shape) for shape in OWN_SHAPES]
    cases = (fitting(site, shape) for site, shape in pairs)
    return [(case, script_of(case)) for case in cases if isinstance(case, Case)]


def digests() -> str:
    """A line for each profile."""
    found: dict[str, hashlib._Hash] = {}
    for case, script in scripts():
        found.setdefault(case.site.id, hashlib.sha256()).update(script.encode())
    return "".join(f"{site} {digest.hexdigest()}\n" for site, digest in sorted(found.items()))


if __name__ == "__main__":
    for name in ("FSDPKIT_SITE_PATH", "XDG_CONFIG_HOME"):
        os.environ.pop(name, None)
    os.environ["FSDPKIT_CONFIG_DIR"] = os.devnull  # nobody's own defaults
    DIGESTS.write_text(digests(), encoding="utf-8")
