"""The apps themselves: a golden one for each portal's newest release, read by their own readers."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import fsdpkit
from fsdpkit.config.job_loading import load_job
from fsdpkit.publishing.export import yaml_text
from fsdpkit.publishing.export.build import RELEASES, App, Portal, build
from fsdpkit.publishing.export.fields import label_of
from fsdpkit.publishing.template_cases import sites
from fsdpkit.publishing.template_named import open_template
from fsdpkit.publishing.template_shell import has_shellcheck, shellcheck
from tests.programs import ran
from tests.publishing.export import made, portals

GOLDEN = Path(__file__).parent / "golden"
"""Written anew with UPDATE_GOLDEN=1."""


def app_of(folder: Path, portal: Portal) -> App:
    clusters = ("heron", "egret") if portal == "ondemand" else ("heron",)
    return made.app(folder, portal, *clusters)


def neutral(app: App) -> dict[str, str]:
    """Without what differs from one release of fsdpkit to the next."""
    digests = {exported.template.sha256 for exported in app.exports}
    found = {}
    for name, text in app.files.items():
        for digest in digests:
            text = text.replace(digest, "0" * 64).replace(digest[:12], "0" * 12)
        text = re.sub(r'"(site|job)": "[0-9a-f]{64}"', r'"\1": "' + "0" * 64 + '"', text)
        text = text.replace(f'"version": "{fsdpkit.__version__}"', '"version": "0.0.0"')
        text = re.sub(r"FSDPKIT-[0-9a-f]{16}", "FSDPKIT-" + "0" * 16, text)
        found[name] = text.replace(f"fsdpkit {fsdpkit.__version__} ", "fsdpkit 0.0.0 ")
    return found


@pytest.mark.parametrize("portal", RELEASES)
def test_each_portal_gets_what_its_golden_app_holds(folder: Path, portal: Portal) -> None:
    files = neutral(app_of(folder, portal))
    root = GOLDEN / portal
    if os.environ.get("UPDATE_GOLDEN"):
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    golden = {
        path.relative_to(root).as_posix(): path.read_text()
        for path in root.rglob("*")
        if path.is_file()
    }
    assert files == golden


def documents(folder: Path) -> Iterator[tuple[str, str]]:
    for portal in RELEASES:
        for name, text in app_of(folder, portal).files.items():
            if name.endswith((".yml", "form.yml.erb")):
                yield f"{portal}: {name}", text


@portals.needs_ruby
def test_ruby_and_python_read_the_same_from_every_yaml_file(folder: Path) -> None:
    found = list(documents(folder))
    read = portals.in_ruby("read", None, [text for _, text in found])
    assert len(found) == 4
    for (name, text), ruby in zip(found, read, strict=True):
        assert yaml.safe_load(text) == ruby, name


RECORD = {
    "no": "no",
    "1:30": ["1:30", "~", "null", "=", "%x", "@y", "`z`", "- a", "a: b", "#c", "é\u202e", "", " "],
    "block": "first\n  indented: %>\n\n# no comment\n",
    "odd block": "ends without a line break\nindeed",
    "tabs": "a\tb\n\x1bc\n",
    "deep": {"a": {"b": [["x", {"data-max": 1, "data-option": False}], [1.5, None]]}},
    "empty": {},
}


@portals.needs_ruby
def test_no_text_is_read_as_anything_else() -> None:
    text = yaml_text.document(RECORD)
    assert yaml.safe_load(text) == RECORD
    assert portals.in_ruby("read", None, [text]) == [RECORD]


def test_every_packaged_profile_can_be_exported() -> None:
    """By each portal's rules, or for a reason that names what stands in the way."""
    template = open_template("torchrun")
    found, broken = sites()
    assert not broken
    slurm = [site for site in found if site.profile.kind == "slurm"]
    assert len(slurm) > 20
    for site, portal in zip(slurm, itertools.cycle(RELEASES), strict=False):
        assert build(template, [(site, "cluster")], portal).files["README.md"]


