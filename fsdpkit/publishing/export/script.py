"""The exported script: the template, rendered once by the renderer of every submission.

There is no second template. Where a submission has a value that a form will say, the context holds
a `Variable`, which prints as `"$NAME"`; the checks that make it safe to use stand above. What the
template decides by cannot be left open: it is fixed, and `fixed` says so. A job of one node and a
job of several are different scripts, so both are in it and the number of nodes chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

import fsdpkit
from fsdpkit.config.entry import Entry
from fsdpkit.config.job import JobSpec
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.loading import Layered
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.template import Template
from fsdpkit.errors import ConfigError, RenderError, UsageError
from fsdpkit.publishing.export import checks
from fsdpkit.publishing.export.bash_quotes import unexpanded
from fsdpkit.publishing.export.fields import (
    ARGUMENTS,
    DIRECTORY,
    PYTHON,
    SCRIPT,
    Field,
    gpus_field,
    parameter_field,
)
from fsdpkit.publishing.export.places import (
    PartitionPlace,
    TimeUnit,
    default_of,
    free_of_account,
    places_of,
    unit_for_all,
)
from fsdpkit.publishing.export.run_record import record_lines
from fsdpkit.publishing.export.shared_job import as_wanted, for_everybody, plain_job
from fsdpkit.publishing.template_cases import HOME
from fsdpkit.rendering.directives import DirectiveError, read_directives
from fsdpkit.rendering.environment import trace_template
from fsdpkit.rendering.lint import lint
from fsdpkit.rendering.script import Plan, PythonEnvironment, context_of, requeue_note
from fsdpkit.rendering.traced import Traced
from fsdpkit.rendering.variables import Undecided, Variable

FORM_DECIDES = frozenset({"chdir", "output", "comment", "account"})
"""Directives that a portal sets itself, or that would name a person or a place."""
_IN_A_PLACE = frozenset({"job-name", "nodes", "ntasks", "time"})
"""Those that the form's other fields decide."""

Options = tuple[tuple[str, str | None], ...]
"""Of sbatch: each a long name, with its value if it has one."""


@dataclass(frozen=True)
class ExportedScript:
    """One template for one cluster. head: shebang, comments and directives; body: from the checks'
    place to the end, with no value of a form but in variables."""

    template: Template
    site: LoadedSite
    portal: str
    """What the portal calls the cluster."""
    spec: JobSpec
    fields: tuple[Field, ...]
    """Whose variables the script reads, in the form's order."""
    fixed: Mapping[str, str]
    """What the form does not ask for, and why."""
    places: tuple[PartitionPlace, ...]
    place: PartitionPlace
    """The default."""
    options: Mapping[str, Options]
    """What Slurm is told, by the place's value, besides nodes, tasks and time."""
    left_out: tuple[str, ...]
    head: str
    checks: str
    body: str

    @property
    def default_first(self) -> list[PartitionPlace]:
        """A browser shows the first of a list in place of one that is gone."""
        return sorted(self.places, key=lambda place: place.value != self.place.value)

    @property
    def nodes(self) -> int:
        """The default."""
        return self.spec.resources.nodes

    @property
    def unit(self) -> TimeUnit:
        """In which the form asks for the time."""
        return self.place.unit

    @property
    def time(self) -> int:
        """The default, in the unit."""
        return self.spec.resources.time_s // self.unit.seconds

    @property
    def most_nodes(self) -> int:
        return max(place.high_nodes for place in self.places)

    @property
    def most_time(self) -> int:
        return max(place.most_time for place in self.places)

    def script(self, inputs: str = "", *, directives: bool = True) -> str:
        """The whole text. inputs: bash that sets the fields' variables, if the environment does not
        have them. directives: whether sbatch reads them from here."""
        head = self.head
        if not directives:
            lines = head.split("\n")
            head = "\n".join(line for line in lines if not line.startswith("#SBATCH"))
        return f"{head}\n{inputs}{self.checks}{self.body}"


def shared_fields(exports: Sequence[ExportedScript]) -> list[Field]:
    """Fields of any of the scripts, in order; where several have one, the first one's."""
    found: dict[str, Field] = {}
    for exported in exports:
        for field in exported.fields:
            found.setdefault(field.key, field)
    return list(found.values())


