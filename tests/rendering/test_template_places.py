"""Where a value may stand: every place with every quoter, and a real bash for what is accepted."""

from __future__ import annotations

import pytest

from fsdpkit.errors import RenderError
from fsdpkit.rendering.places import places_in
from tests.programs import ran
from tests.rendering.hostile_templates import (
    PAYLOADS,
    accepted,
    harmed,
    render,
    templates,
)

RIGHT = {name: text for name, text, may in templates() if may}


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT.keys())
def test_what_is_accepted_keeps_every_value_as_data(text: str) -> None:
    for value in PAYLOADS:
        assert not harmed(render(text, value))


def test_no_value_gets_to_a_place_where_its_quoter_is_not_right() -> None:
    assert accepted() == {}


def test_the_payloads_do_harm_where_they_are_not_quoted() -> None:
    """Else the two tests above would prove nothing."""
    for script in (
        "echo $(touch HIT)",
        "cat <<EOF\n'$(touch HIT)'\nEOF",
        "RANDOM='a[$(touch HIT)]'",
    ):
        assert harmed(script)


def test_the_refusal_names_the_line_and_the_way_out() -> None:
    with pytest.raises(RenderError, match=r"job\.sbatch\.j2, line 3: .*NAME=\{\{ value \| sh \}\}"):
        render('#!/bin/bash\nset -e\necho "{{ v | sh }}"\n', "x")


def test_a_list_is_words_and_no_single_one() -> None:
    assert render("X=({{ v | sh }})\n", ["a b", "$x"]) == "X=('a b' '$x')\n"
    with pytest.raises(RenderError, match="a list of words is in an assignment"):
        render("X={{ v | sh }}\n", ["a", "b"])


def test_an_array_task_is_filled_in_by_the_shell() -> None:
    line = render("X=({{ v | sh_arg }})\n", ["--fold={array_task}", "$x", ""])
    script = f"{line}printf '<%s>' \"${{X[@]}}\""
    environment = {"SLURM_ARRAY_TASK_ID": "7; id"}
    done = ran(["bash", "-c", script], env=environment)
    assert done.stdout == "<--fold=7; id><$x><>"


@pytest.mark.parametrize("number", [3, -1, 2.5, 1e-07])
def test_a_number_may_stand_anywhere(number: float) -> None:
    assert render("#!/bin/bash\nsleep {{ v }}\n", number).endswith(f"sleep {number}\n")


@pytest.mark.parametrize("value", ["3", True, None, float("nan"), float("inf"), [3]])
def test_what_only_looks_like_a_number_may_not(value: object) -> None:
    with pytest.raises(RenderError, match="unquoted"):
        render("#!/bin/bash\nsleep {{ v }}\n", value)


@pytest.mark.parametrize("name", ["a b", "Comment", "x=y", "", "-x", "é", "a\\"])
def test_an_options_name_is_plain(name: str) -> None:
    with pytest.raises(RenderError, match="name of an sbatch option"):
        render("#!/bin/bash\n#SBATCH --{{ v | sb }}\n", name)


@pytest.mark.parametrize("line", ["true", "#!x\n", "#!/bin/bash -c 'id' x y", "#!/bin/é"])
def test_the_first_line_is_a_shebang(line: str) -> None:
    with pytest.raises(RenderError, match=r"not the first line of a script|control character"):
        render("{{ v | note }}\n", line)
    assert render("{{ v | note }}\n", "#!/usr/bin/env bash") == "#!/usr/bin/env bash\n"


def test_no_variable_that_bash_evaluates_or_sets_takes_a_value() -> None:
    """Those of the bash that runs here, by its own list, and by that of its manual."""
    asked = "compgen -v; compgen -A arrayvar; declare -p | sed -n 's/^declare -[^ ]*i[^ ]* //p'"
    clean = {"PATH": "/usr/bin:/bin"}
    done = ran(["bash", "-c", asked], env=clean)
    shown = {line.partition("=")[0] for line in done.stdout.splitlines()}
    harmless = {"HOSTNAME", "HOSTTYPE", "MACHTYPE", "OSTYPE", "OLDPWD", "PWD", "TERM"}
    names = shown - harmless | {"PROMPT_COMMAND", "ENV", "BASH_ENV", "MAPFILE", "COPROC", "REPLY"}
    assert {"SECONDS", "RANDOM", "IFS", "BASH_ALIASES"} <= names
    for name in sorted(names):
        with pytest.raises(ValueError, match="means something to bash"):
            places_in(f"{name}=\0", first=False)
