"""What the readers of an export demand of it, as checks: OnDemand 4.0 to 4.2, Open Composer 2.0.

Written after their sources, as they were on 2026-11-24: OSC/ondemand v4.0.11, v4.1.6 and v4.2.3
(models Launcher, Project, Manifest, BatchConnect; lib smart_attributes; dynamic_forms.js; myjobs'
Manifest), OSC/ood_core 86656b3, RIKEN-RCCS/OpenComposer 4330e3a (run.rb, lib/form.rb, form.js).
Neither portal is in a distribution's packages, so nothing else says whether it reads an export.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fsdpkit.rendering.lint import PORTAL_BYTES

ONDEMAND = ("4.0", "4.1", "4.2")
OPEN_COMPOSER = ("2.0",)

# app/lib/smart_attributes/attributes; bc_num_nodes came with 4.1.
_SMART = frozenset(
    """auto_accounts auto_batch_clusters auto_cores auto_groups auto_job_name auto_log_location
    auto_modules auto_primary_group auto_qos auto_queues auto_scripts bc_account
    bc_email_on_started bc_num_hours bc_num_slots bc_queue bc_vnc_idle bc_vnc_resolution
    """.split()  # noqa: SIM905 (a list of twenty strings is unreadable)
)
SMART_ATTRIBUTES: Mapping[str, frozenset[str]] = {
    "4.0": _SMART,
    "4.1": _SMART | {"bc_num_nodes"},
    "4.2": _SMART | {"bc_num_nodes"},
}
LAUNCHER_ID = re.compile(r"\w{8}", re.ASCII)
ICON = re.compile(r"fa[bsrl]://[\w-]+")
SCRIPT_ENDINGS = (".sh", ".csh", ".bash", ".slurm", ".sbatch", ".qsub")
_WIDGETS = ("number", "text", "email", "select", "multi_select", "radio", "checkbox", "path")
_WIDGET_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?<!_\d)")
_DYNAMIC = re.compile(
    r"(?:set-(?:min|max|step|label|value|required|help)|show|hide|enable|disable)-"
)
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+\.[a-z]{2,}\b")
_PLACE = re.compile(r"(?<![\w.$}\\-])/(?:home|users|scratch|work|projects?|gpfs|lustre)/")

Document = Mapping[str, Any]
Files = Mapping[str, str | Document]
"""By path: text, or what a YAML file holds."""
Problems = Iterator[str]


def problems(portal: str, release: str, files: Files) -> list[str]:
    """What the portal would not take, or should not be given; empty if all is well."""
    found = {
        "ondemand": _batch_connect,
        "project-manager": _project,
        "job-composer": _job_template,
        "open-composer": _open_composer,
    }[portal](release, files)
    return [*found, *_for_everybody(portal, files)]


# ---- All portals


def _for_everybody(portal: str, files: Files) -> Problems:
    """An export is for every user of a centre, and shown in a browser."""
    for name, content in files.items():
        text = content if isinstance(content, str) else str(content)
        for number, line in enumerate(text.split("\n"), 1):
            if found := _PLACE.search(line):
                yield f"{name}:{number}: a person's or project's path: {line[found.start() :][:60]}"
            if found := _MAIL.search(line):
                yield f"{name}:{number}: an e-mail address: {found[0][:60]}"
    shown = {name: str(text) for name, text in files.items() if name.endswith(SCRIPT_ENDINGS)}
    if script := _table(files, "form.yml").get("script"):
        shown["form.yml: script"] = script
    for name, text in shown.items():
        yield from _script(name, text)
        size = len(text.encode())
        if portal in ("project-manager", "job-composer") and size > PORTAL_BYTES:
            yield f"{name}: {size} bytes, and this portal shows scripts of up to {PORTAL_BYTES}"


def _script(name: str, script: str) -> Problems:
    if not script.startswith("#!"):
        yield f"{name}: does not begin with #!"
    if found := re.search(r"^#SBATCH.*--account(?!=#\{account\}$).*", script, re.MULTILINE):
        yield f"{name}: names an account: {found[0]}"


def _table(files: Files, name: str) -> Document:
    content = files.get(name)
    return content if isinstance(content, Mapping) else {}


def _named(manifest: Document, name: str) -> Problems:
    if not manifest.get("name"):
        yield f"{name}: needs a name"
    icon = manifest.get("icon")
    if icon is not None and not ICON.fullmatch(str(icon)):
        yield f"{name}: the icon {icon!r} is not like fas://cog"


# ---- Open OnDemand: Batch Connect


_FIELDS = frozenset(
    """number_field text_field text_area select check_box path_selector hidden_field radio
    radio_button""".split()  # noqa: SIM905
)
_TAKEN = frozenset(
    """class display dup extend freeze hash inspect itself method methods object_id open p print
    puts send singleton_class staged_root tap test then to_h to_s""".split()  # noqa: SIM905
)
"""Names that a form's item cannot have: the values are read from an OpenStruct."""


