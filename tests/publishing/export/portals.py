"""What Open OnDemand and Open Composer do with an exported app, between the form and sbatch.

Written after OSC/ondemand v4.2.3 (BatchConnect::Session), OSC/ood_core 86656b3 (the Slurm
adapter, BatchConnect::Template) and RIKEN-RCCS/OpenComposer 4330e3a (form.js, schedulers/slurm.rb).
Their Ruby runs as Ruby, in portal.rb.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

RUBY = shutil.which("ruby")
needs_ruby = pytest.mark.skipif(RUBY is None, reason="portals are written in Ruby: no ruby here")

Said = Mapping[str, Any]


def in_ruby(portal: str, app: Path | None, said: Sequence[Any]) -> list[Any]:
    """Each form's answer."""
    assert RUBY is not None, "portals are written in Ruby: make packages"
    script = Path(__file__).with_name("portal.rb")
    done = subprocess.run(
        [RUBY, str(script), portal, str(app or "")],
        input=json.dumps(said),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


@dataclass(frozen=True)
class Submission:
    """A call of sbatch. argv: what follows `sbatch`; script: on its stdin, or a file's text."""

    argv: Sequence[str]
    script: str
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """What else lies in the job's directory."""


def form_of(app: Path, name: str = "form.yml") -> dict[str, Any]:
    form: dict[str, Any] = yaml.safe_load((app / name).read_text())
    return form


# ---- Open OnDemand


def batch_connect_defaults(app: Path) -> dict[str, Any]:
    form = form_of(app)
    cluster = form["cluster"]
    first = cluster if isinstance(cluster, str) else cluster[0]
    said = {key: str(table.get("value", "")) for key, table in form["attributes"].items()}
    return {"cluster": first, **said}


def batch_connect(app: Path, said: Said, staged: Path) -> Submission:
    """What a session submits that was staged in `staged`, which holds the app's template."""
    (answer,) = in_ruby("batch-connect", app, [said])
    assert "error" not in answer, answer
    files = {
        path.name: path.read_text()
        for path in (app / "template").iterdir()
        if not path.name.endswith(".erb")
    }
    files["before.sh"] = answer["before"]
    options = answer["submit"]["script"]
    argv = ["-D", str(staged), "-J", "sys/fsdpkit", "-o", str(staged / "output.log")]
    argv += _of_core(options)
    wrapper = Path(__file__).with_name("basic.sh").read_text(encoding="utf-8").format(dir=staged)
    return Submission([*argv, "--export", "NONE", *options["native"]], wrapper, files=files)


def _of_core(options: Said) -> list[str]:
    argv = []
    if options.get("accounting_id"):
        argv += ["-A", str(options["accounting_id"])]
    if options.get("wall_time"):
        hours, rest = divmod(int(options["wall_time"]), 3600)
        argv += ["-t", f"{hours:02}:{rest // 60:02}:{rest % 60:02}"]
    return argv


# ---- Open Composer


def open_composer_defaults(app: Path) -> dict[str, str]:
    widgets = form_of(app, "form.yml.erb")["form"]
    own = {"_script_location": "/home/alex", "_script_1": "job.sh", "_script_2": ""}
    return own | {key: str(widget.get("value", "")) for key, widget in widgets.items()}


def filled_in(app: Path, said: Said) -> str:
    """The script as the page shows it: what fields say stands in the place of their names."""
    form = form_of(app, "form.yml.erb")
    lines = []
    for line in form["script"].split("\n"):
        names = re.findall(r"#\{(.+?)\}", line)
        values = {name: _value(form["form"], name, said) for name in names}
        if any(value in ("", None) for value in values.values()):
            continue
        for name, value in values.items():
            line = line.replace(f"#{{{name}}}", str(value))
        lines.append(line)
    return "\n".join(lines)


def _value(widgets: Said, name: str, said: Said) -> Any:
    if name in widgets:
        value = said[name]
        if widgets[name]["widget"] == "select":
            (chosen,) = (one for one in widgets[name]["options"] if one[0] == value)
            value = chosen[1]
    else:
        key, _, number = name.rpartition("_")
        (chosen,) = (one for one in widgets[key]["options"] if one[0] == said[key])
        value = chosen[1][int(number) - 1]
    escapes = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\", '\\"': '"', "\\'": "'"}
    return re.sub(r"\\[ntr\\'\"]", lambda found: escapes[found[0]], str(value))


def open_composer(app: Path, said: Said) -> Submission:
    return Submission(["--export=NONE", "job.sh"], filled_in(app, said))