def export_script(
    template: Template,
    site: LoadedSite,
    spec: JobSpec | None = None,
    portal: str = "",
    *,
    python: str = "venv",
    directory: bool = False,
    unit: TimeUnit | None = None,
) -> ExportedScript:
    """Raises RenderError or ConfigError where the template or the profile cannot be exported.
    python: `venv` or `conda`. directory: whether the form asks for the job's directory; else the
    portal starts the job there. unit: of the time; None: as the places need it."""
    if site.profile.kind != "slurm":
        raise ConfigError(
            f"{site.id} is no Slurm cluster, so no portal submits to it; name one with --cluster"
        )

    def plan_at(place: PartitionPlace) -> Plan:
        return _plan(template, site, place, python)

    wanted = None if spec is None else spec.resources
    spec, fixed = for_everybody(spec or plain_job())
    places, left_out = places_of(spec, site, unit or unit_for_all(spec, site))
    if not places:
        raise ConfigError(f"{site.id}: its profile takes no job: {'; '.join(left_out)}")
    chosen = as_wanted(default_of(places, wanted), wanted)
    plan = plan_at(chosen)
    alike, differing = _with_equal_scripts(places, plan, plan_at)
    left_out += differing
    fields, unasked = _fields(plan, directory, max(place.gpus for place in alike))
    fixed |= unasked
    parts, closed = _rendered(plan, fields, alike, chosen)
    fixed |= closed
    if "gpus" in closed:
        alike = _with_gpus_of(chosen, alike)
    head, body = _joined(parts)
    _refuse_quoted(body)
    own = _own_directives(head, {name for name, _ in _directives(plan)} | FORM_DECIDES)
    exported = ExportedScript(
        template,
        site,
        portal or site.id,
        chosen.spec,
        tuple(fields),
        fixed,
        tuple(alike),
        chosen,
        {place.value: _options(plan_at(place)) + own for place in alike},
        tuple(dict.fromkeys(left_out)),
        head,
        checks.check_lines(fields, *_nodes(alike)) + record_lines(plan, fields),
        body,
    )
    _refuse_unsound(exported)
    return exported


def _refuse_unsound(exported: ExportedScript) -> None:
    found = lint(exported.script(), exported.place.placement.select)
    if problems := [one for one in found if one.severity == "error"]:
        listed = "\n".join(f"  line {one.line}: {one.message}" for one in problems)
        name = exported.template.manifest.name
        raise RenderError(f"template {name}: not to be exported:\n{listed}")


def _with_equal_scripts(
    places: Sequence[PartitionPlace], plan: Plan, plan_at: Callable[[PartitionPlace], Plan]
) -> tuple[list[PartitionPlace], list[str]]:
    """Places for whose kind of GPU the script is the plan's, and words about the others."""
    device = context_of(plan, _run_dir(plan))["device"]
    alike, differing = [], []
    for place in places:
        other = plan_at(place)
        if context_of(other, _run_dir(other))["device"] == device:
            alike.append(place)
        else:
            differing.append(f"partition {place.partition}: its GPUs need another script")
    return alike, differing


def _fields(plan: Plan, directory: bool, most_gpus: int) -> tuple[list[Field], dict[str, str]]:
    """What a form can ask for, and what not, with the reason."""
    spec, fixed = plan.job.spec, dict[str, str]()
    fields = [DIRECTORY] if directory else []
    fields += [SCRIPT, ARGUMENTS]
    if not spec.environment.container:
        fields.append(PYTHON["conda" if plan.python.kind == "conda" else "venv"])
    fields = [_with_default(field, spec, plan.python.path, fixed) for field in fields]
    fields.append(gpus_field(most_gpus))
    set_by = {**plan.site.profile.parameters, **spec.parameters}
    for name, parameter in plan.template.manifest.parameters.items():
        if name in set_by:
            parameter = msgspec.structs.replace(parameter, default=set_by[name])
        field = parameter_field(name, parameter)
        if isinstance(field, str):
            fixed[f"parameters.{name}"] = field
        else:
            fields.append(field)
    return _told_apart(fields), fixed


