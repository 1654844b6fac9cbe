"""The pages as text, with the templates and versions that the form offers. Every value of a
profile, template or job is escaped; none becomes a link but a manual's https address."""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import markupsafe
import msgspec

import fsdpkit
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.limits import kinds_of
from fsdpkit.config.loading import dotted
from fsdpkit.config.partition import together
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.template import Parameter, Template
from fsdpkit.publishing.catalogue.facts import coded, in_words, named, sections, table_of
from fsdpkit.publishing.catalogue.reading import Catalogue
from fsdpkit.publishing.catalogue.released import Released

POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'"
)
_SHOWN_ELSEWHERE = ("schema", "title", "docs", "contact", "verified", "sources", "unknown")
_MOST_TEXT = 200_000
_OWN_SHAPE = {"nodes": 1, "gpus": 1, "time": "01:00:00", "template": "torchrun"}
"""Of a script that is no job: what a job's defaults are."""


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
            "released": read.released,
            "released_as": read.released_as,
            "announcements": read.announcements,
            "sites": read.sites,
            "templates": read.templates,
            "jobs": read.jobs,
            "up": "",
            "here": "",
        }
        return _environment().get_template(f"{page}.html.j2").render(shared | values)

    def _index(self) -> str:
        read = self.catalogue
        own = {site.id for site in read.own}
        order = {"generic": 1, "local": 2}
        others = [site for site in read.sites if site.id not in own]
        others.sort(key=lambda site: order.get(site.id, 0))
        jobs = sorted(read.jobs, key=lambda job: "centre" not in read.layers[("job", job[0])])
        return self._render("index", own=read.own, others=others, jobs=jobs)

    def _cluster(self, site: LoadedSite) -> str:
        told = sections(site.profile, leave_out=_SHOWN_ELSEWHERE)
        digest = hashlib.sha256(msgspec.json.encode(site.profile, order="deterministic"))
        return self._render(
            "cluster",
            up="../",
            site=site,
            sections=told,
            digest=digest.hexdigest(),
            checked=sorted(source.checked for source in site.profile.sources),
            released=self.catalogue.released_as("site", site.id),
            command=self._command(self._first_job(), site),
        )

    def _template(self, template: Template) -> str:
        manifest = template.manifest
        told = sections(
            manifest, leave_out=("schema", "name", "version", "description", "parameters")
        )
        parts = [(name, _text(content)) for name, content in sorted(template.parts.items())]
        published = self.catalogue.released_as("template", manifest.name)
        shown = published.shown if published else None

        def text(name: str) -> str:
            return shown.texts.get(name, "") if shown else _beside(template, name)

        return self._render(
            "template",
            up="../",
            template=template,
            parameters=table_of(manifest.parameters),
            sections=[section for section in told if section.title],
            about=text("README.md"),
            changes=text("CHANGES.md") or text("CHANGELOG.md"),
            parts=parts,
            released=published,
        )

    def _job(self, name: str, job: LoadedJob) -> str:
        told = sections(job.spec, leave_out=("schema", "description", "training"))
        told = [section for section in told if section.facts]
        settings = [
            (key, in_words(value), job.origin(key))
            for key, value in dotted(msgspec.to_builtins(job.spec))
            if value not in (None, [], {})
        ]
        return self._render(
            "job",
            up="../",
            id=name,
            job=job,
            sections=told,
            settings=settings,
            released=self.catalogue.released_as("job", name),
            command=self._command(name, self._first_site()),
        )

    def _generator(self) -> str:
        read = self.catalogue
        choices, groups = template_choices(read.templates, read.released)
        first = self._first_site()
        own = {site.id for site in read.own}
        shapes = {name: _shape(job) for name, job in read.jobs}
        return self._render(
            "generator",
            here="generator.html",
            own=read.own,
            others=[site for site in read.sites if site.id not in own],
            first=first.id if first else "",
            first_job=self._first_job(),
            begins=shapes.get(self._first_job(), _OWN_SHAPE),
            commands=[self._command(name, first) for name, _ in read.jobs],
            limits={site.id: _limits(site.profile) for site in read.sites},
            shapes=shapes,
            own_shape=_OWN_SHAPE,
            choices=choices,
            groups=groups,
            python=read.surroundings.python,
            packaged=read.surroundings.packaged,
            centres=[str(centre) for centre in read.centres],
        )

    def _first_site(self) -> LoadedSite | None:
        """What the form begins with: of the centre's clusters one that fsdpkit has run on."""
        own = [site for site in self.catalogue.own if site.profile.kind == "slurm"]
        ran = [site for site in own if site.profile.verified]
        return next(iter([*ran, *own, *self.catalogue.sites]), None)

    def _first_job(self) -> str:
        """The centre's own first, else the one that comes with fsdpkit for that."""
        read = self.catalogue
        names = [name for name, _ in read.jobs]
        own = [name for name in names if "centre" in read.layers[("job", name)]]
        return next(iter([*own, *(name for name in names if name == "t5"), *names]), "")

    def _command(self, job: str, site: LoadedSite | None) -> str:
        """That prints the script of a job, with an account of the right form if one is needed."""
        words = ["fsdpkit", "submit", *([job] if job else [])]
        if site is not None:
            words += ["--cluster", site.id]
            if site.profile.account.required:
                words += ["--account", site.profile.account.example or "ACCOUNT"]
        return shlex.join([*words, "--dry-run"])


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
        "coded": coded,
        "named": named,
        "words": in_words,
        "capfirst": lambda text: text[:1].upper() + text[1:],
        "tojson": lambda value: json.dumps(value, sort_keys=True),
        "forceescape": markupsafe.escape,
    }
    return environment


