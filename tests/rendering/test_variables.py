"""A value that only a form will say: what a template may do with it, and what it cannot."""

from __future__ import annotations

import operator

import pytest

from fsdpkit.rendering.sandbox import sandbox_of
from fsdpkit.rendering.variables import Undecided, Variable

COMPARED = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
TEXT = Variable("FORM_TEXT", "text", "text")
WORDS = Variable("FORM_WORDS", "words", "words")
NODES = Variable("FORM_NODES", "number", "nodes", 2, 64)


@pytest.mark.parametrize("name", COMPARED)
def test_a_comparison_is_decided_only_if_every_value_agrees(name: str) -> None:
    for low in range(4):
        for high in range(low, 4):
            number = Variable("X", "number", "x", low, high)
            for other in range(-1, 5):
                answers = {COMPARED[name](value, other) for value in range(low, high + 1)}
                if len(answers) == 1:
                    assert COMPARED[name](number, other) == answers.pop()
                else:
                    with pytest.raises(Undecided):
                        COMPARED[name](number, other)


def rendered(text: str, nodes: Variable = NODES) -> str:
    context = {"text": TEXT, "words": WORDS, "nodes": nodes, "other": NODES}
    return sandbox_of({"a": text.encode()}).trace("a", context).script


def test_it_is_printed_as_the_variable_in_each_place_and_in_a_comment_by_its_name() -> None:
    script = rendered(
        "#!/bin/bash\n# {{ text | note }} {{ nodes }}\nA={{ text | sh }}\nB=({{ words | sh }})\n"
        "echo {{ nodes }}\n"
    )
    assert script == (
        "#!/bin/bash\n# <text> <nodes>\n"
        'A="$FORM_TEXT"\nB=("${FORM_WORDS[@]}")\necho ${FORM_NODES}\n'
    )


def test_a_branch_that_every_value_takes_is_taken() -> None:
    script = "#!/bin/bash\n{% if nodes > 1 %}\necho several\n{% else %}\necho one\n{% endif %}\n"
    assert rendered(script) == "#!/bin/bash\necho several\n"


DECIDES = [
    "{% if nodes > 2 %}\necho\n{% endif %}",
    '{% if text == "a" %}\necho\n{% endif %}',
    '{% if text in ["a"] %}\necho\n{% endif %}',
    '{% if "a" in text %}\necho\n{% endif %}',
    "{% if 1 < nodes < 3 %}\necho\n{% endif %}",
    "{% if nodes == other %}\necho\n{% endif %}",
    "echo {{ nodes + 1 }}",
    "echo {{ 64 // nodes }}",
    "echo {{ -nodes }}",
    "echo {{ text | int }}",
    "A={{ (words | last) | sh }}",
    "A={{ words[0] | sh }}",
    "A={{ (text | upper) | sh }}",
    "echo {{ words | length }}",
    "{% for word in words %}\necho\n{% endfor %}",
    'A={{ (text ~ "x") | sh }}',
    "#SBATCH --wckey={{ text | sb }}",
    "#SBATCH --nodes={{ nodes }}",
]


@pytest.mark.parametrize("line", DECIDES)
def test_what_needs_the_value_names_the_value(line: str) -> None:
    with pytest.raises(Undecided) as raised:
        rendered(f"#!/bin/bash\n{line}\n")
    assert any(raised.value.variable is each for each in (TEXT, WORDS, NODES))
    assert raised.value.variable.of in str(raised.value)


def test_its_kind_is_known() -> None:
    line = "{% if text is string and nodes is number and nodes is not none %}\ntrue\n{% endif %}\n"
    assert rendered(f"#!/bin/bash\n{line}").endswith("true\n")


def test_whether_a_number_is_zero_is_known_only_if_it_never_or_always_is() -> None:
    line = "#!/bin/bash\n{% if text %}\necho {{ nodes }}\n{% endif %}\n"
    script = "#!/bin/bash\n{% if nodes %}\necho some\n{% endif %}\n"
    assert rendered(line).endswith("echo ${FORM_NODES}\n")
    assert rendered(script).endswith("echo some\n")
    with pytest.raises(Undecided):
        rendered(script, Variable("X", "number", "nodes", 0, 5))
