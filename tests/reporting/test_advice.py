"""What to do about a failure: the rules that every advice obeys, and what it names."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.config.job import Environment, Resources
from fsdpkit.config.retry import Retry
from fsdpkit.config.training import TrainingSettings
from fsdpkit.failures.advice.facts import Facts
from fsdpkit.failures.advice.table import BLANK, ELSE, advise, filled, table
from fsdpkit.failures.causes import CAUSES
from fsdpkit.reporting.diagnosis.diagnose import diagnose
from fsdpkit.scheduling.states import JobState
from tests.reporting.made_evidence import RESET, attempt, found, of, rank
from tests.rows import pairs

SENTENCES = [sentence for one in table() for sentence in one.say]
WORDS = [words.strip("^").replace("…", " ") for one in table() for words in one.words]
KEYS = sorted({blank[1] for text in SENTENCES for blank in BLANK.findall(text) if blank[1]})

FACTS = st.builds(
    Facts,
    cause=st.sampled_from(sorted(CAUSES)),
    run=st.just("t5-1"),
    said=st.lists(st.sampled_from([*WORDS, "'/data/a/b.bin' port: 29500"]), max_size=2).map(
        "\n".join
    ),
    around=st.sampled_from(["", *WORDS]),
    speaker=st.sampled_from(["rank", "agent", "batch"]),
    killed=st.booleans(),
    scope=st.sampled_from(["rank", "node", "all", "only-node", "job"]),
    apart=st.booleans(),
    rank=st.sampled_from([None, 3]),
    node=st.sampled_from([None, "node2"]),
    settings=st.dictionaries(
        st.sampled_from([*KEYS, "environment.container"]), st.just("set already")
    ),
    reads_training=st.booleans(),
)


@given(FACTS)
def test_an_advice_never_proposes_what_cannot_help(facts: Facts) -> None:
    advice = advise(facts) or ""
    assert "{" not in advice
    if "resources.exclude" in advice:
        assert facts.scope in ("rank", "node")
        assert facts.node is not None
    for key in facts.settings:
        assert f"--set {key}=" not in advice
    if "environment.container" in facts.settings:
        assert not re.search(r"\bmodules\b|\bconda\b", advice)
    if not facts.reads_training:
        assert "training." not in advice
    if "Submit again" in advice:
        assert facts.cause == "port-taken"


def test_the_table_holds_nothing_that_is_never_said() -> None:
    facts = Facts(cause="unknown", run="t5-1")
    for one in table():
        assert set(one.causes) <= CAUSES.keys(), one.about
        assert all(words == words.lower() for words in one.words), one.about
        assert one.words or one.causes, one.about
        for sentence in one.say:
            text = sentence.removeprefix(ELSE)
            filled(text, facts)  # raises for a condition that there is not
            for name, key, _ in BLANK.findall(text):
                assert key or facts.name(name) is None or name == "run"
    assert len({one.about for one in table()}) == len(table())


def test_the_settings_that_are_advised_exist() -> None:
    tables = {
        "training": TrainingSettings,
        "resources": Resources,
        "retry": Retry,
        "environment": Environment,
    }
    told = re.findall(rf"(?:{'|'.join(tables)})\.[\w.]+\w", "\n".join(SENTENCES))
    assert len(set(told)) > 8
    for key in set(told):
        first, *names = key.split(".")
        kind: type = tables[first]
        for name in names:
            fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
            assert name in fields, key
            kind = fields[name]
            if not issubclass(type(kind), type):
                break  # a dictionary, whose keys are the user's


@pytest.mark.parametrize(("message", "noun"), pairs(Path(__file__).with_name("advised.txt")))
def test_a_known_kind_of_failure_gets_an_advice_of_its_own(message: str, noun: str) -> None:
    evidence = msgspec.structs.replace(of(attempt(rank(1, message))), reads_training=False)
    assert noun in (diagnose(evidence).action or "")


def test_an_unknown_failure_gets_its_words_and_no_remedy() -> None:
    assert (
        found(rank(0, "ValueError: odd")).action
        == "All that it printed: fsdpkit logs t5-1 --errors"
    )


def test_a_node_is_left_out_only_where_others_came_further() -> None:
    old = "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."
    alone = found(rank(2, old), nodes=2)
    all_alike = found(rank(0, old), rank(2, old), nodes=2)
    others_lived = found(rank(2, old), rank(0, RESET, time_s=20.0), nodes=2)
    assert "exclude" not in f"{alone.action}{all_alike.action}"
    assert "exclude=node2" in (others_lived.action or "")


def test_a_lock_that_all_ranks_wait_for_is_named_where_the_time_was_over() -> None:
    waits = "Still waiting to acquire lock on /hub/.locks/t5.lock (elapsed: {} seconds)\n"
    waiting = [rank(n, None, status=None, log=waits.format(n)) for n in range(2)]
    told = found(*waiting, state=JobState("TIMEOUT", "sacct"))
    assert "/hub/.locks/t5.lock" in (told.action or "")


def test_a_file_that_another_rank_removed_first_is_not_called_misspelt() -> None:
    call = '  File "/usr/lib/python3.11/shutil.py", line 673, in _rmtree_safe_fd\n    os.rm(x)\n'
    missed = "FileNotFoundError: [Errno 2] No such file or directory: 'optimizer.bin'\n"
    printed = f"Traceback (most recent call last):\n{call}{missed}"
    told = found(rank(1, missed.strip(), log=printed), nodes=2)
    assert "a barrier" in (told.action or "")


def test_what_only_one_node_says_is_called_so() -> None:
    odd = "TypeError: 'NoneType' object is not an iterator"
    there = found(rank(2, odd), rank(3, odd), nodes=2)
    everywhere = found(rank(0, odd), rank(2, odd), rank(3, odd), nodes=2)
    assert "Only ranks of node2" in (there.action or "")
    assert "Only ranks" not in (everywhere.action or "")
