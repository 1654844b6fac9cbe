"""`python -m fsdpkit.rendering.goldens`: writes `templates/torchrun/golden/`.

The golden scripts show an admin what a site gets, and a reviewer what a change to the template
does. They are rendered for a made-up person with made-up paths; hashes and versions are zeros.
Three of them are kept whole, of each other one its checksum, so that a change names the scripts
that it reaches; `fsdpkit template diff` and `submit --dry-run` show them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fsdpkit
from fsdpkit.config import assets
from fsdpkit.config.entry import Entry
from fsdpkit.config.job_loading import load_job
from fsdpkit.config.placement import place
from fsdpkit.config.site import load_site
from fsdpkit.config.template import load_template
from fsdpkit.rendering.script import Dependency, Plan, PythonEnvironment, render

_HOME = Path("/home/alex/work")
_SHAPE = {"resources.nodes": 2, "resources.gpus": 4}
_OSC = {**_SHAPE, "resources.account": "PAS2136"}
_MAIL = "alex@example.org"
_HOOK = ["curl", "-sS", "--data", "@-", "https://chat.example.org/hook"]
_TRIALS = {"0": ["--set", "training.seed=1"], "2": ["--set", "training.seed=2", "it's; x"]}

_OWN = {"1": {"environment": {"variables": {"NCCL_ALGO": "Tree", "NOTE": "it's; x"}}}}


def _shape(nodes: int, gpus: int, account: str | None = None) -> dict[str, Any]:
    options: dict[str, Any] = {"resources.nodes": nodes, "resources.gpus": gpus}
    return options if account is None else {**options, "resources.account": account}


@dataclass(frozen=True)
class Golden:
    """One golden script: the site, what the command line says, and what is special."""

    site: str
    options: Mapping[str, Any] = field(default_factory=lambda: _SHAPE)
    array: str | None = None
    after: tuple[Dependency, ...] = ()
    expedite: bool = False
    steps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By key, the words before the file."""


WHOLE = ("generic", "osc-cardinal", "one-node")
CHECKSUMS = "checksums.json"
"""SHA-256 of each other one."""

GOLDENS: Mapping[str, Golden] = {
    "local": Golden("local", {"resources.nodes": 2, "resources.gpus": 2}),
    "generic": Golden("generic"),
    "osc-ascend": Golden("osc-ascend", _OSC),
    "osc-cardinal": Golden("osc-cardinal", _OSC),
    "osc-pitzer": Golden("osc-pitzer", {**_OSC, "resources.nodes": 4, "resources.gpus": 2}),
    "bristol-isambard-ai": Golden("bristol-isambard-ai"),
    "csc-lumi": Golden("csc-lumi", _shape(2, 8, "project_465000000")),
    "csc-mahti": Golden("csc-mahti", _shape(2, 4, "project")),
    "csc-roihu": Golden("csc-roihu", _shape(1, 4, "project")),
    "cscs-clariden": Golden("cscs-clariden"),
    "cscs-daint": Golden("cscs-daint"),
    "drac-fir": Golden("drac-fir", _shape(2, 4, "def-someuser")),
    "drac-narval": Golden("drac-narval", _shape(2, 4, "def-someuser")),
    "drac-nibi": Golden("drac-nibi", _shape(2, 4, "def-someuser")),
    "drac-rorqual": Golden("drac-rorqual", _shape(2, 4, "def-someuser")),
    "drac-tamia": Golden("drac-tamia", _shape(2, 8, "aip-someuser")),
    "drac-trillium": Golden("drac-trillium", _shape(2, 4, "def-someuser")),
    "idris-jean-zay": Golden("idris-jean-zay"),
    "jhu-dsai": Golden("jhu-dsai"),
    "jsc-jupiter": Golden("jsc-jupiter"),
    "mila": Golden("mila", _shape(1, 4)),
    "ncsu-hazel": Golden("ncsu-hazel"),
    "nris-betzy": Golden("nris-betzy", _shape(2, 4, "nn0000k")),
    "nris-saga": Golden("nris-saga", _shape(2, 4, "nn0000k")),
    "olcf-frontier": Golden("olcf-frontier", _shape(2, 8)),
    "stanford-sherlock": Golden("stanford-sherlock"),
    "tacc-lonestar6": Golden("tacc-lonestar6", _shape(2, 3)),
    "tacc-stampede3": Golden("tacc-stampede3"),
    "tacc-vista": Golden("tacc-vista", _shape(2, 1)),
    "ulhpc-iris": Golden("ulhpc-iris"),
    "yale-bouchet": Golden("yale-bouchet"),
    "array-after": Golden("osc-ascend", _OSC, "0-3%2", (Dependency("afterok", "1234"),)),
    "array-args": Golden(
        "osc-ascend", {**_OSC, "array_args": _TRIALS, "array_settings": _OWN}, "0-2%2"
    ),
    "container": Golden("osc-cardinal", {**_OSC, "environment.container": "/images/torch.sif"}),
    "conda": Golden("osc-cardinal", {**_OSC, "environment.conda": "torch"}),
    "spare": Golden("osc-cardinal", {**_OSC, "resources.spare": 1}),
    "notify": Golden("osc-cardinal", {**_OSC, "notify.mail": _MAIL, "notify.command": _HOOK}),
    "expedite": Golden("osc-cardinal", {**_OSC, "notify.command": _HOOK}, "0-3", expedite=True),
    "one-node": Golden("osc-cardinal", {**_OSC, "resources.nodes": 1}),
    "own-steps": Golden(
        "osc-cardinal",
        {
            **_OSC,
            "environment.prepend": {"LD_LIBRARY_PATH": "/home/alex/x lib"},
            "slurm.options": {"hold": True, "licenses": "scratch"},
        },
        steps={"before": ("bash",), "each_node": ("/bin/bash", "-p"), "after": ("bash",)},
    ),
}


