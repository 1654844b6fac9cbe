"""What a template can do to the login node's process: nothing, and it ends soon.

Each hostile template must end in RenderError, within two seconds of processor time and without
growing the process.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.config.template import Template
from fsdpkit.errors import ConfigError, RenderError
from fsdpkit.rendering.environment import render_template
from tests.rendering.work import calls_in

WriteTemplate = Callable[..., Template]
VALUES = {
    "text": "plain",
    "names": ["a", "b"],
    "table": {"x": "1"},
    "number": 3,
    "nothing": None,
    "long": "x" * 4000,
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


def test_a_link_out_of_the_folder_is_not_followed(
    write_template: WriteTemplate, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere.txt").write_text("secret")
    template = write_template("#!/bin/bash\n{% include 'link.txt' %}")
    (template.dir / "link.txt").symlink_to(tmp_path / "elsewhere.txt")
    with pytest.raises(RenderError, match="outside the template's folder"):
        render_template(template, VALUES)


def test_a_link_inside_the_folder_is_followed(write_template: WriteTemplate) -> None:
    template = write_template("#!/bin/bash\n{% include 'link.j2' %}", part="true\n")
    (template.dir / "link.j2").symlink_to("part.j2")
    assert render_template(template, VALUES) == "#!/bin/bash\ntrue\n"


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
        "{{ text | sh | upper }}",
        "{{ true }}",
    ],
)
def test_what_passed_no_quoter_is_not_printed(text: str, write_template: WriteTemplate) -> None:
    with pytest.raises(RenderError, match=r"unquoted|before it is quoted"):
        render_template(write_template(f"#!/bin/bash\n{text}"), VALUES)


def test_an_undefined_name_is_an_error_with_its_line(write_template: WriteTemplate) -> None:
    template = write_template("#!/bin/bash\n\necho {{ nodez | sh }}\n")
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


PLACES = {
    "a shell word in a directive": (
        "#SBATCH --comment={{ text | sh }}",
        "shell stands in a directive",
    ),
    "a directive's value in the body": ("echo {{ text | sb }}", "directive stands in a shell"),
    "a comment's text in the body": ("echo {{ text | note }}", "comment stands in a shell"),
    "a shell word in a comment": ("# {{ text | sh }}", "shell stands in a comment"),
    "inside double quotes": ('echo "{{ text | sh }}"', "stands inside quotes"),
    "inside single quotes": ("echo '{{ text | sh }}'", "stands inside quotes"),
    "inside quotes over lines": ("echo '\n\n{{ text | sh }}'", "stands inside quotes"),
    "a comment that becomes a directive": (
        "#{{ 'SBATCH --wrap=x' | note }}",
        "it a directive",
    ),
}


@pytest.mark.parametrize(("line", "problem"), PLACES.values(), ids=PLACES.keys())
def test_a_value_stands_only_where_its_quoter_is_right(
    line: str, problem: str, write_template: WriteTemplate
) -> None:
    with pytest.raises(RenderError, match=problem):
        render_template(write_template(f"#!/bin/bash\n{line}\n"), {"text": "x y"})


def test_raw_text_is_the_authors_own(write_template: WriteTemplate) -> None:
    template = write_template("#!/bin/bash\n{% raw %}echo ${x:-{{ }}}{% endraw %}\n")
    assert "echo ${x:-{{ }}}" in render_template(template, VALUES)


def test_what_templates_need_is_there(write_template: WriteTemplate) -> None:
    template = write_template(
        "#!/bin/bash\n{% for key, value in table | dictsort if value != '2' %}"
        "{{ (key ~ '=' ~ value) | sh }} {{ loop.index }}{% endfor %}\n"
        "{% if number in [1, 3] and text is not none %}{{ number * 2 + 1 }}{% endif %}\n"
        "{% block tail %}{{ missing | default('none') | sh }}{% endblock %}\n"
    )
    assert render_template(template, VALUES) == "#!/bin/bash\nx=1 17none"


# ---- The cache of compiled templates


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fsdpkit" / "templates"


def test_a_template_that_was_refused_is_refused_again(
    cache_home: Path, write_template: WriteTemplate
) -> None:
    for _ in range(2):
        with pytest.raises(RenderError, match="Macro"):
            render_template(write_template("{% macro m() %}x{% endmacro %}"), VALUES)
    assert list(cache_home.glob("*.cache")) == []


def test_a_changed_template_is_not_taken_from_the_cache(
    cache_home: Path, write_template: WriteTemplate
) -> None:
    assert render_template(write_template("echo one\n"), VALUES) == "echo one\n"
    assert len(list(cache_home.glob("*.cache"))) == 1
    assert render_template(write_template("echo two\n"), VALUES) == "echo two\n"


def test_a_torn_cache_file_is_made_anew(cache_home: Path, write_template: WriteTemplate) -> None:
    template = write_template("echo one\n")
    render_template(template, VALUES)
    (cached,) = cache_home.glob("*.cache")
    cached.write_bytes(cached.read_bytes()[:-20])
    assert render_template(template, VALUES) == "echo one\n"


def test_a_cache_that_others_can_write_is_not_used(
    cache_home: Path, write_template: WriteTemplate
) -> None:
    """What lies in it is code."""
    cache_home.mkdir(parents=True)
    cache_home.chmod(0o777)
    render_template(write_template("echo one\n"), VALUES)
    assert list(cache_home.iterdir()) == []
