"""The pages as text. Every value of a profile, template or job is escaped; none becomes a link but
a manual's https address."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import markupsafe
import msgspec

import fsdpkit
from fsdpkit.config.job import LoadedJob
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.template import Template
from fsdpkit.publishing.catalogue.facts import in_words, named, sections, table_of
from fsdpkit.publishing.catalogue.reading import Catalogue

POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'"
)
_SHOWN_ELSEWHERE = ("schema", "title", "docs", "sources", "unknown")
_MOST_TEXT = 200_000


@dataclass(frozen=True)
class Writing:
    """What all pages share."""

    catalogue: Catalogue
    name: str
    """The centre's name, for people."""

    def pages(self) -> dict[str, str]:
        """Every page by its path."""
        read = self.catalogue
        pages = {"index.html": self._index(), "generator.html": self._generator()}
        pages |= {f"clusters/{site.id}.html": self._cluster(site) for site in read.sites}
        pages |= {f"templates/{t.manifest.name}.html": self._template(t) for t in read.templates}
        pages |= {f"jobs/{name}.html": self._job(name, job) for name, job in read.jobs}
        return pages

    def _render(self, page: str, **values: Any) -> str:
        read = self.catalogue
        shared = {
            "name": self.name,
            "version": fsdpkit.__version__,
            "policy": POLICY,
            "problems": read.problems,
            "layers": read.layers,
            "sites": read.sites,
            "templates": read.templates,
            "jobs": read.jobs,
            "up": "",
            "here": "",
        }
        return _environment().get_template(f"{page}.html.j2").render(shared | values)

    def _index(self) -> str:
        read = self.catalogue
        slurm = [site for site in read.sites if site.profile.kind == "slurm"]
        # The centre's own first; those that are no cluster of anybody's last.
        order = {"generic": 2, "local": 3}
        shown = sorted(
            read.sites,
            key=lambda s: order.get(s.id, int("centre" not in read.layers[("site", s.id)])),
        )
        return self._render("index", slurm=slurm, sites=shown)

    def _cluster(self, site: LoadedSite) -> str:
        told = sections(site.profile, leave_out=_SHOWN_ELSEWHERE)
        digest = hashlib.sha256(msgspec.json.encode(site.profile, order="deterministic"))
        return self._render(
            "cluster", up="../", site=site, sections=told, digest=digest.hexdigest()
        )

    def _template(self, template: Template) -> str:
        manifest = template.manifest
        told = sections(manifest, leave_out=("schema", "name", "description", "parameters"))
        parts = [(name, _text(content)) for name, content in sorted(template.parts.items())]
        return self._render(
            "template",
            up="../",
            template=template,
            parameters=table_of(manifest.parameters),
            sections=[section for section in told if section.title],
            about=_beside(template, "README.md"),
            changes=_beside(template, "CHANGES.md") or _beside(template, "CHANGELOG.md"),
            parts=parts,
        )

    def _job(self, name: str, job: LoadedJob) -> str:
        told = sections(job.spec, leave_out=("schema", "description", "training"))
        told = [section for section in told if section.facts]
        settings = [*_settings(job)]
        return self._render("job", up="../", id=name, job=job, sections=told, settings=settings)

    def _generator(self) -> str:
        read = self.catalogue
        slurm = [site.id for site in read.sites if site.profile.kind == "slurm"]
        own = [site for site in slurm if "centre" in read.layers[("site", site)]]
        plain = [site for site in slurm if site != "generic"]
        return self._render(
            "generator",
            here="generator.html",
            first=next(iter([*own, *plain, *slurm]), ""),
            limits={site.id: _limits(site.profile) for site in read.sites},
            shapes={name: _shape(job) for name, job in read.jobs},
            own_shape={"nodes": 1, "gpus": 1, "time": "01:00:00", "template": "torchrun"},
            python=read.surroundings.python,
            packaged=read.surroundings.packaged,
            centres=[str(centre) for centre in read.centres],
        )


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fsdpkit.publishing.catalogue", "pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "named": named,
        "words": in_words,
        "capfirst": lambda text: text[:1].upper() + text[1:],
        "tojson": lambda value: json.dumps(value, sort_keys=True),
        "forceescape": markupsafe.escape,
    }
    return environment


def _settings(job: LoadedJob) -> Iterator[tuple[str, str, str]]:
    """Each key that has a value, the value, and where it was set."""

    def walk(value: object, key: str) -> Iterator[tuple[str, str, str]]:
        if isinstance(value, Mapping) and value:
            for name, below in value.items():
                yield from walk(below, f"{key}.{name}" if key else str(name))
        elif value not in (None, [], {}):
            yield key, in_words(value), job.origin(key)

    return walk(msgspec.to_builtins(job.spec), "")


def _limits(profile: SiteProfile) -> Mapping[str, Any]:
    """What the form says of a cluster before Python is there; it decides nothing."""
    account = profile.account
    return {
        "account": {"required": account.required, "example": account.example, "find": account.find},
        "partitions": [
            {
                "name": name,
                "automatic": partition.automatic,
                "gpus": _gpus(profile, partition.node_type),
                "nodes": partition.max_nodes,
                "time": partition.max_time,
            }
            for name, partition in profile.partitions.items()
        ],
        "container": profile.container.engine,
    }


def _gpus(profile: SiteProfile, node_type: str | None) -> int | None:
    kinds: Sequence[Any] = (
        [profile.node_types[node_type]] if node_type else [*profile.node_types.values()]
    )
    return kinds[0].gpus if len(kinds) == 1 else None


def _shape(job: LoadedJob) -> Mapping[str, Any]:
    resources = job.spec.resources
    return {
        "nodes": resources.nodes,
        "gpus": resources.gpus,
        "time": resources.time,
        "template": job.spec.template,
        "about": job.spec.description,
    }


def _beside(template: Template, name: str) -> str:
    """The text of a file in a template's folder; nothing where there is none."""
    try:
        with open(template.dir / name, "rb") as file:
            return _text(file.read(_MOST_TEXT))
    except OSError:
        return ""


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
