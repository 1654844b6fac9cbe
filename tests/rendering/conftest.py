"""Templates and plans of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpkit.config.entry import Entry
from fsdpkit.config.job_loading import load_job
from fsdpkit.config.loading import Layered, build
from fsdpkit.config.placement import place
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import load_site
from fsdpkit.config.template import Template, load_template
from fsdpkit.rendering.script import Plan, PythonEnvironment, render
from tests.rendering.bash_stubs import Bash, RenderScript

MANIFEST = """
schema = "fsdpkit.template/1"
name = "mine"
version = "0.0.1"
description = "A template of a test."
"""


@pytest.fixture
def write_template(tmp_path: Path) -> Callable[..., Template]:
    """Writes a template folder `mine` and loads it; further files by name."""

    def write(text: str | bytes, **files: str) -> Template:
        directory = tmp_path / "mine"
        directory.mkdir(exist_ok=True)
        (directory / "template.toml").write_text(MANIFEST)
        raw = text if isinstance(text, bytes) else text.encode()
        (directory / "job.sbatch.j2").write_bytes(raw)
        for name, content in files.items():
            (directory / f"{name}.j2").write_text(content)
        return load_template(str(directory))

    return write


@pytest.fixture
def render_script(tmp_path: Path) -> RenderScript:
    """Renders the shipped template for a small job; keywords change the plan.

    options: dotted keys of the job. profile: tables laid over the site's profile. run_dir, entry,
    python, array: as in `Plan`.
    """

    def rendered(
        site: str = "generic",
        *,
        options: Mapping[str, Any] | None = None,
        args: Sequence[str] = (),
        profile: Mapping[str, Any] | None = None,
        run_dir: Path | None = None,
        entry: Path = Path("/home/alex/train.py"),
        python: PythonEnvironment | None = None,
        array: str | None = None,
    ) -> str:
        script = tmp_path / "train.py"
        script.touch()
        shape = {"resources.nodes": 2, "resources.gpus": 4}
        if site.startswith("osc-"):
            shape["resources.account"] = "PAS2136"  # type: ignore[assignment]
        job = load_job(str(script), options={**shape, **(options or {})}, args=args)
        loaded = load_site(site)
        if profile:
            layered = Layered(msgspec.to_builtins(loaded.profile))
            layered.say(profile, "test")
            loaded = replace(loaded, profile=build(SiteProfile, layered, "site test"))
        plan = Plan(
            replace(job, entry=Entry.of_file(entry)),
            loaded,
            load_template("torchrun"),
            place(job.spec.resources, loaded),
            tmp_path,
            array,
            python=python or PythonEnvironment("prefix", "/nowhere/bin"),
        )
        return render(plan, run_dir or tmp_path / "run")

    return rendered


@pytest.fixture
def shell(tmp_path: Path, render_script: RenderScript) -> Bash:
    root = tmp_path / "shell"
    root.mkdir()
    return Bash(root, render_script)