def _limits(profile: SiteProfile) -> Mapping[str, Any]:
    """What the form says of a cluster before Python is there; it decides nothing."""
    account = profile.account
    return {
        "account": {"required": account.required, "example": account.example, "find": account.find},
        "partitions": [
            {
                "name": name,
                "automatic": partition.automatic,
                "gpus": together(kinds_of(profile, partition)).gpus,
                "nodes": partition.max_nodes,
                "time": partition.max_time,
            }
            for name, partition in profile.partitions.items()
        ],
        "container": profile.container.engine,
    }


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
    """The text of a file in a plain template's folder; nothing where there is none. Of a published
    one nothing is read that was not verified."""
    if template.release is not None:
        return ""
    try:
        with open(template.dir / name, "rb") as file:
            return _text(file.read(_MOST_TEXT))
    except OSError:
        return ""


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


@dataclass(frozen=True)
class FormChoice:
    """value: as in `template = "torchrun@3.4.0"`; group: whose fields its parameters are."""

    value: str
    label: str
    about: str
    group: str


Groups = Mapping[str, Mapping[str, Parameter]]


def template_choices(
    templates: Sequence[Template], published: Sequence[Released]
) -> tuple[list[FormChoice], Groups]:
    """All that can be chosen, and the parameters of each group by its id."""
    groups: dict[str, Mapping[str, Parameter]] = {}
    choices = []
    for value, label, template in _offered(templates, published):
        name, parameters = template.manifest.name, template.manifest.parameters
        same = (g for g, p in groups.items() if g.partition("@")[0] == name and p == parameters)
        group = next(same, value)
        groups.setdefault(group, parameters)
        choices.append(FormChoice(value, label, template.manifest.description, group))
    return choices, groups


def _offered(
    templates: Sequence[Template], published: Sequence[Released]
) -> Iterator[tuple[str, str, Template]]:
    versions = {one.name: one.versions for one in published if one.kind == "template"}
    for template in templates:
        name, current = template.manifest.name, template.manifest.version
        yield name, f"{name} {current}", template
        for one in versions.get(name, ()):
            if one.template is None or one.withdrawn or one.version == current:
                continue
            marks = [*one.channels, *(["deprecated"] if one.deprecated else [])]
            channel = ", ".join(marks) or "older"
            yield f"{name}@{one.version}", f"{name} {one.version} ({channel})", one.template
