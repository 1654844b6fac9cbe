"""A value that only a form will say: what a template may do with it, and what it cannot."""

from __future__ import annotations

import operator

import pytest

from fsdpkit.rendering.language import parse
from fsdpkit.rendering.statements import trace_of
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
                    assert number.compared(name, other) == answers.pop()
                else:
                    with pytest.raises(Undecided):
                        number.compared(name, other)


def rendered(text: str) -> str:
    context = {"text": TEXT, "words": WORDS, "nodes": NODES}
    return trace_of(parse({"a": text.encode()}, "a"), context).script


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
    "echo {{ nodes + 1 }}",
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
    assert raised.value.variable in (TEXT, WORDS, NODES)
    assert raised.value.variable.of in str(raised.value)


def test_whether_a_number_is_zero_is_known_only_if_it_never_or_always_is() -> None:
    line = "#!/bin/bash\n{% if text %}\necho {{ nodes }}\n{% endif %}\n"
    script = "#!/bin/bash\n{% if nodes %}\necho some\n{% endif %}\n"
    assert rendered(line).endswith("echo ${FORM_NODES}\n")
    assert rendered(script).endswith("echo some\n")
    maybe = {"nodes": Variable("X", "number", "nodes", 0, 5)}
    with pytest.raises(Undecided):
        trace_of(parse({"a": script.encode()}, "a"), maybe)