def golden_dir() -> Path:
    return assets.packaged_dir() / "templates" / "torchrun" / "golden"


def golden_files() -> dict[str, str]:
    """What the golden directory holds, by name. Raises FsdpkitError."""
    scripts = {name: golden_script(name) for name in GOLDENS}
    whole = {f"{name}.sbatch": scripts.pop(name) for name in WHOLE}
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in scripts.items()}
    return {**whole, CHECKSUMS: json.dumps(sums, indent=2, sort_keys=True) + "\n"}


def golden_script(name: str) -> str:
    """The text of one golden script. Raises FsdpkitError."""
    golden = GOLDENS[name]
    job = load_job("t5", options=dict(golden.options))
    steps = {key: (*words, str(_HOME / key)) for key, words in golden.steps.items()}
    site = load_site(golden.site)
    template = load_template("torchrun")
    plan = Plan(
        replace(job, entry=Entry.of_file(_HOME / "fsdp_t5.py"), steps=steps),
        site,
        template,
        place(job.spec.resources, site),
        _HOME,
        golden.array,
        golden.after,
        PythonEnvironment("venv", "/home/alex/venv"),
        expedite=golden.expedite,
    )
    script = render(plan, _HOME / "runs" / "fsdp-t5-20260102-090000-4f3a")
    script = script.replace(plan.job.resolved_sha256, "0" * 64)
    for digest in plan.digests.values():
        script = script.replace(digest[:12], "0" * 12)
    version = f"# template torchrun {template.manifest.version} "
    script = script.replace(version, "# template torchrun 0.0.0 ")
    return script.replace(f"fsdpkit {fsdpkit.__version__}.", "fsdpkit 0.0.0.")


def write_all(directory: Path) -> None:
    """The golden files, and no others."""
    directory.mkdir(exist_ok=True)
    files = golden_files()
    for path in directory.iterdir():
        if path.name not in files:
            path.unlink()
    for file, text in files.items():
        (directory / file).write_text(text, encoding="utf-8")


def main() -> None:
    for name in ("FSDPKIT_SITE_PATH", "XDG_CONFIG_HOME"):
        os.environ.pop(name, None)
    os.environ["FSDPKIT_CONFIG_DIR"] = os.devnull  # nobody's own defaults
    write_all(golden_dir())


if __name__ == "__main__":
    main()
