"""What a template can do to the login node's process: nothing, and it ends soon.

Each hostile template must end in RenderError. Where a value may stand is in
test_template_places.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.config.template import Template, load_template
from fsdpkit.errors import ConfigError, RenderError
from fsdpkit.rendering import limited_process
from fsdpkit.rendering.environment import render_template
from fsdpkit.rendering.limited_process import in_limited_process
from fsdpkit.rendering.traced import Traced
from fsdpkit.rendering.variables import Undecided, Variable
from tests.rows import pairs

WriteTemplate = Callable[..., Template]
VALUES = {
    "text": "plain",
    "names": ["a", "b"],
    "table": {"x": "1", "b": "3", "C": "4", "B": "2"},
    "number": 3,
    "nothing": None,
    "long": "x" * 4000,
}

TOO_LONG = "{% set t = long %}" + "{% set t = t ~ t %}" * 60
HOSTILE = [
    *pairs(Path(__file__).with_name("hostile.txt")),
    ("{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}", "ecursion"),
    ("{% if 1 %}" * 500 + "{% endif %}" * 500, "ecursion"),
    ("{% for a in names %}" * 30 + "{% endfor %}" * 30, "too many"),
    (
        "true\n{% for a in range(99999) %}" + "echo {{ a }};" * 99 + "{% endfor %}",
        "larger than 4000000 bytes",
    ),
    (TOO_LONG, "MemoryError"),
    ("{{ " + "a ~ " * 20_000 + "a }}", "more than 8000"),
    ("{{ a }}" * 9000, "more than 8000"),
    ("{{ " + "9" * 6000 + " }}", "limit"),
    ("{% raw %}" + "{{" * 50_000, "Missing end of raw"),
]
ENDLESS = {
    "loops": "{% for a in range(99999) %}" * 2 + "{% endfor %}" * 2,
    "a number that grows": "{% set n = 99 %}" + "{% set n = n * n %}" * 40 + "{{ n }}",
}


@pytest.mark.parametrize(("text", "why"), HOSTILE, ids=lambda each: each[:24])
def test_a_hostile_template_ends_in_an_error(
    text: str, why: str, write_template: WriteTemplate, tmp_path: Path
) -> None:
    (tmp_path / "secret.j2").write_text("secret")
    template = write_template(text, part="true\n")
    with pytest.raises(RenderError, match=why) as refused:
        render_template(template, VALUES)
    assert "secret" not in str(refused.value).replace("secret.j2", "")


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS.keys())
def test_what_takes_long_is_ended(text: str, write_template: WriteTemplate) -> None:
    with pytest.raises(RenderError, match="processor time"):
        render_template(write_template(text), VALUES)


def test_memory_is_taken_from_nobody_and_the_line_is_named(write_template: WriteTemplate) -> None:
    template = write_template(f"#!/bin/bash\n{TOO_LONG}")
    with pytest.raises(RenderError, match=r"job\.sbatch\.j2, line 2: MemoryError"):
        render_template(template, VALUES)


def test_an_ordinary_template_is_limited_and_the_packages_own_is_not(
    write_template: WriteTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks: list[int] = []
    monkeypatch.setattr(os, "fork", lambda fork=os.fork: forks.append(1) or fork())
    template = write_template("#!/bin/bash\ntrue\n")
    assert render_template(template, VALUES) == "#!/bin/bash\ntrue\n"
    assert forks == [1]
    with pytest.raises(RenderError, match="undefined"):
        render_template(load_template("torchrun"), VALUES)
    assert forks == [1]


def test_a_process_that_dies_or_says_nothing_is_an_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dies() -> Traced:
        os._exit(3)

    def fails() -> Traced:
        raise OSError("no such luck")

    def hangs() -> Traced:
        time.sleep(600)
        return Traced([])

    monkeypatch.setattr(limited_process, "_WAIT_S", 0.5)
    before, forked = os.listdir("/proc/self/fd"), list[int]()
    monkeypatch.setattr(os, "fork", lambda fork=os.fork: forked.append(fork()) or forked[-1])
    for work in (dies, fails, hangs):
        with pytest.raises(RenderError, match=r"was ended|OSError: no such luck"):
            in_limited_process(work)
    assert os.listdir("/proc/self/fd") == before
    assert len(forked) == 3
    assert not [child for child in forked if os.path.exists(f"/proc/{child}")]


def test_what_only_a_form_will_say_is_reported_as_such(write_template: WriteTemplate) -> None:
    nodes = Variable("NODES", "number", "nodes", 1, 8)
    template = write_template("#!/bin/bash\n{% if nodes > 2 %}\ntrue\n{% endif %}\n")
    with pytest.raises(Undecided) as raised:
        render_template(template, {"nodes": nodes})
    assert raised.value.variable.of == "nodes"


def test_the_limits_are_enough_for_a_job_of_ten_thousand_arguments(
    write_template: WriteTemplate,
) -> None:
    template = write_template("ARGUMENTS=({{ words | sh_arg }})\n")
    words = ["--an-argument-of-forty-characters=12345678"] * 10_000
    assert len(render_template(template, {"words": words}).split()) == 10_000


def test_a_link_out_of_the_folder_is_not_followed(
    write_template: WriteTemplate, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere.j2").write_text("secret")
    template = write_template("#!/bin/bash\n{% include 'link.j2' %}")
    (template.dir / "link.j2").symlink_to(tmp_path / "elsewhere.j2")
    with pytest.raises(ConfigError, match="plain file inside its folder"):
        load_template(str(template.dir))


def test_a_link_inside_the_folder_is_followed(write_template: WriteTemplate) -> None:
    template = write_template("#!/bin/bash\n{% include 'link.j2' %}", part="true\n")
    (template.dir / "link.j2").symlink_to("part.j2")
    rendered = render_template(load_template(str(template.dir)), VALUES)
    assert rendered == "#!/bin/bash\ntrue\n"


def test_every_file_that_is_rendered_is_in_the_checksum(write_template: WriteTemplate) -> None:
    """A part under another suffix was included, but not covered."""
    template = write_template("#!/bin/bash\n{% include 'part.txt' %}")
    (template.dir / "part.txt").write_text("true\n")
    with pytest.raises(RenderError, match=r"'part\.txt'.*a part's name ends in \.j2"):
        render_template(load_template(str(template.dir)), VALUES)


def test_what_is_rendered_is_what_the_checksum_was_made_of(write_template: WriteTemplate) -> None:
    template = write_template("#!/bin/bash\n{% include 'part.j2' %}", part="echo one\n")
    checksum = template.sha256
    (template.dir / "part.j2").write_text("echo two\n")
    assert render_template(template, VALUES).endswith("echo one\n")
    assert load_template(str(template.dir)).sha256 != checksum


@pytest.mark.parametrize(
    "text",
    [
        "{{ text }}",
        "{{ 'constant' }}",
        "{{ nothing }}",
        "{{ names }}",
        "{{ (text | sh) ~ 'more' }}",
        "{{ (text | sh) | sh }}",
        "{{ [text | sh] | first | upper }}",
        "{{ true }}",
    ],
)
def test_what_passed_no_quoter_is_not_printed(text: str, write_template: WriteTemplate) -> None:
    with pytest.raises(RenderError, match=r"unquoted|can only be printed"):
        render_template(write_template(f"#!/bin/bash\n{text}"), VALUES)


def test_what_a_quoter_made_is_not_changed(write_template: WriteTemplate) -> None:
    with pytest.raises(RenderError, match="can only be printed"):
        render_template(write_template("X={{ text | sh | upper }}"), VALUES)


def test_an_undefined_name_is_an_error_with_its_line(write_template: WriteTemplate) -> None:
    template = write_template("#!/bin/bash\n\nX={{ nodez | sh }}\n")
    with pytest.raises(RenderError, match=r"job\.sbatch\.j2, line 3: 'nodez' is undefined"):
        render_template(template, VALUES)


def test_an_undefined_name_in_a_condition_is_an_error(write_template: WriteTemplate) -> None:
    template = write_template("{% if nodez %}x{% endif %}")
    with pytest.raises(RenderError, match="'nodez' is undefined"):
        render_template(template, VALUES)


def test_a_template_may_refuse_values_in_its_own_words(write_template: WriteTemplate) -> None:
    template = write_template("{% if number > 2 %}{{ refuse('at most 2') }}{% endif %}")
    with pytest.raises(RenderError, match="refuses: at most 2"):
        render_template(template, VALUES)


def test_what_templates_need_is_there(write_template: WriteTemplate) -> None:
    template = write_template(
        "#!/bin/bash\n{% for key, value in table | dictsort if value != '2' %}\n"
        "PAIR={{ (key ~ '=' ~ value) | sh }}\nAT={{ loop.index }}\n{% endfor %}\n"
        "NAME={{ missing | default('none') | sh }}\n"
        "WORDS=({{ names | sh }})\n"
        "{% if number in [1, 3] and text is not none %}\necho {{ number * 2 + 1 }}\n{% endif %}\n"
        "echo{% for name in names %} {{ loop.index }}{% endfor %}\n"
    )
    lines = render_template(template, VALUES).splitlines()[1:]
    pairs = ["PAIR=C=4", "AT=1", "PAIR=b=3", "AT=2", "PAIR=x=1", "AT=3"]
    assert lines == [*pairs, "NAME=none", "WORDS=(a b)", "echo 7", "echo 1 2"]