_OTHER_LABELS = ("Nodes", "Hours", "Minutes", "Account", "Partition and GPUs")
"""Of what every portal asks for itself."""


def _told_apart(fields: list[Field]) -> list[Field]:
    """A parameter whose label is another's, too, keeps its name."""
    labels = [*_OTHER_LABELS, *(field.label for field in fields)]
    return [
        replace(field, label=field.key[2:])
        if field.key.startswith("p_") and labels.count(field.label) > 1
        else field
        for field in fields
    ]


def _close(fields: list[Field], error: Undecided, chosen: PartitionPlace) -> tuple[str, object]:
    """Take out the field that the template needs to know beforehand: its name and its value."""
    blamed = [field for field in fields if _named(field) == error.variable.of]
    if not blamed or not (blamed[0].key == "gpus" or blamed[0].key.startswith("p_")):
        raise RenderError(str(error)) from error
    fields.remove(blamed[0])
    return _named(blamed[0]), chosen.gpus if blamed[0].key == "gpus" else blamed[0].default


def _with_default(field: Field, spec: JobSpec, environment: str, fixed: dict[str, str]) -> Field:
    """Filled in with what the job says; `fixed` is told what no field can say."""
    texts = {"script": spec.entry, "arguments": " ".join(spec.args), "environment": environment}
    said = texts.get(field.key)
    if not said:
        return field
    lost = field.key == "arguments" and said.split(" ") != spec.args
    if lost or not field.allows(said):
        fixed[f"default of {field.key}"] = f"no field can say what the job says: {said[:60]!a}"
        return field
    return replace(field, default=said)


def _named(field: Field) -> str:
    """The field's name in the template's context."""
    if field.key.startswith("p_"):
        return f"parameters.{field.key[2:]}"
    names = {"script": "job.entry", "arguments": "job.args"}
    return names.get(field.key, field.key)


def _plan(template: Template, site: LoadedSite, place: PartitionPlace, python: str) -> Plan:
    layered = Layered()
    layered.say(msgspec.to_builtins(place.spec), "template")
    spec = place.spec
    bare = msgspec.structs.replace(spec.environment, conda=None, venv=None)
    kind = "conda" if spec.environment.conda else "venv" if spec.environment.venv else python
    named = spec.environment.conda or spec.environment.venv or ""
    return Plan(
        LoadedJob(
            msgspec.structs.replace(spec, environment=bare),
            layered,
            (),
            Entry.of_file(HOME / "train.py"),
        ),
        free_of_account(site),
        template,
        place.placement,
        HOME,
        python=PythonEnvironment("conda" if kind == "conda" else "venv", named),
    )


def _run_dir(plan: Plan) -> Path:
    return plan.work_dir / "runs" / "x"


def _rendered(
    plan: Plan, fields: list[Field], places: Sequence[PartitionPlace], chosen: PartitionPlace
) -> tuple[list[Traced], dict[str, str]]:
    """The script's parts (see `_parts`), and what the template has to know beforehand, with the
    reason: these are taken out of `fields`."""
    closed: dict[str, str] = {}
    while True:
        try:
            return _parts(plan, fields, *_nodes(places)), closed
        except Undecided as error:
            name, value = _close(fields, error, chosen)
            closed[name] = f"{error.use}: {value}"
            if name == "gpus":
                places = _with_gpus_of(chosen, places)


def _nodes(places: Sequence[PartitionPlace]) -> tuple[int, int]:
    """The fewest and the most that can be asked for."""
    return min(place.low_nodes for place in places), max(place.high_nodes for place in places)


def _with_gpus_of(chosen: PartitionPlace, places: Sequence[PartitionPlace]) -> list[PartitionPlace]:
    return [place for place in places if place.gpus == chosen.gpus]


def _parts(plan: Plan, fields: list[Field], low: int, high: int) -> list[Traced]:
    """The script of one node and that of more, or one for both. Raises Undecided."""
    try:
        return [_render(plan, fields, low, high)]
    except Undecided as error:
        if error.variable.of != "nodes" or low > 1 or high == 1:
            raise
    return [_render(plan, fields, 1, 1), _render(plan, fields, 2, high)]


