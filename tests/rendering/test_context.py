"""What `fsdpkit template context` says is what a template gets: no name more, none less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.config.job_loading import load_job
from fsdpkit.config.placement import place
from fsdpkit.config.site import load_site
from fsdpkit.config.template import Template, load_template
from fsdpkit.rendering import context as described
from fsdpkit.rendering.environment import render_template
from fsdpkit.rendering.script import Plan, context_of
from fsdpkit.rendering.traced import Where


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "train.py").touch()
    options = {
        "resources.nodes": 2,
        "resources.gpus": 4,
        "resources.account": "PAS2136",
        "array_args": {"0": ["--seed", "1"]},
    }
    job = load_job(str(tmp_path / "train.py"), options=options)
    site = load_site("osc-cardinal")
    template = load_template("torchrun")
    return Plan(job, site, template, place(job.spec.resources, site), tmp_path, "0-1")


def keys_of(value: Any, above: str = "") -> Iterator[str]:
    """Every name in the data, as `names` writes it; a table of free names is one name."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield above + key
        if isinstance(inner, dict) and above + key not in FREE:
            yield from keys_of(inner, f"{above}{key}.")
        elif isinstance(inner, list) and inner and isinstance(inner[0], dict):
            yield from keys_of(inner[0], f"{above}{key}[].")


FREE = {
    *("environment.variables", "site.environment.variables", "site.network.env"),
    *("site.node_types", "site.partitions", "site.parameters", "site.identify.env"),
}


def test_every_name_that_a_template_gets_is_described_with_type_and_meaning(plan: Plan) -> None:
    names = described.names(plan.template.manifest)
    given = set(keys_of(context_of(plan, plan.work_dir / "run")))
    assert given - {each.name for each in names} == set()
    assert [each.name for each in names if not each.meaning or not each.type] == []


def test_a_probe_can_read_each_name_that_is_described(
    plan: Plan, write_template: Callable[..., Template]
) -> None:
    names = described.names(plan.template.manifest)
    plain = [each.name for each in names if "[]" not in each.name]
    probe = "".join(f"{{% if {name} is defined %}}# {name}\n{{% endif %}}" for name in plain)
    context = context_of(plan, plan.work_dir / "run")
    script = render_template(write_template("#!/bin/bash\n" + probe), context)
    assert script.splitlines()[1:] == [f"# {name}" for name in plain]
    for each in names:
        assert described.value_at(context, each.name) is not None or "nothing" in each.type, each


def test_each_line_of_a_script_leads_back_to_its_template(
    write_template: Callable[..., Template],
) -> None:
    from fsdpkit.rendering.environment import trace_template

    template = write_template(
        "#!/bin/bash\n<# why #>\n{% for n in names %}\n# {{ n | note }}\n{% endfor %}\n"
        "X={{ text | sh }}\n{% include 'tail.j2' %}\nexit 0\n",
        tail="echo one\n\necho {{ number }}\n",
    )
    traced = trace_template(template, {"names": ["a", "b"], "text": "t", "number": 3})
    lines = traced.script.splitlines()
    at = {line: traced.line_of(number) for number, line in enumerate(lines, 1)}
    job = "job.sbatch.j2"
    assert at == {
        "#!/bin/bash": Where(job, 1),
        "# a": Where(job, 4),
        "# b": Where(job, 4),
        "X=t": Where(job, 6),
        "echo one": Where("tail.j2", 1),
        "": Where("tail.j2", 2),
        "echo 3": Where("tail.j2", 3),
        "exit 0": Where(job, 8),
    }
    other = trace_template(template, {"names": ["x", "y"], "text": "$(id)", "number": 40})
    assert other.skeleton == traced.skeleton != traced.script
    assert traced.line_of(99) is None
