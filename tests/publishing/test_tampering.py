"""Somebody who can write into the centre's folder changes it; people are refused, or get what was
signed, and never anything else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.config.published import centre as published
from fsdpkit.config.published import signature
from tests.publishing.centres import ALEX, Centre, Said, line_of, says, state_files, submit, typed

FILES = (
    "small/job.sbatch.j2",
    "small/end.j2",
    "small/template.toml",
    "small/README.md",
    "manifest.json",
)


def refused(done: Said, *words: str) -> None:
    assert done.status == 65, done.out
    assert done.out == ""
    for word in words:
        assert word in done.err


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    _write(path, bytes(content))


def _write(path: Path, content: bytes) -> None:
    path.chmod(0o600)
    path.write_bytes(content)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link_to_the_same(path: Path) -> None:
    copy = path.parent.parent.parent / f"copy-{path.name}"
    shutil.copy(path, copy)
    path.unlink()
    path.symlink_to(copy)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a bit": _flip,
    "longer": lambda path: _write(path, path.read_bytes() + b"\n"),
    "shorter": lambda path: _write(path, path.read_bytes()[:-1]),
    "empty": lambda path: _write(path, b""),
    "gone": Path.unlink,
    "a pipe": _pipe,
    "a link": _link_to_the_same,
    "unreadable text": lambda path: _write(path, b"\xff\x00" * 8),
    "3 GB": lambda path: os.truncate(path, 3 << 30),
}


@pytest.mark.parametrize(
    ("change", "file"),
    [*((change, FILES[0]) for change in CHANGES), *(("a bit", file) for file in FILES[1:])],
)
def test_a_version_that_is_not_as_signed_is_refused_and_named(
    centre: Centre, change: str, file: str
) -> None:
    centre.publish_version("1.0.0")
    centre.publish_version("2.0.0")
    CHANGES[change](centre.version(version="2.0.0") / file)
    refused(submit(), f"is not what {ALEX} signed", "template small 2.0.0", "pin another version")
    assert says(submit("small@1")) == "v1.0.0"
    done = typed("templates", "--check")
    assert done.status == 65
    assert "small@2.0.0" in done.out
    assert typed("templates").status == 0, "others are still listed"
    # Who has the files publishes them again, and all is well.
    assert "small 2.0.0 restored" in centre.publish_version("2.0.0").out
    assert says(submit()) == "v2.0.0"
    assert "small 2.0.0 as before" in centre.publish_version("2.0.0").out


@pytest.mark.parametrize("name", ["small/more.j2", "small/sub/more.j2", "small/link", "x", ".x"])
def test_a_file_that_was_added_to_a_version_is_refused(centre: Centre, name: str) -> None:
    centre.publish(centre.template())
    path = centre.version() / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to("/etc") if name.endswith("link") else path.write_text("true\n")
    refused(submit(), "was added")


def test_what_nfs_leaves_of_a_removed_file_is_no_change(centre: Centre) -> None:
    centre.publish(centre.template())
    (centre.version() / "small" / ".nfs0000000000").write_text("old\n")
    assert says(submit()) == "hello"


def test_a_published_job_is_refused_with_another_script(centre: Centre) -> None:
    centre.publish(centre.template())
    centre.publish(centre.job())
    words = ("submit", "mine", "--cluster", "generic", "--dry-run")
    assert typed(*words).status == 0
    _flip(centre.version("mine", "1", "job") / "train.py")
    refused(typed(*words), "train.py was changed")


def test_no_byte_of_the_index_can_be_changed(centre: Centre) -> None:
    """One in a few bytes, by a bit: refused, or it was one that means nothing (such as line ends in
    the signature's armour)."""
    centre.publish(centre.template())
    script, text = submit().out, centre.index.read_bytes()
    body = text.index(b"\n-----BEGIN")
    for at in [*range(0, body, 29), *range(body, len(text), 5)]:
        centre.index.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        done = submit()
        assert done.status == 65 or (at > body and done.out == script), (at, text[at : at + 20])
    centre.index.write_bytes(text)
    assert submit().out == script


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"",
        lambda text: text[: len(text) // 2],
        lambda text: text.partition(b"-----BEGIN")[0],
        lambda text: b"-----BEGIN" + text.partition(b"-----BEGIN")[2],
        lambda text: text + b"more",
        lambda text: text + text,
        lambda text: b" " + text,
        lambda text: text.replace(b"1.0.0", b"1.0.1"),
        lambda text: text.replace(b'"serial": 1', b'"serial": 2'),
        lambda text: b"[" * 100_000,
        lambda text: b"\x00" * 1000,
    ],
)
def test_an_index_that_is_none_is_refused(centre: Centre, change: Callable[[bytes], bytes]) -> None:
    centre.publish(centre.template())
    centre.index.write_bytes(change(centre.index.read_bytes()))
    refused(submit(), str(centre.index))
    for words in (("templates",), ("sites",), ("jobs",), ("publish", "list")):
        assert typed(*words).status == 65


