"""A centre's folder as tests publish it: plain things beside hostile and very large ones."""

from __future__ import annotations

import json
from pathlib import Path

HOSTILE = "<script>alert(1)</script> \"'` &amp; \u202eevil\u202c <img src=x onerror=alert(2)>"
"""Markup, quotes and a text that runs backwards."""

_FOLDERS = Path(__file__).parent / "folders"
"""What lies in the centre's folder as it is, but for "HOSTILE"; and the body of its templates."""


def make_centre(top: Path) -> Path:
    """The folder `centre` below `top`."""
    centre = top / "centre"
    for path in (_FOLDERS / "made").rglob("*.toml"):
        text = path.read_text(encoding="utf-8").replace('"HOSTILE"', json.dumps(HOSTILE))
        _write(centre / path.relative_to(_FOLDERS / "made"), text)
    names = ("verbose", "tries", "share", "mode", "label")
    _write(centre / "templates" / "typed" / "job.sbatch.j2", _body(names))
    _write(centre / "templates" / "typed" / "README.md", "# typed\n\nFor tests.\n")
    hostile = centre / "templates" / "hostile"
    _write(hostile / "job.sbatch.j2", _body(("choice", "pattern")))
    _write(hostile / "README.md", f"</pre>{HOSTILE}\n")
    many = [f"p{number}" for number in range(200)]
    typed = (centre / "templates" / "typed" / "template.toml").read_text(encoding="utf-8")
    manifest = typed.partition("[parameters")[0].replace('"typed"', '"many"')
    manifest += "".join(
        f'[parameters.{name}]\ntype = "int"\ndefault = {number}\nhelp = "Number {number}."\n'
        for number, name in enumerate(many)
    )
    _write(centre / "templates" / "many" / "template.toml", manifest)
    _write(centre / "templates" / "many" / "job.sbatch.j2", _body(many))
    _write(centre / "jobs" / "own.py", "print('trained')\n")
    _write(centre / "jobs" / "own.toml", _job("own", "typed", 'args = ["--out", "it\'s $HOME"]'))
    _write(centre / "jobs" / "wide.toml", _job("wide", "many", ""))
    hostile_job = _job("hostile", "hostile", f"args = [{json.dumps(HOSTILE)}]")
    hostile_job = hostile_job.replace('"For tests."', json.dumps(HOSTILE))
    _write(centre / "jobs" / "hostile.toml", hostile_job)
    _write(centre / "defaults.toml", "[retry]\nrequeues = 3\n")
    return centre


def _job(name: str, template: str, more: str) -> str:
    return (
        f'schema = "fsdpkit.job/1"\nname = "{name}"\ndescription = "For tests."\n'
        f'entry = "own.py"\ntemplate = "{template}"\n{more}\n'
        '[resources]\nnodes = 2\ngpus = 2\ntime = "02:00:00"\n'
    )


def _body(names: list[str] | tuple[str, ...]) -> str:
    lines = [
        f"{{% if parameters.{name} is not none %}}\n{name}={{{{ {_shown(name)} | sh }}}}\n"
        "{% endif %}"
        for name in names
    ]
    body = (_FOLDERS / "made.sbatch.j2").read_text(encoding="utf-8")
    return body.replace("PARAMETERS", "\n".join(lines))


def _shown(name: str) -> str:
    value = f"parameters.{name}"
    return f"('yes' if {value} else 'no')" if name == "verbose" else value


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
