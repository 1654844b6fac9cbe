"""What a centre announces, and versions that end: who is told, when, once, and what nobody may
slip into it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from fsdpkit.config.announced import MOST_AT_ONCE
from fsdpkit.publishing.catalogue.reading import read_catalogue
from fsdpkit.publishing.catalogue.rendering import Writing
from fsdpkit.publishing.signing import sign
from tests.json_answers import checked
from tests.publishing.centres import Centre, Said, says, state_files, submit, typed

SAYS = "fsdpkit: your centre announces: "
TWO_PARTITIONS = """
[node_types.gpu]
gpus = 4
cpus = 32
[partitions.gpu]
node_type = "gpu"
[partitions.long]
node_type = "gpu"
"""


def announce(centre: Centre, text: str, *words: str) -> str:
    """Its id."""
    done = centre.try_to_publish("announce", text, *words, "--json")
    assert done.status == 0, done.err
    (step,) = checked(done.out)["steps"]
    assert (step["kind"], step["what"]) == ("announcement", "published")
    return str(step["name"])


def told(done: Said) -> list[str]:
    assert done.status == 0, done.err
    assert SAYS not in done.out
    lines = done.err.splitlines()
    return [line.removeprefix(SAYS) for line in lines if line.startswith(SAYS)]


def refused(centre: Centre, *words: str) -> str:
    """Why, of a command that is not as it should be."""
    try:
        done = centre.try_to_publish(*words)
    except click.UsageError as error:
        return str(error)
    assert done.status == 2, done
    return done.err


def day(from_now: int) -> str:
    return str(date.fromtimestamp(time.time()) + timedelta(days=from_now))


@pytest.fixture
def days_later(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    now = time.time()
    return lambda days: monkeypatch.setattr(time, "time", lambda: now + 86_400.0 * days)


def test_each_user_reads_a_line_once_whichever_command_says_it(centre: Centre) -> None:
    centre.publish(centre.template())
    first = announce(centre, "maintenance on Tuesday", "--until", day(3))
    line = "maintenance on Tuesday"
    assert told(submit("small", "--json")) == [line]  # a program has read it, the person has not
    done = submit()
    assert (told(done), says(done)) == ([line], "hello")
    assert told(submit()) == told(typed("status")) == []
    announce(centre, "use partition x from May")
    assert told(typed("status", "--json")) == []
    assert told(typed("status")) == ["use partition x from May"]
    assert told(submit()) == []
    listed = checked(typed("publish", "list", "--json").out)["announcements"]
    assert [one["text"] for one in listed] == ["maintenance on Tuesday", "use partition x from May"]
    assert centre.try_to_publish("announce", "--withdraw", first).status == 0
    assert first not in typed("publish", "list").out
    assert centre.try_to_publish("announce", "--withdraw", first).status == 66


def test_a_line_is_said_from_its_first_day_to_its_last_and_then_leaves_the_index(
    centre: Centre, days_later: Callable[[int], None]
) -> None:
    centre.publish(centre.template())
    announce(centre, "soon", "--from", day(2), "--until", day(4))
    for days, said in ((1, 0), (5, 0), (4, 1), (2, 0)):  # the last is after it was read
        days_later(days)
        assert len(told(submit())) == said, days
    days_later(5)
    announce(centre, "another")
    assert "soon" not in typed("publish", "list").out
    assert refused(centre, "announce", "x", "--from", day(2), "--until", day(1))


def test_only_jobs_of_its_partition_hear_of_it(centre: Centre) -> None:
    centre.publish(centre.template())
    centre.publish(centre.profile(text=TWO_PARTITIONS))
    announce(centre, "all")
    announce(centre, "long one", "--partition", "long")
    assert told(submit()) == ["all"]
    words = ("--cluster", "cluster", "--partition", "long")
    assert told(submit("small", *words)) == ["partition long: long one"]
    announce(centre, "two", "--partition", "gpu")
    assert told(submit("small", *words)) == []
    assert told(typed("status")) == ["partition gpu: two"]


def test_of_fifty_a_command_says_a_few_and_two_centres_say_the_same_only_once(
    centre: Centre, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    other = Centre.made(tmp_path / "other", keys)
    for one in (centre, other):
        one.publish(one.template())
        announce(one, "of both")
    assert centre.dir.is_dir()
    monkeypatch.setenv("FSDPKIT_SITE_PATH", f"{other.dir}:{centre.dir}")
    assert told(submit()) == ["of both"]
    for number in range(2 * MOST_AT_ONCE + 1):
        announce(centre, f"number {number}")
    said = [told(submit()) for _ in range(4)]
    assert [len(lines) for lines in said] == [MOST_AT_ONCE, MOST_AT_ONCE, 1, 0]
    assert said[0][0] == f"number {2 * MOST_AT_ONCE}"
    assert len({line for lines in said for line in lines}) == 2 * MOST_AT_ONCE + 1


def test_who_cannot_write_her_state_is_told_again_and_works_on(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    centre.publish(centre.template())
    announce(centre, "hello")
    monkeypatch.setenv("FSDPKIT_STATE_DIR", "/dev/null/state")
    for _ in range(2):
        done = submit()
        assert (told(done), says(done)) == (["hello"], "hello")
    assert told(typed("status")) == ["hello"]


HOSTILE = ["a\x1b[2Jb", "a\nb", "a\x9b2J", "right \u202e left", "a\u2028b", "", "x" * 501, "\ud800"]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_terminal_would_obey_is_refused_where_it_is_published_and_where_it_is_read(
    centre: Centre, text: str
) -> None:
    centre.publish(centre.template())
    announce(centre, "harmless")
    assert refused(centre, "announce", text)

    def slip_in(index: dict[str, Any]) -> None:
        index["announcements"][0]["text"] = text

    sign_by_hand(centre, slip_in)
    for done in (submit(), typed("templates")):
        assert done.status == 65
        assert text not in done.out + done.err or not text


def sign_by_hand(centre: Centre, change: Callable[[dict[str, Any]], None]) -> None:
    """What somebody who may sign could do without fsdpkit."""
    index = json.loads(centre.index.read_bytes().partition(b"-----BEGIN")[0])
    change(index)
    index["serial"] += 1
    body = json.dumps(index).encode() + b"\n"
    centre.index.write_bytes(body + sign(body, centre.alex))


def test_an_index_of_a_newer_release_is_read_and_one_without_news_is_as_before(
    centre: Centre,
) -> None:
    centre.publish(centre.template())
    text = centre.index.read_text()
    assert "announcements" not in text
    assert "deprecated" not in text
    announce(centre, "hello")

    def add(index: dict[str, Any]) -> None:
        index["later"] = index["announcements"][0]["later"] = {"x": 1}
        index["entries"][0]["later"] = index["entries"][0]["versions"]["1.0.0"]["later"] = True

    sign_by_hand(centre, add)
    done = submit()
    assert (told(done), says(done)) == (["hello"], "hello")
    (file,) = state_files()
    assert json.loads(file.read_text())["shown"]


def test_a_version_that_ends_says_when_and_what_to_change_and_goes_on_after_that(
    centre: Centre, days_later: Callable[[int], None]
) -> None:
    for version in ("1.0.0", "2.0.0"):
        centre.publish_version(version)
    words = ("deprecate", "small@1.0.0")
    ends = ("--until", day(3), "--successor", "small@2.0.0")
    for wrong in (("--until", day(3)), ("--withdraw", *ends), (*ends[:3], "small@1.0.0")):
        assert refused(centre, *words, *wrong)
    assert centre.try_to_publish(*words, *ends[:3], "small@3.0.0").status == 66
    assert centre.try_to_publish(*words, *ends).status == 0
    for pin in ("small@1", "small@1.0.0"):
        done = submit(pin)
        assert says(done) == "v1.0.0"
        assert day(3) in done.err
        assert 'template = "small@2.0.0"' in done.err
    assert "2.0.0" not in submit().err
    assert "deprecated" in typed("publish", "list").out
    shown = (typed("template", "lint", "small@1"), typed("templates", "small@1"))
    assert all(day(3) in one.out for one in shown)
    last = submit("small@1").err
    days_later(4)
    done = submit("small@1")
    assert says(done) == "v1.0.0"
    assert done.err != last
    assert 'template = "small@2.0.0"' in done.err
    assert centre.try_to_publish(*words, "--withdraw").status == 0
    assert "2.0.0" not in submit("small@1").err


def test_a_list_names_what_ends_and_the_new_one_may_be_a_profile(centre: Centre) -> None:
    for title in ("One", "Two"):
        centre.publish(centre.profile(title))
    centre.publish(centre.template("1.0.0"))
    centre.publish_version("2.0.0", "--channel", "testing")
    ends = ("--until", day(3), "--successor")
    assert refused(centre, "deprecate", "small@1.0.0", *ends, "cluster@1")
    assert centre.try_to_publish("deprecate", "small@1.0.0", *ends, "small@2.0.0").status == 0
    assert centre.try_to_publish("deprecate", "cluster@1", *ends, "cluster@2").status == 0
    assert "small@2.0.0" in typed("templates").err
    listed = {one["name"]: one for one in checked(typed("templates", "--json").out)["templates"]}
    assert "small@2.0.0" in listed["small"]["deprecated"]
    assert listed["torchrun"]["deprecated"] is None
    assert "--cluster cluster@2" in submit("small", "--cluster", "cluster@1").err


def test_the_catalogue_has_what_holds_now_or_will_and_says_which_versions_end(
    centre: Centre, days_later: Callable[[int], None]
) -> None:
    for version in ("1.0.0", "2.0.0"):
        centre.publish_version(version)
    announce(centre, "over <b>soon</b>", "--until", day(1))
    announce(centre, "later", "--from", day(2), "--until", day(9))
    ends = ("--until", day(3), "--successor", "small@2.0.0")
    assert centre.try_to_publish("deprecate", "small@1.0.0", *ends).status == 0
    page = Writing(read_catalogue([centre.dir]), "Zoo").pages()
    assert "over &lt;b&gt;soon&lt;/b&gt;" in page["index.html"]
    assert f'<li data-from="{day(2)}" data-until="{day(9)}">' in page["index.html"]
    one = page["templates/small.html"].partition("<h3>1.0.0")[2]
    assert "deprecated</span>" in one
    assert day(3) in one
    assert "2.0.0 (stable, deprecated)" not in page["generator.html"]
    assert "1.0.0 (deprecated)" in page["generator.html"]
    days_later(2)
    index = Writing(read_catalogue([centre.dir]), "Zoo").pages()["index.html"]
    assert "soon" not in index
    assert "later" in index
