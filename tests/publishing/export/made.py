"""A template with a parameter of each kind and profiles for it, which no release changes."""

from __future__ import annotations

from pathlib import Path

from fsdpkit.config.site import LoadedSite, load_site
from fsdpkit.config.template import Template, load_template
from fsdpkit.publishing.export.build import App, Portal, build
from tests.publishing.called import TEMPLATE

MANIFEST = """\
schema = "fsdpkit.template/1"
name = "small"
version = "1.0.0"
description = "One process a node."
[parameters.wait_s]
type = "int"
default = 60
minimum = 1
maximum = 3600
help = "Seconds to wait."
[parameters.share]
type = "float"
default = 0.5
minimum = 0.25
maximum = 1.5
help = "Share of the memory."
[parameters.tag]
type = "str"
default = "plain"
pattern = '[a-z]{1,8}(-\\d{1,3})?'
help = "A word for the log: it's 100% <b>yours</b> %>."
[parameters.mode]
type = "str"
default = "fast"
choices = ["fast", "very slow"]
help = "How."
[parameters.debug]
type = "bool"
default = false
help = "Whether to say more."
[parameters.threads]
type = "int"
minimum = 1
maximum = 64
help = "Threads of a rank; unset: as many as cores."
"""
SCRIPT = TEMPLATE.replace(
    "RUN={{ run.dir | sh }}",
    """\
RUN={{ run.dir | sh }}
TAG={{ parameters.tag | sh }}
MODE={{ parameters.mode | sh }}
{% if environment.python.kind == "venv" %}
VIRTUAL_ENV={{ environment.python.path | sh }}
{% endif %}""",
).replace(
    "export RUN ",
    """\
export TAG MODE SHARE={{ parameters.share }} WAIT={{ parameters.wait_s }} RANKS={{ gpus }}
{% if parameters.debug %}
set -x
{% endif %}
export RUN """,
)
HERON = """
schema = "fsdpkit.site/1"
title = "Heron"
slurm_clusters = "heron"
[account]
required = true
[node_types.big]
gpus = 4
cpus = 64
memory_mb = 1048576
vendor = "nvidia"
[partitions.long]
node_type = "big"
max_nodes = 4
max_time = "2-00:00:00"
max_time_multinode = "12:00:00"
[partitions.wide]
node_type = "big"
select = { partition = "wide", qos = "large" }
max_nodes = 64
max_time = "06:00:00"
whole_nodes = "required"
[partitions.quick]
node_type = "big"
max_time = "00:30:00"
"""
EGRET = """
schema = "fsdpkit.site/1"
title = "Egret"
slurm_clusters = "egret"
[node_types.small]
gpus = 2
vendor = "nvidia"
[partitions.all]
node_type = "small"
max_nodes = 8
max_gpus_per_job = 8
max_time = "1-00:00:00"
"""
CLUSTERS = {"heron": HERON, "egret": EGRET}


def site(folder: Path, name: str, text: str | None = None) -> LoadedSite:
    path = folder / f"{name}.toml"
    path.write_text(text or CLUSTERS[name])
    return load_site(str(path))


def template(folder: Path, script: str = SCRIPT, manifest: str = MANIFEST) -> Template:
    made = folder / "small"
    made.mkdir(exist_ok=True)
    (made / "template.toml").write_text(manifest)
    (made / "job.sbatch.j2").write_text(script)
    (made / "README.md").write_text("# small\n")
    return load_template(str(made))


def app(
    folder: Path, portal: Portal, *clusters: str, release: str | None = None, python: str = "venv"
) -> App:
    """The small template's app for Heron, or the clusters named."""
    where = [(site(folder, name), name) for name in clusters or ("heron",)]
    return build(template(folder), where, portal, release=release, python=python)


def on_disk(app: App, folder: Path) -> Path:
    root = folder / f"{app.portal}-{app.release}"
    for name, text in app.files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
