"""A template with a parameter of each kind and profiles for it, which no release changes."""

from __future__ import annotations

from pathlib import Path

from fsdpkit.config.site import LoadedSite, load_site
from fsdpkit.config.template import Template, load_template
from fsdpkit.publishing.export.build import App, Portal, build
from tests.publishing.called import TEMPLATE

FOLDER = Path(__file__).parents[1] / "folders" / "export"
MANIFEST, HERON, EGRET = (
    (FOLDER / name).read_text(encoding="utf-8")
    for name in ("template.toml", "heron.toml", "egret.toml")
)
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