@pytest.mark.skipif(not has_shellcheck(), reason="there is no shellcheck here")
@pytest.mark.parametrize("python", ["venv", "conda"])
def test_shellcheck_and_bash_find_nothing_in_an_exported_script(python: str) -> None:
    (site,), _ = sites(["osc-cardinal"])
    app = build(open_template("torchrun"), [(site, "cardinal")], "ondemand", python=python)
    script = app.files["template/script-cardinal.sh"]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    complaints = [c for c in shellcheck([script]) if "SC2086" not in str(c)]
    assert complaints == []  # but that a checked number stands without quotes


@pytest.mark.skipif(portals.RUBY is None, reason="no ruby here")
def test_what_the_page_of_open_composer_fills_in_is_bash(folder: Path) -> None:
    """And says what the form said, to the checks; what says nothing leaves no line."""
    app = made.app(folder, "open-composer")
    root = made.on_disk(app, folder)
    said = portals.open_composer_defaults(root) | {"environment": "/opt/env", "account": ""}
    script = portals.filled_in(root, said)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    directives = [line for line in script.split("\n") if line.startswith("#SBATCH")]
    assert directives == [
        *("#SBATCH --job-name=train", "#SBATCH --partition=long", "#SBATCH --ntasks-per-node=1"),
        *("#SBATCH --cpus-per-task=64", "#SBATCH --mem=0", "#SBATCH --gpus-per-node=4"),
        *("#SBATCH --open-mode=append", "#SBATCH --signal=B:USR1@120", "#SBATCH --requeue"),
        *("#SBATCH --nodes=2", "#SBATCH --time=240"),
    ]
    inputs = script.split("# ---- What the form says")[0]
    values = {field.variable: field for field in app.exports[0].fields}
    shown = "; ".join(f'printf "{name}=%q\\n" "${name}"' for name in values)
    done = ran(["bash"], input=inputs + shown, status=0)
    told = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert told == {
        "FSDPKIT_FORM_SCRIPT": "train.py",
        "FSDPKIT_FORM_ARGUMENTS": "''",
        "FSDPKIT_FORM_ENVIRONMENT": "/opt/env",
        "FSDPKIT_FORM_GPUS": "4",
        "FSDPKIT_FORM_P_WAIT_S": "60",
        "FSDPKIT_FORM_P_SHARE": "0.5",
        "FSDPKIT_FORM_P_TAG": "plain",
        "FSDPKIT_FORM_P_MODE": "fast",
    }


QUICK = """
schema = "fsdpkit.job/1"
name = "train"
entry = "train.py"
[resources]
nodes = 1
gpus = 4
time = "{time}"
partition = "quick"
"""


def quick_app(folder: Path, portal: Portal, time: str = "00:30:00") -> App:
    """Of Heron, for a job in the partition whose longest time is half an hour."""
    (folder / "train.py").touch()
    (folder / "quick.toml").write_text(QUICK.format(time=time))
    job = load_job(str(folder / "quick.toml")).spec
    return build(made.template(folder), [(made.site(folder, "heron"), "heron")], portal, job=job)


MINUTES = {"30": None, "6": None, "31": "allowed there: 6 to 30", "5": "from 6 to 2880"}
"""What is wrong with so many, of a partition that allows half an hour."""


