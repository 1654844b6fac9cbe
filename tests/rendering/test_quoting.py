"""The two quoters against the two lexers: bash itself, sbatch's (ported), and the real sbatch."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpkit.errors import RenderError
from fsdpkit.rendering.directives import DirectiveError, read_directives, split_directive
from fsdpkit.rendering.quoting import directive_quote, shell_quote
from tests.rendering.hostile_strings import count
from tests.rendering.hostile_templates import rendered
from tests.slurm_cluster import SlurmCluster

# No control characters and no surrogates: those are refused before any quoting.
TEXT = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))
    | st.sampled_from("\\\"'#$` :;=|&()<>*?[]{}!~%"),
    max_size=60,
)


@given(st.lists(TEXT, min_size=50, max_size=50))
@settings(max_examples=40)
def test_bash_reads_a_quoted_word_as_the_value(values: list[str]) -> None:
    script = "printf '%s\\0' " + " ".join(shell_quote(value) for value in values)
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == values


LAYOUT = """#!/bin/bash
# {{ v | note }}
#SBATCH --comment={{ v | sb }}
#SBATCH --job-name={{ w | sb }}
# {{ w | note }}
X={{ v | sh }}
export Y={{ w | sh }}  # don't
Z=({{ words | sh }})
Z+=({{ v | sh_arg }})
printf '%s\\0' "$X" "$Y" "${Z[@]}"
"""


def laid_out(v: str, w: str) -> str:
    """A script in the layout of every template, its values at all places."""
    return rendered(LAYOUT, {"v": v, "w": w, "words": [v, w, ""]})


@given(st.lists(st.tuples(TEXT, TEXT), min_size=50, max_size=50))
@settings(max_examples=20)
def test_a_script_reads_every_value_as_it_was_at_every_place(pairs: list[tuple[str, str]]) -> None:
    scripts = [laid_out(v, w) for v, w in pairs]
    read = "".join(f"(\n{script}\n)\n" for script in scripts)
    done = subprocess.run(["bash", "-s"], input=read.encode(), capture_output=True, check=True)
    found = done.stdout.decode().split("\0")[:-1]
    assert found == [text for v, w in pairs for text in (v, w, v, w, "", v)]
    for script, (v, w) in zip(scripts, pairs, strict=True):
        assert read_directives(script) == [("comment", v), ("job-name", w)]


@given(TEXT, TEXT)
@settings(max_examples=500)
def test_sbatchs_lexer_reads_a_quoted_value_as_the_value(value: str, other: str) -> None:
    line = f" --comment={directive_quote(value)} --account={directive_quote(other)}"
    assert split_directive(line) == [f"--comment={value}", f"--account={other}"]


def test_a64_what_shells_quoting_would_lose_is_kept() -> None:
    for value in ("run#1", r"it's a \ backslash", "a 'b'", r"c:\d'e"):
        script = f"#!/bin/bash\n#SBATCH --job-name={directive_quote(value)} --account=x\ntrue\n"
        assert read_directives(script) == [("job-name", value), ("account", "x")]
    lost = r"a\b"
    assert split_directive(f"--comment={shlex.quote(lost)}") == ["--comment=ab"]


@pytest.mark.parametrize(
    "bad", ["a\nb", "a\rb", "a\x00b", "a\x1bb", "\x7f", "\x85", "\u2028", "\udc80"]
)
@pytest.mark.parametrize("quote", [shell_quote, directive_quote])
def test_a64_a_control_character_is_refused_by_both(bad: str, quote: Callable[[str], str]) -> None:
    with pytest.raises(RenderError, match="holds the control character"):
        quote(bad)


def test_strings_made_to_break_out_of_quotes_stay_in_them() -> None:
    assert count(20_000, None) == 0


LEXED = {
    "--a=b --c": ["--a=b", "--c"],
    "": [],
    "   # all comment": [],
    "--a=b#c --d": ["--a=b"],
    "--a='b\\'c'": ["--a=b'c"],
    '--a="b\'c"': ["--a=b'c"],
    "--a=b\\ c": ["--a=b", "c"],
    "--a=''": ["--a="],
    "--a='x'\"y\"z": ["--a=xyz"],
    "--a='#'": ["--a=#"],
    "-N 2": ["-N", "2"],
}


@pytest.mark.parametrize(("line", "words"), LEXED.items())
def test_the_port_of_sbatchs_lexer(line: str, words: list[str]) -> None:
    assert split_directive(line) == words


@pytest.mark.parametrize("line", ["--a='b", '--a="b', ":x", " --a :"])
def test_the_port_stops_where_sbatch_does(line: str) -> None:
    with pytest.raises(DirectiveError):
        split_directive(line)


def test_reading_ends_at_the_first_command() -> None:
    script = "#!/bin/bash\n\n# note\n#SBATCH --a=1\n \t\n#SBATCH --b\ntrue\n#SBATCH --c\n"
    assert read_directives(script) == [("a", "1"), ("b", None)]


# ---- Against a real Slurm

NAMES = [
    *r"""
    plain a'b a"b a#b #ab a\b a\\b a\'b $USER `id` $(id) a;b a|b&c a=b :a a:b %j%x a\ ' "
    '' "'" é 日本 ~ * hetjob --x - a,b {a} !a \'#x
    """.split(),  # noqa: SIM905
    *("a b", "a  b", "x" * 200),
]


def _submit_held(cluster: SlurmCluster, scripts: Sequence[str]) -> str:
    """Submits held jobs with one shell; their numbers, one a line."""
    typed = "\n".join(
        f"sbatch --parsable --hold --chdir=/ <<'END_OF_SCRIPT'\n{script}\nEND_OF_SCRIPT"
        for script in scripts
    )
    done = cluster.run(["bash", "-e"], input=typed)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slurm
def test_a64_the_real_sbatch_reads_names_and_comments_as_they_were(
    slurm_cluster: SlurmCluster,
) -> None:
    jobs = _submit_held(slurm_cluster, [laid_out(n, n) for n in NAMES]).splitlines()
    try:
        found = {}
        # One field a call: a name may hold any separator.
        for field in ("%j", "%k"):
            shown = slurm_cluster.run(
                ["squeue", "--noheader", "-j", ",".join(jobs), "-o", f"%i {field}"]
            )
            for line in shown.stdout.splitlines():
                job, _, value = line.partition(" ")
                found[job, field] = value
        for job, name in zip(jobs, NAMES, strict=True):
            assert (found[job, "%j"], found[job, "%k"]) == (name, name)
    finally:
        slurm_cluster.run(["scancel", *jobs])


@pytest.mark.slurm
def test_the_real_sbatch_keeps_strings_made_to_break_out_of_quotes(
    slurm_cluster: SlurmCluster,
) -> None:
    assert count(2_000, slurm_cluster) == 0


@pytest.mark.slurm
def test_the_port_stops_exactly_where_the_real_sbatch_does(slurm_cluster: SlurmCluster) -> None:
    candidates = [*LEXED, "--comment='b", '--comment="b', ":x", " --comment=x :", "--comment=x #'"]
    lines = [re.sub(r"--[acd]\b", "--comment", line).replace("-N 2", "-N 1") for line in candidates]
    lines = [re.sub(r"--comment(?!=)", "--requeue", line) for line in lines]
    for line in lines:
        if line == "--comment=b\\ c":
            continue  # both read two words; sbatch then refuses the second
        script = f"#!/bin/bash\n#SBATCH {line}\ntrue\n"
        asked = slurm_cluster.run(["sbatch", "--test-only", "--chdir=/"], input=script)
        try:
            split_directive(line)
            accepted = True
        except DirectiveError:
            accepted = False
        assert (asked.returncode == 0) == accepted, (line, asked.stderr)


@pytest.mark.slurm
def test_a10_node_lists_are_slurms_to_read(slurm_cluster: SlurmCluster) -> None:
    lists = {
        "linux[1,2]": ["linux1", "linux2"],
        "alpha,beta,gamma": ["alpha", "beta", "gamma"],
        "a-b-[08-11,20],c1": ["a-b-08", "a-b-09", "a-b-10", "a-b-11", "a-b-20", "c1"],
        "r[1-2]n[1-2]": ["r1n1", "r1n2", "r2n1", "r2n2"],
    }
    for text, nodes in lists.items():
        read = f"mapfile -t nodes < <(scontrol show hostnames {text!r})"
        script = f"{read}; printf '%s ' \"${{nodes[@]}}\""
        assert slurm_cluster.run(["bash", "-c", script]).stdout.split() == nodes