def _batch_connect(release: str, files: Files) -> Problems:
    manifest, form = _table(files, "manifest.yml"), _table(files, "form.yml")
    yield from _named(manifest, "manifest.yml")
    if manifest.get("role") != "batch_connect":
        yield "manifest.yml: the role must be batch_connect"
    yield from _form("form.yml", form, release)
    if not form.get("cluster"):
        yield "form.yml: names no cluster"
    attributes = form.get("attributes") or {}
    for key in form.get("form") or []:
        if key in _TAKEN or key != key.lower():
            yield f"form.yml: no item can be called {key}"
        attribute = attributes.get(key) or {}
        if attribute.get("widget") == "select":
            yield from _choices(f"form.yml: {key}", attribute, form, release)
    for needed in ("submit.yml.erb", "template/before.sh.erb"):
        text = files.get(needed)
        if not isinstance(text, str) or text.count("<%") != text.count("%>"):
            yield f"{needed}: is missing, or a tag is not closed"
    before = str(files.get("template/before.sh.erb", ""))
    for script in re.findall(r"script=(\S+) ;;", before):
        if f"template/{script}" not in files:
            yield f"template/before.sh.erb: starts {script}, which is not there"


def _choices(where: str, attribute: Document, form: Document, release: str) -> Problems:
    """Options of a select, and what they do to other items (dynamic_forms.js)."""
    options = attribute.get("options") or []
    items = [*(form.get("form") or []), "cluster"]
    ids = {item.replace("_", "-") for item in items}
    values = [option[1] for option in options]
    folded = [re.sub(r"[-_]+", "_", value.lower()) for value in values]
    if not options or not all(values):
        yield f"{where}: has no options, or an empty one"
    if release == "4.0" and any(re.search(r"['\\\\]", value) for value in values):
        yield f"{where}: OnDemand 4.0 finds no option with a quote or a backslash in it"
    if len(set(folded)) < len(folded):
        yield f"{where}: two options that the form cannot tell apart"
    if attribute.get("value") not in values:
        yield f"{where}: its default is none of its options"
    for option in options:
        for directive in (key for table in option[2:] for key in table):
            limit = re.fullmatch(r"data-(?:min|max)-([a-z0-9-]+)", directive)
            hide = re.fullmatch(r"data-option-for-(cluster)-([A-Za-z0-9-]+)", directive)
            if not (limit and limit[1] in ids and "-for-" not in limit[1]) and not hide:
                yield f"{where}: {directive} changes no item of the form"


def _form(name: str, form: Document, release: str) -> Problems:
    items, attributes = form.get("form"), form.get("attributes")
    if not isinstance(items, list) or not isinstance(attributes, Mapping):
        yield f"{name}: needs a list `form` and a table `attributes`"
        return
    if not form.get("title"):
        yield f"{name}: needs a title"
    for key in items:
        smart = key in SMART_ATTRIBUTES[release] or key.startswith(_VARIABLE)
        looks_smart = key.startswith(("auto_", "bc_"))
        widget = (attributes.get(key) or {}).get("widget")
        if looks_smart and not smart:
            yield f"{name}: OnDemand {release} does not know {key}"
        if not looks_smart and widget not in _FIELDS:
            yield f"{name}: {key} needs a widget that OnDemand has"
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            yield f"{name}: {key!r} is no name of an item"
    if set(attributes) != set(items) or len(set(items)) < len(items):
        yield f"{name}: `form` and `attributes` list different items, or one twice"