def test_a_signature_for_another_purpose_or_by_another_key_counts_for_nothing(
    centre: Centre, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsdpkit.publishing import signing

    centre.publish(centre.template())
    body = centre.index.read_bytes().partition(b"-----BEGIN")[0]
    centre.index.write_bytes(body + signing.sign(body, keys / "eve"))
    refused(submit(), "is not, or no longer, in allowed_signers")
    monkeypatch.setattr(signing, "NAMESPACE", "git")
    centre.index.write_bytes(body + signing.sign(body, keys / "alex"))
    refused(submit(), "namespace")


# ---- Put back


def test_an_old_index_put_back_is_refused_by_whoever_has_seen_a_newer(centre: Centre) -> None:
    """As by somebody who likes a version that was withdrawn."""
    centre.publish_version("1.0.0")
    old = centre.index.read_bytes()
    centre.publish_version("2.0.0")
    centre.try_to_publish("withdraw", "small@1.0.0", "--reason", "leaks")
    assert says(submit()) == "v2.0.0"
    new = centre.index.read_bytes()
    centre.index.write_bytes(old)
    refused(submit(), "is an old one", "you have seen", str(state_files()[0]))
    refused(centre.try_to_publish(centre.template("3.0.0")), "is an old one")
    refused(centre.try_to_publish("sign"), "is an old one")
    centre.index.write_bytes(new)
    assert says(submit()) == "v2.0.0"
    # A rollback is a newer index that points to an older version.
    centre.publish_version("3.0.0")
    centre.try_to_publish("rollback", "small")
    assert says(submit()) == "v2.0.0"


def test_another_index_of_the_same_serial_is_refused(centre: Centre, tmp_path: Path) -> None:
    centre.publish_version("1.0.0")
    submit()
    (seen,) = state_files()
    note = json.loads(seen.read_text())
    note["index"] = "0" * 64
    seen.write_text(json.dumps({**note, "verified": ""}))
    refused(submit(), "is not the one you have seen with the same serial")


def test_the_index_of_another_centre_of_the_same_people_is_refused(
    centre: Centre, tmp_path: Path, keys: Path
) -> None:
    centre.publish_version("1.0.0")
    assert says(submit()) == "v1.0.0"
    (tmp_path / "other").mkdir()
    other = Centre.made(tmp_path / "other", keys)
    other.publish(other.template("1.0.0", "from the test centre"))
    shutil.rmtree(centre.dir / "published")
    shutil.copytree(other.dir / "published", centre.dir / "published")
    refused(submit(), "belongs to another centre")


def test_a_centre_that_is_begun_anew_goes_on_as_the_one_its_users_know(centre: Centre) -> None:
    centre.publish_version("1.0.0")
    assert says(submit()) == "v1.0.0"
    shutil.rmtree(centre.dir / "published")
    refused(submit(), "cannot be read")
    centre.publish_version("2.0.0")
    assert says(submit()) == "v2.0.0"


def test_nothing_of_it_taken_away_makes_a_plain_folder_of_it(centre: Centre) -> None:
    centre.publish(centre.template())
    (centre.dir / "templates").mkdir()
    shutil.copytree(centre.drafts / "small", centre.dir / "templates" / "small")
    (centre.dir / "allowed_signers").unlink()
    refused(submit(), "allowed_signers cannot be read")
    shutil.rmtree(centre.dir / "published")
    refused(submit(), "publishes what is signed")  # by what this user remembers
    state_files()[0].unlink()
    assert says(submit()) == "hello"


# ---- The memory


def test_a_verified_index_is_not_verified_again_but_any_other_is(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    centre.publish(centre.template())
    asked: list[object] = []
    real = signature._ask
    monkeypatch.setattr(published, "_RECENT_S", 0.0)
    monkeypatch.setattr(signature, "_ask", lambda *a: (asked.append(a), real(*a)))
    assert says(submit()) == "hello"
    assert asked == []
    state_files()[0].unlink()
    assert says(submit()) == "hello"
    assert len(asked) == 1, "one process, for job, profile and template together"
    centre.allow((centre.dir / "allowed_signers").read_text() + "# more\n")
    submit()
    assert len(asked) == 2
    centre.allow(line_of(centre.alex, ALEX, 'namespaces="fsdpkit",valid-before="21000101"'))
    monkeypatch.setattr(published, "_RECENT_S", 60.0)
    for count in (3, 4):
        submit()
        assert len(asked) == count, "what is true until a date is asked once a command"


def test_a_memory_that_others_can_write_is_not_believed(
    centre: Centre, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsdpkit.config.published.index import sha256

    centre.publish(centre.template())
    submit()
    (seen,) = state_files()
    note = json.loads(seen.read_text())
    text = centre.index.read_bytes().replace(b"1.0.0", b"1.0.1")
    centre.index.write_bytes(text)
    signers = (centre.dir / "allowed_signers").read_bytes()
    note |= {"index": sha256(text), "verified": sha256(sha256(signers).encode() + text)}
    seen.write_text(json.dumps(note))
    seen.chmod(0o666)
    refused(submit(), "is not to be believed")
    seen.chmod(0o600)
    seen.rename(seen.with_suffix(".real"))
    seen.symlink_to(seen.with_suffix(".real"))
    refused(submit(), "is not to be believed")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 9999, b'{"serial": "x"}'])
def test_a_memory_that_is_broken_is_none(centre: Centre, content: bytes) -> None:
    centre.publish(centre.template())
    submit()
    state_files()[0].write_bytes(content)
    assert says(submit()) == "hello"


def test_without_ssh_keygen_a_signed_centre_is_refused(
    centre: Centre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    centre.publish(centre.template())
    state_files()[0].unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(typed("templates"), "this machine has no ssh-keygen")


# ---- Whose the folder's own files are


@pytest.mark.parametrize("name", ["allowed_signers", "defaults.toml", "trust.toml"])
def test_what_no_index_covers_counts_only_if_root_and_the_owner_alone_can_change_it(
    centre: Centre, name: str
) -> None:
    centre.publish(centre.template())
    texts = {
        "defaults.toml": '[environment]\nvariables = {A = "1"}\n',
        "trust.toml": 'schema = "fsdpkit.trust/1"\nmessage = "ask"\n',
    }
    path = centre.dir / name
    if name in texts:
        path.write_text(texts[name])
        path.chmod(0o644)
    assert says(submit()) == "hello"
    for mode in (0o666, 0o646):
        path.chmod(mode)
        refused(submit(), f"{path} is not to be believed", "chmod go-w")
    path.chmod(0o644)
    centre.dir.chmod(0o777)
    refused(submit(), "is not to be believed")
    centre.dir.chmod(0o755)
    assert says(submit()) == "hello"
    real = path.rename(centre.drafts / name)
    path.symlink_to(real)
    centre.drafts.chmod(0o777)
    refused(submit(), "is not to be believed")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of somebody else")
def test_only_what_is_signed_is_taken_from_a_folder_whose_signers_are_named_elsewhere(
    centre: Centre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror, whose owner writes defaults and a list of what is allowed beside the index."""
    centre.publish(centre.template())
    pinned = (centre.dir / "allowed_signers").rename(tmp_path / "signers")
    monkeypatch.setenv("FSDPKIT_ALLOWED_SIGNERS", str(pinned))
    defaults, trust = centre.dir / "defaults.toml", centre.dir / "trust.toml"
    defaults.write_text('[resources]\naccount = "canary"\n')
    assert "canary" in submit().out, "the folder is the user's own"
    for path in (centre.dir, defaults):
        os.chown(path, 12002, 12002)
    done = submit()
    assert says(done) == "hello"
    assert "canary" not in done.out
    assert f"{defaults} is not read: it is not signed" in done.err
    os.chown(pinned, 12002, 12002)
    assert "canary" in submit().out, "who lists the signers may sign anything"
    trust.write_text('schema = "fsdpkit.trust/1"\nmessage = "ask"\njob = []\n')
    os.chown(pinned, 0, 0)
    refused(submit(), "not among those that the centre allows")


def test_the_folder_of_versions_may_be_open_to_a_group_of_publishers(centre: Centre) -> None:
    centre.publish(centre.template())
    for path in (centre.dir / "published").rglob("*"):
        if path.is_dir():
            path.chmod(0o777)
    assert says(submit()) == "hello", "what is signed may lie anywhere"
