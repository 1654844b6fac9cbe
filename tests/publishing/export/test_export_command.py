"""`fsdpkit template export`: what it writes, over what, and what it says."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from fsdpkit.config.assets import hold_script, packaged_dir
from fsdpkit.errors import (
    ConfigError,
    FsdpkitError,
    NotFoundError,
    RenderError,
    UsageError,
)
from fsdpkit.publishing.export import rules
from fsdpkit.publishing.replacing import EXPORT
from tests.publishing.called import Call, answer
from tests.publishing.called import call as call
from tests.publishing.export import made

APP = ("--to", "ondemand", "--cluster", "osc-cardinal")


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_it_writes_the_app_and_says_how_to_install_it(call: Call, tmp_path: Path) -> None:
    done = call("template", "export", "torchrun", *APP, "--output", "app", status=0)
    assert done.stdout == f"{tmp_path / 'app'}\n"
    assert "README.md" in done.stderr
    assert "not asked for: parameters.preflight: " in done.stderr
    assert set(tree(tmp_path / "app")) == {
        *("manifest.yml", "form.yml", "submit.yml.erb", "view.html.erb", "README.md"),
        *("CHECKLIST.md", "template/before.sh.erb", "template/script-cardinal.sh", EXPORT.record),
    }
    assert os.access(tmp_path / "app" / "template" / "script-cardinal.sh", os.X_OK)
    readme = (tmp_path / "app" / "README.md").read_text()
    assert "exit status 65" in readme
    assert max(map(len, readme.splitlines())) < 130


def test_its_json_says_what_the_form_asks_for(call: Call, tmp_path: Path) -> None:
    words = ("--to", "ondemand", "--cluster", "osc-cardinal=ood-one", "--release", "4.0")
    told = answer(call("template", "export", "torchrun", *words, "--output", "a", "--json"))
    assert (told["to"], told["release"], told["template"]) == ("ondemand", "4.0", "torchrun")
    assert told["dir"] == str(tmp_path / "a")
    (cluster,) = told["clusters"]
    assert (cluster["site"], cluster["name"]) == ("osc-cardinal", "ood-one")
    assert "gpu:4" in cluster["places"]
    assert "FSDPKIT_FORM_SCRIPT" in cluster["fields"]
    assert "parameters.preflight" in cluster["fixed"]
    assert sorted({*told["files"], EXPORT.record}) == sorted(tree(tmp_path / "a"))


def test_what_is_one_person_s_or_one_day_s_stays_behind(call: Call, tmp_path: Path) -> None:
    """And of a path nobody can tell whose it is, so each that came with the job is named."""
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "mine.toml").write_text(
        'schema = "fsdpkit.job/1"\nname = "mine"\nentry = "mine.py"\n'
        'args = ["--out", "/data/alex/out"]\n'
        '[resources]\nnodes = 2\ngpus = 2\ntime = "01:00:00"\nqos = "vip"\n'
        'reservation = "alexs"\nexclude = "node7"\naccount = "PAS2136"\n[audit]\nshare = true\n'
        f'[files]\ngroup = true\nneeds = ["{tmp_path}"]\n[source]\nsnapshot = true\n'
        '[track]\nto = ["mlflow"]\n'
        'project = "alex-private"\n[array_settings]\n1 = {retry = {hang_s = 77}}\n'
        '[environment.variables]\nHF_HOME = "/fs/ess/PAS2136/alex"\nMODE = "a/b"\n'
    )
    words = (*APP, "--job", "mine.toml", "--output", "app")
    done = call("template", "export", "torchrun", *words, status=0)
    own = ("reservation", "exclude", "track", "array_settings", "audit", "files", "source")
    for key in (*own, "qos", "default of arguments"):
        assert f"not asked for: {key}: " in done.stderr
    said = {name: content.decode() for name, content in tree(tmp_path / "app").items()}
    readme, checklist = said.pop("README.md"), said.pop("CHECKLIST.md")
    assert "environment.variables.HF_HOME`: /fs/ess/PAS2136/alex is the same for all" in readme
    assert "environment.variables.MODE" not in readme
    assert "- [ ] every user can read the paths that came with the job" in checklist
    for word in ("alexs", "node7", "alex-private", '"hang_s": 77', 'PAS2136"', '"share"', "needs"):
        assert [name for name, text in said.items() if word in text] == [], word


def test_a_job_decides_what_the_form_begins_with(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "mine.toml").write_text(
        'schema = "fsdpkit.job/1"\nname = "mine"\nentry = "mine.py"\nargs = ["--lr", "1e-4"]\n'
        '[resources]\nnodes = 3\ngpus = 2\ntime = "09:30:00"\n'
        '[environment]\nconda = "torch-2"\n[parameters]\nwait_s = 90\n'
        '[notify]\nmail = "ann@example.org"\n[training]\nepochs = 2\n'
    )
    words = (*APP, "--job", "mine.toml", "--output", "app")
    done = call("template", "export", "torchrun", *words, status=0)
    assert "not asked for: notify" in done.stderr
    form = (tmp_path / "app" / "form.yml").read_text()
    for said in ('"mine (torchrun)"', '"mine.py"', '"--lr 1e-4"', '"torch-2"', 'value: "90"'):
        assert said in form
    assert 'value: "cardinal:gpu:2"' in form
    for name, value in (("fsdpkit_nodes", 3), ("bc_num_hours", 9)):
        assert f"value: {value}\n" in form.split(f"  {name}:\n")[1][:120]
    script = (tmp_path / "app" / "template" / "script-cardinal.sh").read_text()
    assert "ann@example.org" not in "".join(map(str, tree(tmp_path / "app").values()))
    assert '"training": {' in script
    assert 'FSDPKIT_FORM_WORDS=(--job "$FSDPKIT_FORM_RUN_DIR/job.json"' in script
    assert 'CONDA_ENV="$FSDPKIT_FORM_ENVIRONMENT"' in script


def test_the_same_again_replaces_it_and_what_is_no_longer_made_goes(
    call: Call, tmp_path: Path
) -> None:
    both = ("--to", "ondemand", "--cluster", "osc-cardinal", "--cluster", "osc-pitzer=pitzer")
    call("template", "export", "torchrun", *both, "--output", "app", status=0)
    call("template", "export", "torchrun", *APP, "--output", "app", status=0)
    call("template", "export", "torchrun", *APP, "--output", "fresh", status=0)
    assert tree(tmp_path / "app") == tree(tmp_path / "fresh")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app", "fresh"]


def test_what_was_changed_by_hand_is_replaced_only_with_force(call: Call, tmp_path: Path) -> None:
    words = ("template", "export", "torchrun", *APP, "--output", "app")
    call(*words, status=0)
    form = tmp_path / "app" / "form.yml"
    sound = form.read_text()
    form.write_text(sound + "# mine\n")
    refused = call(*words, status=UsageError.exit_code)
    assert "form.yml was changed since it was exported" in str(refused.exception)
    assert "--force" in str(refused.exception)
    assert form.read_text() == sound + "# mine\n"
    call(*words, "--force", status=0)
    assert form.read_text() == sound


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize("what", ["file", "directory", "link", "link inside", "other", "forged"])
def test_nothing_else_is_ever_replaced(
    call: Call, tmp_path: Path, what: str, force: list[str]
) -> None:
    app = tmp_path / "app"
    if what == "file":
        app.write_text("mine")
    elif what == "link":
        (tmp_path / "real").mkdir()
        app.symlink_to("real")
    else:
        app.mkdir()
        if what == "directory":
            (app / "thesis.tex").write_text("mine")
        elif what == "other":
            call("template", "export", "torchrun", *APP, "--output", "app", status=0)
            (app / "notes.txt").write_text("mine")
        elif what == "forged":
            (app / EXPORT.record).write_text("{")
            (app / "form.yml").write_text("mine")
        else:
            (app / "form.yml").symlink_to("/etc/passwd")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    words = (*APP, "--output", "app", *force)
    call("template", "export", "torchrun", *words, status=UsageError.exit_code)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


OSC = ("--cluster", "osc-pitzer")
TWO = (*OSC, "--cluster", "osc-ascend=pitzer")
REFUSED = [
    ("ondemand", ("--cluster", "local"), ConfigError, "is no Slurm cluster"),
    ("ondemand", ("--cluster", "nowhere"), NotFoundError, "nowhere"),
    ("open-composer", (*OSC, "--cluster", "osc-ascend"), UsageError, "one cluster"),
    ("ondemand", TWO, UsageError, "two clusters are called"),
    ("ondemand", ("--cluster", "osc-pitzer=../x"), UsageError, "the portal's name of the cluster"),
    ("ondemand", ("--cluster", "osc-pitzer=$(id)"), UsageError, "the portal's name of the cluster"),
    ("ondemand", (*OSC, "--release", "3.1"), UsageError, "knows the releases 4.0, 4.1, 4.2"),
    ("open-composer", (*OSC, "--release", "4.2"), UsageError, "knows the releases 2.0"),
    ("ondemand", (*OSC, "--job", "none"), NotFoundError, "none"),
]


@pytest.mark.parametrize(("portal", "words", "error", "told"), REFUSED)
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(
    call: Call,
    tmp_path: Path,
    portal: str,
    words: tuple[str, ...],
    error: type[FsdpkitError],
    told: str,
) -> None:
    done = call("template", "export", "torchrun", "--to", portal, *words, "--output", "app")
    assert isinstance(done.exception, error)
    assert done.exit_code == error.exit_code
    assert told in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_template_that_decides_by_what_only_the_form_knows_is_refused(
    call: Call, tmp_path: Path
) -> None:
    script = made.SCRIPT.replace("{% if job.args %}", '{% if job.entry == "a.py" %}')
    made.template(tmp_path, script)
    done = call("template", "export", "./small", *APP, "--output", "app")
    assert isinstance(done.exception, RenderError)
    assert "the script decides by it, and only the form will say what job.entry is" in str(
        done.exception
    )


def test_a_template_that_decides_by_a_parameter_keeps_that_one_fixed(
    call: Call, tmp_path: Path
) -> None:
    script = made.SCRIPT.replace(
        "set -euo", "{% if parameters.wait_s > 100 %}\nsleep 1\n{% endif %}\nset -euo"
    )
    made.template(tmp_path, script)
    words = ("template", "export", "./small", *APP, "--output", "app", "--json")
    (cluster,) = answer(call(*words))["clusters"]
    assert cluster["fixed"]["parameters.wait_s"] == "the script decides by it: 60"
    assert "FSDPKIT_FORM_P_WAIT_S" not in cluster["fields"]
    assert "WAIT=60 " in (tmp_path / "app" / "template" / "script-cardinal.sh").read_text()


def test_hostile_words_of_a_centre_stay_words(call: Call, tmp_path: Path) -> None:
    """A title, a description and a partition with markup, quotes and commands in them."""
    hostile = "<script>x</script> \"'`$(id)` %> <%= 1 %> #{x}"
    (tmp_path / "odd.toml").write_text(
        f'schema = "fsdpkit.site/1"\ntitle = {json.dumps(hostile)}\n'
        '[node_types.n]\ngpus = 2\n[partitions."it\'s $(id) %>"]\nnode_type = "n"\n'
    )
    manifest = made.MANIFEST.replace('"One process a node."', json.dumps(hostile))
    made.template(tmp_path, manifest=manifest)
    words = ("--cluster", "./odd.toml=odd", "--output", "app")
    call("template", "export", "./small", "--to", "ondemand", *words, status=0)
    old = call("template", "export", "./small", "--to", "ondemand", "--release", "4.0", *words)
    assert "OnDemand 4.0 finds no option with a quote" in str(old.exception)
    submit = (tmp_path / "app" / "submit.yml.erb").read_text()
    assert submit.count("%>") == submit.count("<%") == 2
    assert "<script>" not in (tmp_path / "app" / "README.md").read_text()
    refused = call(
        "template", "export", "./small", "--to", "open-composer", *words[:2], "--output", "oc"
    )
    assert "Open Composer cannot hand on" in str(refused.exception)


def test_a_hold_is_begun_from_a_portal_where_the_centre_allows_it(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From where fsdpkit is installed for all; what one person has installed is refused."""
    words = ("template", "export", "torchrun", "--to", "ondemand", "--job", "hold", "--output")
    profile = (packaged_dir() / "site" / "profiles" / "osc" / "cardinal.toml").read_text()
    (tmp_path / "short.toml").write_text(f"{profile}\n[policy]\nhold_idle_s = 300\n")
    (tmp_path / "none.toml").write_text(f"{profile}\n[policy]\nhold_idle_s = 0\n")
    monkeypatch.setattr(rules, "_PLACE", re.compile(str(tmp_path)))
    cluster = ("app", "--cluster", "./short.toml=cardinal")
    call(*words, *cluster, status=0)
    form = (tmp_path / "app" / "form.yml").read_text()
    assert [word in form for word in (str(hold_script()), '"--idle 300"')] == [True, True]
    script = (tmp_path / "app" / "template" / "script-cardinal.sh").read_text()
    assert '"holds": true' in script
    call(*words, "b", "--cluster", "./none.toml=cardinal", status=UsageError.exit_code)
    monkeypatch.setattr(rules, "_PLACE", re.compile(str(hold_script())))
    call(*words, *cluster, status=RenderError.exit_code)