# ---- Open OnDemand: Project Manager and Job Composer


_VARIABLE = "auto_environment_variable_"


def _project(release: str, files: Files) -> Problems:
    manifest = _table(files, ".ondemand/manifest.yml")
    yield from _named(manifest, ".ondemand/manifest.yml")
    launchers = [name for name in files if name.startswith(".ondemand/launchers/")]
    if not launchers:
        yield ".ondemand/launchers: holds no launcher"
    for name in launchers:
        form = _table(files, name)
        if not LAUNCHER_ID.fullmatch(name.split("/")[2]) or not name.endswith("/form.yml"):
            yield f"{name}: the id is not eight letters, digits or underscores"
        yield from _form(name, form, release)
        if not isinstance(form.get("created_at"), int):
            yield f"{name}: needs created_at, by which launchers are sorted"
        attributes = form.get("attributes") or {}
        value = (attributes.get("auto_scripts") or {}).get("value")
        if value not in files or not str(value).endswith(SCRIPT_ENDINGS) or "/" in str(value):
            yield f"{name}: auto_scripts names {value!r}, which is no script of the project"
        for key in form.get("form") or []:
            variable = key.removeprefix(_VARIABLE)
            if variable != key and not re.fullmatch(r"[A-Z][A-Z0-9_]*", variable):
                yield f"{name}: {key} sets no variable of that name"


def _job_template(release: str, files: Files) -> Problems:
    manifest = _table(files, "manifest.yml")
    yield from _named(manifest, "manifest.yml")
    for key in sorted(set(manifest) - {"name", "host", "script", "notes"}):
        yield f"manifest.yml: OnDemand {release} does not know {key}"
    script = manifest.get("script")
    if not isinstance(files.get(str(script)), str):
        yield f"manifest.yml: names the script {script!r}, which is not there"


# ---- Open Composer


def _open_composer(release: str, files: Files) -> Problems:
    form = _table(files, "form.yml")
    yield from _named({**_table(files, "manifest.yml"), "icon": None}, "manifest.yml")
    for section in ("form", "script"):
        if not form.get(section):
            yield f"form.yml: needs the section {section}"
            return
    widgets: Document = form["form"]
    for key, widget in widgets.items():
        if not _WIDGET_NAME.fullmatch(key):
            yield f"form.yml: {key!r} is no name of a widget"
        if widget.get("widget") not in _WIDGETS:
            yield f"form.yml: {key}: there is no widget {widget.get('widget')!r}"
        if widget.get("widget") == "select":
            yield from _options(f"form.yml: {key}", widget, widgets)
    for inside in re.findall(r"#\{(.+?)\}", form["script"]):
        if inside not in widgets and re.sub(r"_\d+$", "", inside) not in widgets:
            yield f"form.yml: the script names {inside}, which is no widget"


def _options(where: str, widget: Document, widgets: Document) -> Problems:
    options: Sequence[Sequence[Any]] = widget.get("options") or []
    if widget.get("value") not in [option[0] for option in options]:
        yield f"{where}: its default is none of its options"
    if len({option[0] for option in options}) < len(options):
        yield f"{where}: two options have one name"
    sizes = {len(option[1]) if isinstance(option[1], list) else -1 for option in options}
    if len(sizes) > 1:
        yield f"{where}: options with different numbers of values"
    for option in options:
        for value in option[1] if isinstance(option[1], list) else [option[1]]:
            if not re.fullmatch(r"[ !#-&(-\[\]-~]*", value):
                yield f"{where}: Ruby and JavaScript read {value!r} differently"
        for change in option[2:]:
            (word,) = change
            target = _DYNAMIC.sub("", word)
            if not _DYNAMIC.match(word) or target not in widgets:
                yield f"{where}: {word!r} changes no widget"
