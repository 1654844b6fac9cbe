"""A centre's folder as tests publish it: plain things beside hostile and very large ones."""

from __future__ import annotations

import json
from pathlib import Path

HOSTILE = "<script>alert(1)</script> \"'` &amp; \u202eevil\u202c <img src=x onerror=alert(2)>"
"""Markup, quotes and a text that runs backwards."""

_PLAIN = """
schema = "fsdpkit.site/1"
title = "Heron"
verified = "2026-10-02, Slurm 25.05"
[[sources]]
what = "The centre's own notes"
checked = "2026-09-30"
level = "measured"
[account]
required = true
pattern = '''[a-z]{2}\\d{3}'''
example = "ab123"
[node_types.big]
gpus = 8
gpu = "NVIDIA H100 80 GB"
gpu_memory_gb = 80
compute_capability = "9.0"
cpus = 112
memory_mb = 2000000
[node_types.old]
gpus = 2
gpu = "NVIDIA V100 16 GB"
gpu_memory_gb = 16
compute_capability = "7.0"
cpus = 40
memory_mb = 380000
[partitions.long]
node_type = "big"
select = { partition = "long" }
max_nodes = 4
max_time = "2-00:00:00"
max_time_multinode = "12:00:00"
[partitions.wide]
node_type = "big"
select = { partition = "wide", qos = "large jobs" }
max_nodes = 64
max_time = "06:00:00"
min_gpus = 8
[partitions.old]
node_type = "old"
select = { partition = "old" }
automatic = false
preempt = "cancel"
[policy]
requeue = false
"""
_HOSTILE = f"""
schema = "fsdpkit.site/1"
title = {json.dumps(HOSTILE)}
docs = "javascript:alert(3)"
contact = {json.dumps(HOSTILE)}
unknown = [{json.dumps(HOSTILE)}]
[node_types."<b>kind</b>"]
gpus = 4
gpu = {json.dumps(HOSTILE)}
[partitions."<i>first</i>"]
node_type = "<b>kind</b>"
select = {{ partition = "it's; $(id) #x" }}
[storage]
notes = {json.dumps(HOSTILE)}
"""
_VAST = """
schema = "fsdpkit.site/1"
title = "Vast"
[node_types.node]
gpus = 4
cpus = 64
[partitions.all]
node_type = "node"
select = { partition = "all" }
max_nodes = 5000
"""
_HOSTILE_TEMPLATE = f"""
schema = "fsdpkit.template/1"
name = "hostile"
version = "1.0.0"
description = {json.dumps(HOSTILE)}
[parameters.choice]
type = "str"
choices = [{json.dumps(HOSTILE)}, "plain"]
help = {json.dumps(HOSTILE)}
[parameters.pattern]
type = "str"
default = {json.dumps(HOSTILE)}
pattern = {json.dumps(r"(?s).*|</code><script>alert(4)</script>")}
help = {json.dumps(HOSTILE)}
"""
_TYPED = """
schema = "fsdpkit.template/1"
name = "typed"
version = "2.1.0"
description = "One parameter of each type."
[parameters.verbose]
type = "bool"
default = false
help = "Whether it says what it does."
[parameters.tries]
type = "int"
default = 2
minimum = 1
maximum = 9
help = "How often it tries."
[parameters.share]
type = "float"
minimum = 0.0
maximum = 1.0
help = "Share of the memory."
[parameters.mode]
type = "str"
default = "fast"
choices = ["fast", "slow and sure"]
help = "How it works."
[parameters.label]
type = "str"
pattern = '''[^\\n]{0,200}'''
help = "A text of yours."
"""
_BODY = """\
{{ site.shebang | note }}
{% for line in origins %}
#   {{ line | note }}
{% endfor %}
{% for d in directives %}
{% if d.value is none %}
#SBATCH --{{ d.name | sb }}
{% else %}
#SBATCH --{{ d.name | sb }}={{ d.value | sb }}
{% endif %}
{% endfor %}
run={{ run.dir | sh }}
program=({{ job.entry | sh }})
program+=({{ job.args | sh_arg }})
{% for words in job.array_args %}
more+=({{ words | sh }})
{% endfor %}
PARAMETERS
srun "${program[@]}" "${more[@]}" "$run"
"""


def make_centre(top: Path) -> Path:
    """The folder `centre` below `top`."""
    centre = top / "centre"
    profiles = centre / "site" / "profiles" / "zoo"
    for name, text in {"heron": _PLAIN, "hostile": _HOSTILE, "vast": _VAST}.items():
        _write(profiles / f"{name}.toml", text)
    _write(centre / "templates" / "typed" / "template.toml", _TYPED)
    names = ("verbose", "tries", "share", "mode", "label")
    _write(centre / "templates" / "typed" / "job.sbatch.j2", _body(names))
    _write(centre / "templates" / "typed" / "README.md", "# typed\n\nFor tests.\n")
    hostile = centre / "templates" / "hostile"
    _write(hostile / "template.toml", _HOSTILE_TEMPLATE)
    _write(hostile / "job.sbatch.j2", _body(("choice", "pattern")))
    _write(hostile / "README.md", f"</pre>{HOSTILE}\n")
    many = [f"p{number}" for number in range(200)]
    manifest = _TYPED.partition("[parameters")[0].replace('"typed"', '"many"')
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
    return _BODY.replace("PARAMETERS", "\n".join(lines))


def _shown(name: str) -> str:
    value = f"parameters.{name}"
    return f"('yes' if {value} else 'no')" if name == "verbose" else value


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
