"""An administrator publishes, a person uses: versions, channels, pins, rollback, withdrawal."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.json_answers import checked
from tests.programs import ran, until
from tests.publishing.centres import ALEX, KIM, Centre, line_of, make_key, says, submit, typed


def test_what_was_published_is_used_and_the_script_names_version_checksum_channel_and_signer(
    centre: Centre,
) -> None:
    told = checked(centre.publish(centre.template(), "--json").out)
    (step,) = told["steps"]
    assert (step["what"], step["version"], step["now"]) == ("published", "1.0.0", "1.0.0")
    done = submit()
    assert says(done) == "hello"
    named = f"template small 1.0.0, sha256 {step['sha256']}, stable, signed by {ALEX}"
    assert f"#   published: {named}\n" in done.out


def test_anybody_can_verify_the_index_with_ssh_keygen_alone(centre: Centre) -> None:
    centre.publish(centre.template())
    body, begin, rest = centre.index.read_text().partition("-----BEGIN SSH SIGNATURE-----\n")
    Path("signature").write_text(begin + rest)
    allowed = str(centre.dir / "allowed_signers")
    words = ["-f", allowed, "-I", ALEX, "-n", "fsdpkit", "-s", "signature"]
    done = subprocess.run(
        ["ssh-keygen", "-Y", "verify", *words],
        input=body,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    digest = json.loads(body)["entries"][0]["versions"]["1.0.0"]["sha256"]
    manifest = centre.version() / "manifest.json"
    assert subprocess.check_output(["sha256sum", manifest], text=True).split()[0] == digest
    for name, file in json.loads(manifest.read_text())["files"].items():
        found = subprocess.check_output(["sha256sum", centre.version() / name], text=True)
        assert found.split()[0] == file["sha256"]


def test_versions_lie_side_by_side_and_none_ever_changes(centre: Centre) -> None:
    centre.publish_version("1.0.0")
    before = {p: p.read_bytes() for p in centre.version().rglob("*") if p.is_file()}
    centre.publish_version("2.0.0")
    assert says(submit()) == "v2.0.0"
    assert {p: p.read_bytes() for p in before} == before
    done = centre.try_to_publish(centre.template("1.0.0", "other"))
    assert done.status == 65
    assert "small 1.0.0 is published already, with other files: a version never changes" in done.err
    assert says(submit("small@1.0.0")) == "v1.0.0"
    assert {p: p.read_bytes() for p in before} == before


def test_who_wants_to_test_says_so_by_a_variable_or_in_the_job(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    centre.publish_version("1.0.0")
    centre.publish_version("1.1.0", "--channel", "testing")
    assert says(submit()) == "v1.0.0"
    assert says(submit("small@testing")) == "v1.1.0"
    assert "testing, signed by" in submit("small@testing").out
    monkeypatch.setenv("FSDPKIT_CHANNEL", "testing")
    assert says(submit()) == "v1.1.0"
    assert says(submit("small@stable")) == "v1.0.0"
    centre.publish_version("1.2.0")  # testing has nothing newer any more
    assert says(submit()) == "v1.2.0"
    monkeypatch.setenv("FSDPKIT_CHANNEL", "nightly")
    assert submit().status == 2


def test_what_is_tested_only_is_in_nobodys_pinned_series(centre: Centre) -> None:
    centre.publish_version("1.0.0", "--channel", "testing")
    assert submit().status == 65
    assert "has no stable version; there is 1.0.0 (testing)" in submit().err
    assert submit("small@1").status == 66
    assert says(submit("small@1.0.0")) == "v1.0.0"


def test_a_job_pins_the_highest_version_that_begins_so(centre: Centre) -> None:
    for version in ("1.0.0", "2.1.0", "2.1.1", "2.10.0", "3.0.0"):
        centre.publish_version(version)
    for pin, said in (("2", "v2.10.0"), ("2.1", "v2.1.1"), ("2.1.0", "v2.1.0"), ("3", "v3.0.0")):
        assert says(submit(f"small@{pin}")) == said


def test_a_pin_that_fits_nothing_says_what_there_is(centre: Centre) -> None:
    centre.publish_version("1.0.0")
    done = submit("small@2")
    assert done.status == 66
    assert f"no template small@2: {centre.dir} has 1.0.0 (stable" in done.err
    done = submit("torchrun@2")
    assert done.status == 66
    assert "there is no template torchrun@2: " in done.err
    assert submit("torchrun@3").status == 0, "packaged templates have versions, too"
    for wrong in ("small@", "small@x", "small@1.0.0.0", "small@-1", "small@1.", "small@1@1"):
        assert submit(wrong).status == 2, wrong


def test_a_correction_of_an_old_series_reaches_those_who_pin_it_and_moves_no_channel(
    centre: Centre,
) -> None:
    for version in ("1.0.0", "2.0.0", "1.0.1"):
        centre.publish_version(version)
    assert says(submit()) == "v2.0.0"
    assert says(submit("small@1")) == "v1.0.1"


def test_a_rollback_gives_everybody_the_version_before_also_whoever_pins_its_series(
    centre: Centre,
) -> None:
    for version in ("1.0.0", "1.1.0", "1.2.0"):
        centre.publish_version(version)
    assert "stable is 1.1.0, was 1.2.0" in centre.try_to_publish("rollback", "small").out
    assert says(submit()) == "v1.1.0"
    assert says(submit("small@1")) == "v1.1.0"
    assert says(submit("small@1.2.0")) == "v1.2.0"
    assert centre.try_to_publish("rollback", "small").status == 0
    assert says(submit()) == "v1.0.0"
    done = centre.try_to_publish("rollback", "small")
    assert done.status == 66
    assert "no version before on stable: it points to 1.0.0" in done.err
    assert centre.try_to_publish("promote", "small@1.2.0").status == 0
    assert says(submit()) == "v1.2.0"


def test_a_pin_whose_series_was_rolled_back_says_so_and_what_to_do(centre: Centre) -> None:
    for version in ("1.0.0", "2.0.0", "2.1.0"):
        centre.publish_version(version)
    for _ in range(2):
        assert centre.try_to_publish("rollback", "small").status == 0
    centre.publish_version("0.9.0", "--channel", "testing")
    done = submit("small@2")
    assert done.status == 66
    there = "2.1.0 (rolled back), 2.0.0 (rolled back), 1.0.0 (stable), 0.9.0 (testing)"
    assert f"no template small@2: {centre.dir} has {there}. 2.1.0 was rolled back, so" in done.err
    assert "leave @2 out, which gives 1.0.0, or name it whole (small@2.1.0)" in done.err
    # Both do what is said of them.
    assert says(submit("small")) == "v1.0.0"
    assert says(submit("small@2.1.0")) == "v2.1.0"
    assert "rolled back" not in submit("small@3").err.partition(there)[2]
    # The same series again: the pin stands for it, and nothing is said of a rollback.
    centre.publish_version("2.2.0")
    assert says(submit("small@2")) == "v2.2.0"
    assert "rolled back" not in submit("small@3").err


def test_whoever_publishes_a_job_hears_what_of_it_looks_like_their_own(centre: Centre) -> None:
    """It is theirs to decide, so the job is published as it is."""
    job = centre.job()
    assert "warning" not in centre.publish(job).err
    own = '\n[notify]\nmail = "alex@centre.example"\n[audit]\nshare = true\n'
    job.write_text(job.read_text().replace("[resources]", '[resources]\naccount = "p1"') + own)
    done = centre.publish(job)
    assert "job mine 2 published" in done.out
    told = "whoever uses job mine gets its resources.account, [notify], [audit]: leave out of"
    assert told in done.err.replace("\n", " ")


def test_a_withdrawn_version_is_refused_with_the_reason_and_what_to_use(centre: Centre) -> None:
    for version in ("1.0.0", "1.1.0"):
        centre.publish_version(version)
    words = ("withdraw", "small@1.1.0", "--reason", "asks for no GPUs")
    assert centre.try_to_publish(*words).status == 0
    done = submit("small@1.1.0")
    assert done.status == 65
    why = f"template small 1.1.0 was withdrawn by {ALEX}: asks for no GPUs"
    assert f"{why}; use small@1.0.0, or small without a version" in done.err
    done = submit()
    assert says(done) == "v1.0.0"
    assert f"{why}; 1.0.0 is used" in done.err
    assert submit("small@1.1").status == 65
    assert says(submit("small@1")) == "v1.0.0"
    # It cannot come back, by no way.
    assert "stays so" in centre.try_to_publish(centre.template("1.1.0", "v1.1.0")).err
    assert centre.try_to_publish("promote", "small@1.1.0").status == 65


def test_jobs_and_profiles_are_counted_and_the_jobs_script_travels_with_it(centre: Centre) -> None:
    centre.publish(centre.template())
    assert "job mine 1 published" in centre.publish(centre.job()).out
    assert "job mine 1 as before" in centre.publish(centre.job()).out
    assert "job mine 2 published" in centre.publish(centre.job(script="print(2)\n")).out
    assert "site cluster 1 published" in centre.publish(centre.profile("One")).out
    assert "site cluster 2 published" in centre.publish(centre.profile("Two")).out
    done = typed("submit", "mine", "--cluster", "cluster", "--dry-run")
    entry = centre.version("mine", "2", "job") / "train.py"
    assert f"FSDPKIT_PROGRAM=({entry})" in done.out
    assert entry.read_text() == "print(2)\n"
    for line in ("job mine 2, ", "site cluster 2, ", "template small 1.0.0, "):
        assert f"#   published: {line}sha256 " in done.out
    assert "nodes = 1 (centre jobs/mine.toml version 2)" in done.out
    done = typed("submit", "mine@1", "--cluster", "cluster@1", "--dry-run")
    assert "published: job mine 1, " in done.out
    assert "published: site cluster 1, " in done.out
    # The files of the first version again are the first version.
    assert "job mine 1 promoted" in centre.publish(centre.job()).out


def test_a_whole_folder_is_published_in_one_change(centre: Centre) -> None:
    top = centre.drafts / "all"
    for folder in ("templates", "jobs", "site/profiles/centre"):
        (top / folder).mkdir(parents=True)
    centre.template().rename(top / "templates" / "small")
    centre.job().rename(top / "jobs" / "mine.toml")
    (centre.drafts / "train.py").rename(top / "jobs" / "train.py")
    centre.profile().rename(top / "site" / "profiles" / "centre" / "big.toml")
    told = checked(centre.publish(top, "--json").out)
    steps = [(step["kind"], step["name"]) for step in told["steps"]]
    assert sorted(steps) == [("job", "mine"), ("site", "centre-big"), ("template", "small")]
    history = list((centre.dir / "published" / "history").iterdir())
    assert len(history) == 1
    for part in ("templates", "jobs", "site", "site/profiles", "site/profiles/centre"):
        assert "as before" in centre.publish(top / part).out, part


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("template.toml", "version = 3\n"),
        ("job.sbatch.j2", "{{ 1 | nope }}\n"),
        ("job.sbatch.j2", "{% for x in y %}\n"),
    ],
)
def test_what_users_could_not_use_is_not_published(centre: Centre, file: str, text: str) -> None:
    folder = centre.template()
    (folder / file).write_text(text)
    done = centre.try_to_publish(folder)
    assert done.status == 65
    assert "small" in done.err
    assert not centre.index.exists()


def test_a_link_is_not_published(centre: Centre) -> None:
    folder = centre.template()
    (folder / "secret").symlink_to("/etc/shadow")
    assert centre.try_to_publish(folder).status == 65
    (folder / "secret").unlink()
    (folder / "more").symlink_to("/etc")
    assert centre.try_to_publish(folder).status == 65
    job = centre.job()
    job.write_text(job.read_text().replace("train.py", "../train.py"))
    (centre.drafts.parent / "train.py").touch()
    assert "leads out of the job's folder" in centre.try_to_publish(job).err


def test_the_record_of_a_run_says_what_was_verified(
    centre: Centre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 4711\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    centre.publish(centre.template())
    centre.publish(centre.job())
    done = typed("submit", "mine", "--cluster", "generic", "--json")
    assert done.status == 0, done.err
    found = json.loads((Path(json.loads(done.out)["dir"]) / "provenance.json").read_text())
    named = [(p["kind"], p["name"], p["version"], p["signer"]) for p in found["published"]]
    assert named == [("job", "mine", "1", ALEX), ("template", "small", "1.0.0", ALEX)]
    assert all(len(p["sha256"]) == 64 for p in found["published"])


# ---- Who may


def test_only_who_is_in_allowed_signers_publishes(centre: Centre, keys: Path) -> None:
    done = centre.try_to_publish(centre.template(), key=keys / "eve")
    assert done.status == 65
    assert "is not in allowed_signers" in done.err
    assert not centre.index.exists()
    centre.publish(centre.template(), key=centre.kim)
    assert f"signed by {KIM}" in submit().out


def test_a_key_that_was_removed_or_has_expired_counts_no_more_until_somebody_else_signs(
    centre: Centre,
) -> None:
    centre.publish(centre.template())
    assert submit().status == 0
    for allowed in (
        line_of(centre.kim, KIM),
        line_of(centre.alex, ALEX, 'namespaces="fsdpkit",valid-before="20200101"')
        + line_of(centre.kim, KIM),
        line_of(centre.alex, ALEX, 'namespaces="git"') + line_of(centre.kim, KIM),
        line_of(centre.kim, ALEX) + line_of(centre.kim, KIM),
    ):
        centre.allow(allowed)
        done = submit()
        assert done.status == 65, allowed
        assert f"signed as {ALEX}, is not to be believed" in done.err
        assert "fsdpkit publish sign" in done.err
        # Nor does anybody build on it without looking.
        done = centre.try_to_publish(centre.template("1.1.0"), key=centre.kim)
        assert done.status == 65
    centre.allow(line_of(centre.kim, KIM))
    assert centre.try_to_publish("sign", key=centre.kim).status == 0
    assert f"signed by {KIM}" in submit().out


def test_the_end_of_the_signer_s_key_is_told_of_two_months_before(centre: Centre) -> None:
    def allow_until(at_s: float) -> None:
        until = time.strftime("%Y%m%d%H%M", time.localtime(at_s))
        centre.allow(line_of(centre.alex, ALEX, f'namespaces="fsdpkit",valid-before="{until}"'))

    now_s = time.time()
    allow_until(now_s + 90 * 86400)
    centre.publish(centre.template())
    listed = json.loads(typed("publish", "list", "--to", centre.dir, "--json").out)
    assert listed["key_ends_s"] is None
    assert "counts until" not in typed("templates", "--check").err

    ends_s = int(now_s / 60) * 60 + 21 * 86400
    allow_until(ends_s)
    listed = json.loads(typed("publish", "list", "--to", centre.dir, "--json").out)
    assert abs(listed["key_ends_s"] - ends_s) <= 1
    for words in (("publish", "list", "--to", centre.dir), ("templates", "--check")):
        done = typed(*words)
        assert done.status == 0
        assert f"the key of {ALEX} counts until" in done.err
        assert "fsdpkit publish sign" in done.err


def test_without_allowed_signers_it_says_what_to_write(centre: Centre) -> None:
    (centre.dir / "allowed_signers").unlink()
    done = centre.try_to_publish(centre.template())
    assert done.status == 65
    assert 'namespaces="fsdpkit"' in done.err


def test_a_centre_can_name_its_signers_elsewhere(
    centre: Centre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (centre.dir / "allowed_signers").rename(tmp_path / "signers")
    monkeypatch.setenv("FSDPKIT_ALLOWED_SIGNERS", str(tmp_path / "signers"))
    centre.publish(centre.template())
    assert says(submit()) == "hello"
    (tmp_path / "signers").unlink()
    assert submit().status == 65


def test_the_list_shows_every_version_and_fits_its_schema(centre: Centre) -> None:
    for version in ("1.0.0", "1.1.0"):
        centre.publish_version(version)
    centre.publish_version("2.0.0", "--channel", "testing")
    centre.try_to_publish("withdraw", "small@1.0.0", "--reason", "old")
    answer = checked(typed("publish", "list", "--json").out)
    rows = [(v["version"], v["channels"], v["withdrawn"]) for v in answer["versions"]]
    assert rows == [
        ("2.0.0", ["testing"], None),
        ("1.1.0", ["stable"], None),
        ("1.0.0", [], "old"),
    ]
    assert typed("publish", "list").out.splitlines()[-1].endswith("  withdrawn: old")


def test_a_dry_run_says_what_would_be_and_needs_no_key(centre: Centre, tmp_path: Path) -> None:
    done = typed("publish", centre.template(), "--to", centre.dir, "--dry-run")
    assert "would be: template small 1.0.0 published" in done.out
    assert not centre.index.exists()
    assert len(typed("publish", "list", "--to", centre.dir).out.splitlines()) == 1


# ---- A plain folder stays one


def test_a_folder_without_any_of_this_is_what_it_was(centre: Centre) -> None:
    (centre.dir / "allowed_signers").unlink()
    (centre.dir / "templates").mkdir()
    centre.template().rename(centre.dir / "templates" / "small")
    done = submit()
    assert says(done) == "hello"
    assert "published:" not in done.out


def test_what_is_not_in_the_index_is_refused_and_not_replaced(centre: Centre) -> None:
    centre.publish(centre.profile())
    (centre.dir / "templates").mkdir()
    folder = centre.template().rename(centre.dir / "templates" / "small")
    done = submit()
    assert done.status == 65
    assert f"{folder} is in no signed index, so it is not used; " in done.err
    assert submit(str(folder)).status == 65, "by its path, neither"
    (centre.dir / "jobs").mkdir()
    job = centre.job().rename(centre.dir / "jobs" / "t5.toml")
    assert typed("submit", "t5", "--cluster", "generic", "--dry-run").status == 65
    assert typed("submit", job, "--cluster", "generic", "--dry-run").status == 65
    (centre.dir / "site" / "profiles").mkdir(parents=True)
    centre.profile().rename(centre.dir / "site" / "profiles" / "generic.toml")
    assert submit().status == 65
    assert typed("sites", "--check").status == 65


def test_a_name_that_ssh_keygen_would_take_for_an_option_reaches_no_command(
    centre: Centre, keys: Path
) -> None:
    import click

    centre.publish(centre.template())
    with pytest.raises(click.UsageError):
        centre.try_to_publish(centre.template("1.1.0"), "--as", "-O")
    text = centre.index.read_bytes().replace(b'"by": "alex@', b'"by": "-alex@')
    centre.index.write_bytes(text)
    assert "was changed or cut" in submit().err


def test_an_agents_key_signs_by_the_public_one(
    centre: Centre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        key = make_key(tmp_path / "held")
        until(lambda: ran(["ssh-add", "-q", str(key)]).returncode == 0, "the agent")
        centre.allow(line_of(key, ALEX))
        key.unlink()
        centre.publish(centre.template(), key=key.with_suffix(".pub"))
    finally:
        agent.terminate()
        agent.wait()
    assert says(submit()) == "hello"
