"""A template that runs a job's script as one process, without agents or torchrun, and vouches for
it as agents do."""

from __future__ import annotations

from pathlib import Path

MANIFEST = """
schema = "fsdpkit.template/1"
name = "bare"
version = "1.0.0"
description = "One process, no agents."
"""

TEMPLATE = """\
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
export FSDPKIT_RUN_DIR={{ run.dir | sh }}
entry={{ job.entry | sh }}
arguments=({{ job.args | sh_arg }})
{% for words in job.array_args %}
array_args+=({{ words | sh }})
{% endfor %}
export FSDPKIT_TASK_DIR=$FSDPKIT_RUN_DIR
for (( at = 0; at < ${#array_args[@]}; at += 2 + array_args[at + 1] )); do
    if (( array_args[at] == SLURM_ARRAY_TASK_ID )); then
        arguments+=("${array_args[@]:at + 2:array_args[at + 1]}")
    fi
done
{% if array %}
FSDPKIT_TASK_DIR+=/task-$SLURM_ARRAY_TASK_ID
{% endif %}
ATTEMPT=$(( {{ run.first_attempt }} + ${SLURM_RESTART_COUNT:-0} ))
mkdir -p "$FSDPKIT_TASK_DIR/attempt-$ATTEMPT"
python3 -S "$entry" "${arguments[@]}" || exit
echo '{}' > "$FSDPKIT_TASK_DIR/attempt-$ATTEMPT/verdict.json"
"""


def write_bare_template(directory: Path) -> None:
    """Add the template `bare` to the configuration in `directory`."""
    place = directory / "templates" / "bare"
    place.mkdir(parents=True)
    (place / "template.toml").write_text(MANIFEST)
    (place / "job.sbatch.j2").write_text(TEMPLATE)