def _render(plan: Plan, fields: list[Field], low: int, high: int) -> Traced:
    context = context_of(plan, _run_dir(plan))
    if context["container_srun"]:
        raise UsageError("a portal's form cannot yet fill in the directories that pyxis mounts")
    by_key = {field.key: field for field in fields}

    def text(key: str, of: str) -> Variable:
        return Variable(by_key[key].variable, "text", of)

    context["nodes"] = Variable(checks.NODES, "number", "nodes", low, high)
    context["run"] |= {
        "dir": Variable(checks.RUN_DIR, "text", "run.dir"),
        "id": Variable(checks.RUN_ID, "text", "run.id"),
    }
    context["job"] |= {
        "entry": text("script", "job.entry"),
        "args": Variable(checks.WORDS, "words", "job.args"),
    }
    bind = {f"--bind={_run_dir(plan)}": checks.BIND_RUN}
    bind[f"--bind={plan.job.entry.root}"] = checks.BIND_SCRIPT
    context["container"] = [
        Variable(bind[word], "text", "container") if word in bind else word
        for word in context["container"]
    ]
    context["job_sha256"] = Variable(checks.SHA256, "text", "job_sha256")
    if "environment" in by_key:
        context["environment"]["python"]["path"] = text("environment", "environment.python.path")
    if "gpus" in by_key:
        gpus = by_key["gpus"]
        for name in (
            "gpus",
            *(["ranks_per_node"] if plan.job.spec.launch.ranks_per_node is None else []),
        ):
            context[name] = Variable(gpus.variable, "number", name, gpus.low, gpus.high)
    for field in fields:
        if field.key.startswith("p_"):
            number = field.kind in ("int", "float") or (
                field.kind == "choice" and not isinstance(field.default, str)
            )
            context["parameters"][field.key[2:]] = Variable(
                field.variable, "number" if number else "text", _named(field), field.low, field.high
            )
    context["directives"] = [{"name": n, "value": v} for n, v in _directives(plan)]
    context["origins"] = [
        f"exported by fsdpkit {fsdpkit.__version__} for a portal; what its form says is checked",
        requeue_note(plan),
    ]
    return trace_template(plan.template, context)


def _options(plan: Plan) -> Options:
    return tuple(pair for pair in _directives(plan) if pair[0] not in _IN_A_PLACE)


def _directives(plan: Plan) -> Options:
    context = context_of(plan, _run_dir(plan))
    pairs = ((d["name"], d["value"]) for d in context["directives"])
    return tuple(pair for pair in pairs if pair[0] not in FORM_DECIDES)


def _joined(parts: list[Traced]) -> tuple[str, str]:
    """The lines up to the last directive, and what follows them."""
    split = [_split(part.script) for part in parts]
    if len(split) == 1:
        return split[0]
    (head, one), (other, several) = split
    if _own_directives(head, ()) != _own_directives(other, ()):
        raise RenderError(
            "its directives differ for one node and for several, and a form says which"
        )
    return head, (
        "\n# ---- One node: the template's script for it, which ends with its own exit ----------\n"
        f"if (( {checks.NODES} == 1 )); then\n{one}\nfi\n"
        "\n# ---- Several nodes -----------------------------------------------------------------\n"
        f"{several}"
    )


def _split(script: str) -> tuple[str, str]:
    lines = script.split("\n")
    last = max((n for n, line in enumerate(lines) if line.startswith("#SBATCH")), default=0)
    return "\n".join(lines[: last + 1]) + "\n", "\n".join(lines[last + 1 :])


def _own_directives(head: str, known: Collection[str]) -> Options:
    """Directives that the template itself asks for, besides the `known` ones."""
    try:
        return tuple(pair for pair in read_directives(head) if pair[0] not in known)
    except DirectiveError as error:
        raise RenderError(f"a directive that cannot be handed on: {error}") from error


def _refuse_quoted(body: str) -> None:
    """A value that a template prints where bash expands nothing would stay a variable's name."""
    for at in unexpanded(body):
        if body.startswith("${FSDPKIT_FORM_", at):
            number = body.count("\n", 0, at) + 1
            line = body.split("\n")[number - 1].strip()
            raise RenderError(
                "a value stands in single quotes, or in a here-document whose end is quoted: "
                f"{line[:80]}"
            )
