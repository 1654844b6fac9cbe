"""`fsdpkit plan` as it is typed: real steps on a pretended GPU, of small models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner

from fsdpkit.cli.plan import command
from fsdpkit.cli.plan_question import PlanQuestion
from fsdpkit.cli.submit import command as submit
from fsdpkit.config.trust import Consent
from fsdpkit.errors import FsdpkitError, UsageError
from fsdpkit.scheduling.wanted import Wanted

pytestmark = pytest.mark.torch

TINY = (
    "--set", "training.model.preset=t5-v1.1-small", "--set", "training.model.num_layers=1",
    "--set", "training.model.num_decoder_layers=1",
)  # fmt: skip
TWO_BY_TWO = ("--nodes", "2", "--gpus", "2")
SITE = (
    'schema = "fsdpkit.site/1"\ntitle = "ours"\n'
    '[node_types.n]\ngpus = 4\ngpu = "H100"\ngpu_memory_gb = 80\nmemory_mb = 500000\n'
    '[partitions.p]\nnode_type = "n"\nmax_time = "1-00:00:00"\n'
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def said(*words: str, cli: click.Command = command) -> tuple[int, str]:
    """Exit status and standard output. Errors are raised, as `main` gets them."""
    runner = CliRunner()
    result = runner.invoke(cli, list(words), standalone_mode=False, catch_exceptions=False)
    return result.return_value or 0, result.output


def test_a_plan_says_what_takes_the_memory_how_fast_it_is_and_how_it_scales():
    status, text = said("--gpu", "h100-80", *TWO_BY_TWO, *TINY)
    assert status == 0
    nouns = ("fits", "optimizer state", "tokens/s", "bound by", "efficiency", "finishes in --time")
    for noun in (*nouns, "GPU-hours", "a checkpoint is"):
        assert noun in text
    assert "not measured" in text


def test_the_picture_names_the_room_that_torch_has_wherever_it_lies(tmp_path):
    for gpu in ("h100-80", "16"):
        said("--gpu", gpu, *TWO_BY_TWO, *TINY, "--picture", "memory.svg")
        drawn = ElementTree.parse(tmp_path / "memory.svg").getroot()
        texts = [one.text or "" for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
        assert any("room for torch: " in text for text in texts), texts
    assert "viewBox" not in drawn.attrib  # which would press letters together in a narrow window


def test_a_job_that_does_not_fit_is_answered_with_what_would_and_then_refused_by_submit(tmp_path):
    Path("ours.toml").write_text(SITE.replace("gpu_memory_gb = 80", "gpu_memory_gb = 16"))
    words = ("--cluster", "./ours.toml", *TINY, "--set", "training.batch_size=1024")
    words += ("--nodes", "1", "--gpus", "4")
    status, text = said("--json", *words)
    answer = json.loads(text)
    assert status == 1
    first, better = answer["plans"]
    assert (first["fit"], better["fit"]) == ("does not fit", "fits")
    assert better["sets"]
    assert better["memory"]["total_bytes"] < first["memory"]["limit_bytes"]
    with pytest.raises(FsdpkitError, match="does not fit") as caught:
        said("--dry-run", *words, cli=submit)
    assert better["sets"][0] in str(caught.value)
    fitting = [word for each in better["sets"] for word in ("--set", each)]
    assert said("--dry-run", *words, *fitting, cli=submit)[0] == 0


def test_the_most_that_fits_fits_and_a_little_more_does_not():
    words = ("--gpu", "16", "--nodes", "1", "--gpus", "2", *TINY)
    start = ("--set", "training.batch_size=600")
    _, text = said(*words, *start, "--most", "training.batch_size", "--json")
    (found,) = json.loads(text)["plans"]
    assert found["fit"] == "fits"
    most = int(found["sets"][0].partition("=")[2])
    more = f"training.batch_size={most + max(1, most // 16)}"
    (beyond,) = json.loads(said(*words, "--try", more, "--json")[1])["plans"]
    assert beyond["fit"] != "fits"


def test_tuning_answers_with_settings_that_fit_and_that_submit_takes():
    words = ("--gpu", "a100-40", "--nodes", "1-3", "--gpus", "2", *TINY)
    status, text = said(*words, "--tune", "--json", "--set", "training.batch_size=12")
    found = json.loads(text)["tuned"]
    assert status == 0
    assert found["fits"]
    assert 0 < found["memory_bytes"] <= found["room_bytes"]
    assert {one["key"] for one in found["choices"]} >= {"training.sharding.strategy", "nodes"}
    assert found["nodes"] in (1, 2, 3)
    samples = 12 * 2 * 2  # of the job as it is, on its two nodes
    batch = dict(each.split("=", 1) for each in found["sets"]).get("training.batch_size", "12")
    assert int(batch) * found["nodes"] * 2 == samples


def test_an_error_inside_backward_is_said_and_does_not_end_the_command(tmp_path):
    Path("broken.py").write_text(
        "import torch\n"
        "class Broken(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x): return x * 2\n"
        "    @staticmethod\n"
        "    def backward(ctx, grad): raise ValueError('custom kernel without a fake version')\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.layer = torch.nn.Linear(8, 8)\n"
        "    def forward(self, x): return Broken.apply(self.layer(x)).sum()\n"
        "def planned():\n"
        "    with torch.device('meta'): model = Model()\n"
        "    return {'model': model, 'batch': torch.ones(4, 8), 'blocks': [torch.nn.Linear]}\n"
    )
    status, text = said(
        "--gpu", "80", "--nodes", "1", "--gpus", "2", "--model", "broken.py:planned"
    )
    assert status == 1
    assert "not known: at least" in text
    assert "custom kernel without a fake version at" in text
    assert "broken.py:6" in text


@pytest.mark.parametrize(
    "words",
    [
        ("--tune", "--most", "training.batch_size"),
        ("--nodes", "1-4"),
        ("--nodes", "0"),
        ("--nodes", "4-1,"),
        ("--tune", "--model", "x.py:f"),
        ("--tune", "--picture", "x.svg"),
        ("--gpu", "h1000"),
        ("--most", "training.model.preset"),
    ],
    ids=" ".join,
)
def test_questions_that_make_no_sense_are_refused(words):
    gpu = () if "--gpu" in words else ("--gpu", "80")
    with pytest.raises((UsageError, click.UsageError)):
        said(*gpu, *words, "--gpus", "2")


def test_a_cluster_that_asks_jobs_for_an_account_asks_none_of_a_plan():
    asked = PlanQuestion(None, "osc-ascend", None, None, Wanted(), (), False, Consent())
    assert asked.step().card.name == "A100-80"
    with pytest.raises(UsageError, match="'nobody' is not an account of OSC Ascend"):
        replace(asked, wanted=Wanted(account="nobody")).step()


def test_compiled_blocks_are_followed_if_asked_and_such_a_plan_is_not_kept(tmp_path):
    words = ("--gpu", "h100-80", *TWO_BY_TWO, *TINY, "--json")
    followed = json.loads(said(*words, "--compiled")[1])
    assert not [*(tmp_path / "cache").rglob("*.json")]
    usual = json.loads(said(*words)[1])
    assert [*(tmp_path / "cache").rglob("*.json")]
    noted = [
        any("compiled" in note for note in one["plans"][0]["notes"]) for one in (followed, usual)
    ]
    assert noted == [False, True]
    assert followed["speed"] is None
    first, second = (one["plans"][0]["memory"]["kept_for_backward"] for one in (followed, usual))
    assert first["encoder.block.0"] < second["encoder.block.0"]
    with pytest.raises(UsageError, match="--tune"):
        said(*words, "--compiled", "--tune")


def test_time_limit_rates_and_file_system_decide_what_lies_ahead(tmp_path):
    Path("ours.toml").write_text(
        f"{SITE}"
        "[storage]\nwrite_gb_s = 0.5\nread_gb_s = 1.0\n"
        '[billing]\nweights = "GRES/gpu=10"\nunit = "SU"\nsource = "a page"\n'
    )
    words = ("--cluster", "./ours.toml", *TWO_BY_TWO, *TINY, "--set", "training.steps=10000000")
    status, text = said(*words, "--time", "02:00:00", "--json")
    ahead = json.loads(text)["outlook"]
    assert status == 0
    ends, cost = ahead["finish"], ahead["cost"]
    assert (ends["verdict"], ends["limit_s"], ends["enough"]) == ("does not finish", 7200, None)
    assert ends["jobs"][0] > 1
    assert ends["checkpoint_s"] == pytest.approx(ends["checkpoint_bytes"] / 0.5e9)
    assert cost["units"]["middle"] == pytest.approx(10 * cost["gpu_hours"]["middle"])
    assert (cost["most_gpu_hours"], cost["most_units"]) == (8, 80)
    assert (ahead["balance"], ahead["starts"]) == (None, [])
    assert ahead["host_copy_bytes"] == pytest.approx(ends["checkpoint_bytes"] / 2, rel=0.01)
    with pytest.raises(FsdpkitError, match="time limit"):
        said(*words, "--time", "0")


def test_a_script_of_ones_own_says_how_many_steps_it_makes():
    Path("own.py").write_text(
        "import torch\nfrom torch.nn import Linear, Sequential\n"
        "def planned():\n"
        "    with torch.device('meta'): model = Sequential(Linear(8, 8))\n"
        "    return {'model': model, 'batch': torch.ones(4, 8), 'blocks': [Linear],\n"
        "            'loss': lambda out, batch: out.sum()}\n"
    )
    words = ("--gpu", "h100-80", *TWO_BY_TWO, "--model", "own.py:planned")
    _, unknown = said(*words, "--soonest", "--cluster", "local")
    assert "--set training.steps=N" in unknown
    assert "when it would start is not known" in unknown
    _, text = said(*words, "--json", "--set", "training.steps=9")
    assert json.loads(text)["outlook"]["finish"]["steps"] == 9
