"""What a template can do to the login node's process: nothing, and it ends soon.

Each hostile template must end in RenderError after little work, and without growing the process.
Where a value may stand is in test_template_places.py.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.config.template import Template, load_template
from fsdpkit.errors import ConfigError, RenderError
from fsdpkit.rendering.environment import render_template
from tests.rendering.costly_templates import COSTLY, REBOUND
from tests.rendering.work import calls_in

WriteTemplate = Callable[..., Template]
VALUES = {
    "text": "plain",
    "names": ["a", "b"],
    "table": {"x": "1"},
    "number": 3,
    "nothing": None,
    "long": "x" * 4000,
    "many": {f"k{number}": number for number in range(2000)},
}
DOUBLED = "".join("{% set t = t ~ t %}" for _ in range(60))
LONG_LISTS = "".join("{% set l = [l, l] %}" for _ in range(60))

HOSTILE = {
    "dunder": "{{ text.__class__.__mro__[1].__subclasses__() | sh }}",
    "dunder by item": "{{ text['__class__'] | sh }}",
    "dunder by joined name": "{{ text['__cla' ~ 'ss__'] | sh }}",
    "globals of a function": "{{ range.__globals__ | sh }}",
    "method call": "{{ text.upper() | sh }}",
    "str.format": "{{ '{0.__class__}'.format(text) | sh }}",
    "calls what a loop gave": "{% for f in [range] %}{{ f(3) | sh }}{% endfor %}",
    "self": "{{ self.__init__ | sh }}",
    "namespace": "{% set n = namespace(x=1) %}{{ n.x }}",
    "cycler": "{{ cycler(1) }}",
    "lipsum": "{{ lipsum() | sh }}",
    "attr filter": "{{ text | attr('__class__') | sh }}",
    "map filter": "{{ names | map('upper') | first | sh }}",
    "include above": "{% include '../secret.j2' %}",
    "include absolute": "{% include '/etc/passwd' %}",
    "import above": "{% import '../secret.j2' as s %}",
    "from import": "{% from 'job.sbatch.j2' import x %}",
    "extends above": "{% extends '../secret.j2' %}",
    "extends itself": "{% extends 'job.sbatch.j2' %}",
    "includes itself": "x\n{% include 'job.sbatch.j2' %}",
    "includes what is missing": "{% include 'nothing.j2' %}",
    "loops for long": "{% for a in range(99999) %}" * 2 + "{% endfor %}" * 2,
    "loops with a long body": "{% for a in range(99999) %}" + "{{ a }}" * 10_000 + "{% endfor %}",
    "range beyond all": "{% for a in range(10**12) %}{% endfor %}",
    "prints much": "{% for a in range(20000) %}{{ long | sh }}\n{% endfor %}",
    "recursive loop": "{% for a in names recursive %}{{ loop(names) }}{% endfor %}",
    "macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "call block": "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall %}",
    "captured output": "{% set x %}y{% endset %}",
    "filtered output": "{% filter upper %}{{ text | sh }}{% endfilter %}",
    "multiplied text": "{{ ('a' * 10**9) | sh }}",
    "multiplied text, no power": "{{ ('a' * 1000000000) | sh }}",
    "multiplied list": "{% set l = ['a'] * 1000000000 %}",
    "power": "{{ 9 ** 9 ** 9 }}",
    "repeated product": "{% set n = 99999999999 %}" + "{% set n = n * n %}" * 40 + "{{ n }}",
    "percent format": "{{ ('%1000000000d' % 1) | sh }}",
    "format filter": "{{ ('%1000000000d' | format(1)) | sh }}",
    "center": "{{ text | center(1000000000) | sh }}",
    "indent": "{{ text | indent(1000000000) | sh }}",
    "batch": "{{ names | batch(1000000000, 'x') | list | length }}",
    "join": "{{ range(99999) | join(long) | sh }}",
    "replace": "{{ long | replace('x', long) | replace('x', long) | sh }}",
    "doubled text": "{% set t = long %}" + DOUBLED + "{{ t | sh }}",
    "doubled lists": "{% set l = [1] %}" + LONG_LISTS + "{{ l == l }}",
    "lists of lists compared": "{% set l = [[1, 1], [1, 1]] %}",
    "tests by callable": "{{ 1 if text is callable else 2 }}",
    "safe": "{{ text | safe }}",
    "autoescape": "{% autoescape true %}{{ text | sh }}{% endautoescape %}",
    "do": "{% do names.append(1) %}",
    "changes a list": "{{ names.append(1) | sh }}",
    "deep parentheses": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "deep ifs": "{% if 1 %}" * 500 + "{% endif %}" * 500,
    "deep loops": "{% for a in names %}" * 30 + "{% endfor %}" * 30,
    "long number": "{{ " + "9" * 6000 + " }}",
    "syntax error": "{% for %}",
    "never closed": "{% if 1 %}",
    "raw never closed": "{% raw %}" + "{{" * 50_000,
    "control character": "a\x01b",
    "line separator": "a\u2028b",
    "block": "{% block tail %}{% endblock %}",
    "a table of the template's own": "{% set t = {'a': 1} %}",
    "slice": "{{ names[0:1] | sh }}",
    "arguments that are unpacked": "{{ text | default(*names) | sh }}",
    "a part that is no .j2": "{% include 'template.toml' %}",
    "a part by a name that is computed": "{% include text ~ '.j2' %}",
    "one of several parts": "{% include ['a.j2', 'b.j2'] %}",
    "a part that may be missing": "{% include 'a.j2' ignore missing %}",
    **REBOUND,
    **COSTLY,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_template_ends_in_an_error_after_little_work(
    text: str, write_template: WriteTemplate, tmp_path: Path
) -> None:
    (tmp_path / "secret.j2").write_text("secret")
    template = write_template(text)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def refuse() -> None:
        with pytest.raises(RenderError) as refused:
            render_template(template, VALUES)
        assert "secret" not in str(refused.value).replace("secret.j2", "")

    assert calls_in(refuse) < 20_000_000
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
    assert grown_mb < 200


@pytest.mark.parametrize("text", COSTLY.values(), ids=COSTLY.keys())
def test_what_is_costly_is_refused_for_its_work(text: str, write_template: WriteTemplate) -> None:
    with pytest.raises(RenderError, match=r"too much work|recursion depth"):
        render_template(write_template(f"#!/bin/bash\n{text}"), VALUES)


def test_the_budget_is_enough_for_a_job_of_ten_thousand_arguments(
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


@pytest.mark.parametrize("link", ["/dev/zero", "/dev/stdin", "/nowhere"])
def test_a_device_is_no_template(link: str, write_template: WriteTemplate) -> None:
    template = write_template("true\n")
    (template.dir / "link.j2").symlink_to(link)
    with pytest.raises(ConfigError, match=r"link\.j2: a template's file is a plain file"):
        write_template("true\n")


def test_a_template_of_5_mb_is_refused_unread(write_template: WriteTemplate) -> None:
    with pytest.raises(ConfigError, match="at most 128000 bytes"):
        write_template("x" * 5_000_000)


def test_the_work_of_rendering_grows_as_the_template_does(write_template: WriteTemplate) -> None:
    def render(count: int) -> int:
        template = write_template("{{ number }}" * count)
        rendered: list[str] = []
        calls = calls_in(lambda: rendered.append(render_template(template, VALUES)))
        assert rendered == ["3" * count]
        return calls

    assert render(10_500) < 6 * render(2_100)  # 10,500 make the largest file that is read


@pytest.mark.parametrize(
    "text",
    [
        "{{ text }}",
        "{{ 'constant' }}",
        "{{ nothing }}",
        "{{ names }}",
        "{{ (text | sh) ~ 'more' }}",
        "{{ true }}",
    ],
)
def test_what_passed_no_quoter_is_not_printed(text: str, write_template: WriteTemplate) -> None:
    with pytest.raises(RenderError, match=r"unquoted|before it is quoted"):
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


def test_raw_text_is_the_authors_own(write_template: WriteTemplate) -> None:
    template = write_template("#!/bin/bash\n{% raw %}echo ${x:-{{ }}}{% endraw %}\n")
    assert "echo ${x:-{{ }}}" in render_template(template, VALUES)


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
    assert lines == ["PAIR=x=1", "AT=1", "NAME=none", "WORDS=(a b)", "echo 7", "echo 1 2"]
