"""The template's README names what there is."""

from __future__ import annotations

from pathlib import Path

from fsdpkit.config.template import load_template
from fsdpkit.rendering.quoting import QUOTERS
from fsdpkit.rendering.sandbox import TemplateSandbox


def test_the_readme_names_every_parameter_filter_and_test() -> None:
    template = load_template("torchrun")
    text = (Path(template.dir) / "README.md").read_text(encoding="utf-8")
    names = [*template.manifest.parameters, *QUOTERS]
    assert [n for n in names if f"`{n}`" not in text] == []
    words = text.replace("\n", " ")
    sandbox = TemplateSandbox({})
    assert " ".join(sorted({*sandbox.filters} - {*QUOTERS})) in words
    assert " ".join(sandbox.tests) in words