@portals.needs_ruby
def test_a_partition_of_half_an_hour_is_offered_in_minutes(folder: Path) -> None:
    ondemand = made.on_disk(quick_app(folder, "ondemand"), folder)
    said = portals.batch_connect_defaults(ondemand)
    assert (said["fsdpkit_place"], said["fsdpkit_minutes"]) == ("heron:quick:4", "30")
    said |= {"auto_accounts": "pas1234", "fsdpkit_directory": "/d", "fsdpkit_environment": "/e"}
    forms = [{**said, "fsdpkit_minutes": minutes} for minutes in MINUTES]
    answers = portals.in_ruby("batch-connect", ondemand, forms)
    for (minutes, wrong), answer in zip(MINUTES.items(), answers, strict=True):
        if wrong is None:
            assert answer["submit"]["script"]["wall_time"] == int(minutes) * 60, answer
        else:
            assert wrong in answer["error"]

    composer = made.on_disk(quick_app(folder, "open-composer"), folder)
    said = portals.open_composer_defaults(composer)
    assert said["minutes"] == "30"
    said |= {"account": "pas1234", "environment": "/e"}
    forms = [{**said, "minutes": minutes} for minutes in MINUTES]
    answers = portals.in_ruby("open-composer", composer, forms)
    for wrong, answer in zip(MINUTES.values(), answers, strict=True):
        assert (wrong or "None") in str(answer["error"])
    assert "\n#SBATCH --time=6\n" in portals.filled_in(composer, forms[1])


def test_where_every_partition_takes_hours_the_form_asks_for_them(folder: Path) -> None:
    """And begins with what the partition gives a job that asks for none."""
    text = made.EGRET.replace("[partitions.all]", '[partitions.all]\ndefault_time = "02:30:00"')
    clusters = [(made.site(folder, "egret", text), "egret")]
    form = build(made.template(folder), clusters, "ondemand").files["form.yml"]
    hours = yaml.safe_load(form)["attributes"]["bc_num_hours"]
    assert (hours["value"], hours["min"], hours["max"]) == (2, 1, 24)
    app = build(made.template(folder), clusters, "open-composer")
    assert "#SBATCH --time=#{hours}:00:00" in app.files["form.yml.erb"]


@portals.needs_ruby
def test_blanks_around_a_value_change_nothing_in_ondemand(folder: Path) -> None:
    root = made.on_disk(app_of(folder, "ondemand"), folder)
    good = portals.batch_connect_defaults(root) | {"auto_accounts": "pas1234"}
    good |= {
        "fsdpkit_directory": "/",
        "fsdpkit_script": "train.py",
        "fsdpkit_environment": "/opt/e",
    }
    padded = {key: f"\t{text} " if key != "cluster" else text for key, text in good.items()}
    one, other = portals.in_ruby("batch-connect", root, [good, padded])
    assert "submit" in one
    assert one == other


def test_a_header_names_what_the_form_says_and_expands_nothing() -> None:
    (site,), _ = sites(["osc-cardinal"])
    exported = build(open_template("torchrun"), [(site, "cardinal")], "ondemand").exports[0]
    header = exported.script().partition("\n#SBATCH")[0].split("\n")
    assert header[1].startswith("# <run.id>: train on OSC Cardinal, <nodes> x <gpus> ranks.")
    assert not [line for line in header if "$" in line]
    assert [line for line in header if "requeue: the job queues itself again after" in line]


def test_a_forms_labels_are_words() -> None:
    names = ("min_free_gb", "omp_threads", "use_cpu", "a__b_")
    assert [*map(label_of, names)] == ["Min free (GB)", "OMP threads", "Use CPU", "A b"]


def test_two_parameters_with_one_label_keep_their_names(folder: Path) -> None:
    more = MANIFEST_PARAMETERS.format("wait_seconds") + MANIFEST_PARAMETERS.format("wait__seconds")
    more += MANIFEST_PARAMETERS.format("nodes")
    template = made.template(folder, manifest=made.MANIFEST + more)
    app = build(template, [(made.site(folder, "heron"), "heron")], "ondemand")
    attributes = yaml.safe_load(app.files["form.yml"])["attributes"]
    labels = [table["label"] for table in attributes.values()]
    assert len(set(labels)) == len(labels)
    assert {"wait_seconds", "wait__seconds", "nodes", "Nodes"} <= set(labels)


MANIFEST_PARAMETERS = """
[parameters.{}]
type = "int"
default = 1
minimum = 1
maximum = 2
help = "Two."
"""
