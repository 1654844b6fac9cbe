"""What the readers of an export demand of it, as checks: OnDemand 4.0 to 4.2, Open Composer 2.0.

Ported from their sources as they were read on 2026-11-24: OSC/ondemand v4.0.0, v4.1.6 and v4.2.3
(models Launcher, Project, Manifest; lib smart_attributes), RIKEN-RCCS/OpenComposer 4330e3a (run.rb,
lib/form.rb). Neither is in a distribution's packages, so nothing else says whether they read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fsdpkit.publishing.template_checklist import PORTAL_BYTES

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
_DYNAMIC = re.compile(r"(?:set-(?:min|max|step|label|value|required|help)|show|hide|enable|disable)-")
_PLACE = re.compile(r"(?<![\w.$}\\-])/(?:home|users|scratch|work|projects?|gpfs|lustre)/")

Files = Mapping[str, str]
"""Text by its path in the export."""
Problems = Iterator[str]


def script_problems(name: str, script: str) -> Problems:
    """Of a script that a portal shows and submits."""
    size = len(script.encode())
    if size > PORTAL_BYTES:
        yield f"{name}: {size} bytes, and portals show scripts of up to {PORTAL_BYTES}"
    if not script.startswith("#!"):
        yield f"{name}: does not begin with #!"
    if found := re.search(r"^#SBATCH.*--account.*", script, re.MULTILINE):
        yield f"{name}: names an account: {found[0]}"


def place_problems(files: Files) -> Problems:
    """An export is for every user of a centre."""
    for name, text in files.items():
        for number, line in enumerate(text.split("\n"), 1):
            if found := _PLACE.search(line):
                yield f"{name}:{number}: a path of one person or project: {line[found.start():][:60]}"


def manifest_problems(manifest: Any, *, batch_connect: bool) -> Problems:
    if not isinstance(manifest, dict) or not manifest.get("name"):
        yield "manifest.yml: needs a name"
        return
    icon = manifest.get("icon")
    if icon is not None and not ICON.fullmatch(str(icon)):
        yield f"manifest.yml: icon {icon!r} is not like fas://cog"
    if batch_connect and manifest.get("role") != "batch_connect":
        yield "manifest.yml: role must be batch_connect"


def batch_connect_problems(form: Any, release: str) -> Problems:
    """form.yml of a Batch Connect app."""
    yield from _form_problems("form.yml", form, release)
    if isinstance(form, dict) and not form.get("cluster"):
        yield "form.yml: names no cluster"


def launcher_problems(form: Any, release: str, launcher_id: str, scripts: Files) -> Problems:
    """form.yml of a launcher in the project `scripts`."""
    name = f".ondemand/launchers/{launcher_id}/form.yml"
    if not LAUNCHER_ID.fullmatch(launcher_id):
        yield f"{name}: the id is not eight letters, digits or underscores"
    yield from _form_problems(name, form, release)
    if not isinstance(form, dict):
        return
    if not form.get("title"):
        yield f"{name}: needs a title"
    if not isinstance(form.get("created_at"), int):
        yield f"{name}: needs created_at, by which launchers are sorted"
    value = (form.get("attributes") or {}).get("auto_scripts", {}).get("value")
    if value not in scripts or not str(value).endswith(SCRIPT_ENDINGS):
        yield f"{name}: auto_scripts names {value!r}, which is no script of the project"


def _form_problems(name: str, form: Any, release: str) -> Problems:
    if not isinstance(form, dict) or not isinstance(form.get("form"), list):
        yield f"{name}: needs a list `form`"
        return
    attributes = form.get("attributes") or {}
    for key in form["form"]:
        smart = key in SMART_ATTRIBUTES[release] or key.startswith("auto_environment_variable_")
        looks_smart = key.startswith(("auto_", "bc_"))
        if looks_smart and not smart:
            yield f"{name}: OnDemand {release} does not know {key}"
        if not looks_smart and not (attributes.get(key) or {}).get("widget"):
            yield f"{name}: {key} needs a widget"
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            yield f"{name}: {key!r} is no name of an attribute"
    for key in attributes:
        if key not in form["form"]:
            yield f"{name}: the attribute {key} is not in the form"


def open_composer_problems(app: str, manifest: Any, form: Any) -> Problems:
    """manifest.yml and form.yml of an Open Composer app in the directory `app`."""
    if not _WIDGET_NAME.fullmatch(app.replace("-", "_")) or not re.fullmatch(r"[\w-]+", app):
        yield f"{app}: a directory's name has letters, digits and underscores"
    yield from manifest_problems({**manifest, "icon": None}, batch_connect=False)
    for section in ("form", "script"):
        if not isinstance(form, dict) or not form.get(section):
            yield f"form.yml: needs the section {section}"
            return
    widgets = form["form"]
    for key, widget in widgets.items():
        if not _WIDGET_NAME.fullmatch(key):
            yield f"form.yml: {key!r} is no name of a widget"
        if widget.get("widget") not in _WIDGETS:
            yield f"form.yml: {key}: there is no widget {widget.get('widget')!r}"
        sizes = set()
        for option in widget.get("options", []):
            sizes.add(len(option[1]) if isinstance(option[1], list) else 1)
            for change in option[2:]:
                (word,) = change if isinstance(change, dict) else (change,)
                target = _DYNAMIC.sub("", word)
                if not _DYNAMIC.match(word) or target not in widgets:
                    yield f"form.yml: {key}: {word!r} changes no widget"
        if len(sizes) > 1:
            yield f"form.yml: {key}: options with different numbers of values"
    for inside in re.findall(r"#\{(.+?)\}", str(form["script"])):
        for word in re.findall(r"[A-Za-z_]\w*", re.sub(r"^\w+\(", "", inside)):
            if word not in widgets and re.sub(r"_\d+$", "", word) not in widgets:
                yield f"form.yml: the script names {word}, which is no widget"
