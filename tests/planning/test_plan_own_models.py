"""`fsdpkit plan --model`: what a function gives; what cannot be followed is named, with a bound."""

from __future__ import annotations

import ast
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fsdpkit.cli.plan import command
from fsdpkit.config.script_source import trains_when_imported
from fsdpkit.errors import FsdpkitError, UsageError
from fsdpkit.planning import cuda_calls, unknown
from fsdpkit.planning.outside import CALIBRATED_TORCH
from tests.training.launch import REPOSITORY
from tests.training.small_transformers import made

pytestmark = pytest.mark.torch

MODELS = Path(__file__).parent / "ranks" / "models.py"
INNER = 4 * 48 * 4 * 64 * 2
"""Bytes of a layer's wide activation: rows × tokens × width, bfloat16."""


@cache
def plan(model: str, *words: str, gpu: str = "h100-80") -> tuple[int, dict[str, Any]]:
    """Exit status and the one plan, whose notes leave out that this is another torch than 2.13."""
    asked = ["--gpu", gpu, "--nodes", "1", "--gpus", "2", "--json", "--model", model, *words]
    result = CliRunner().invoke(command, asked, standalone_mode=False, catch_exceptions=False)
    answer = json.loads(result.stdout)["plans"][0]
    answer["notes"] = [each for each in answer["notes"] if CALIBRATED_TORCH not in each]
    return result.return_value, answer


def of(function: str, *words: str, gpu: str = "h100-80") -> tuple[int, dict[str, Any]]:
    return plan(f"{MODELS}:{function}", *words, gpu=gpu)


def line_of(text: str) -> str:
    (number,) = [k for k, line in enumerate(MODELS.read_text().splitlines(), 1) if text in line]
    return f"models.py:{number}"


def kept(answer: dict[str, Any]) -> int:
    return sum(
        size for layer, size in answer["memory"]["kept_for_backward"].items() if "." in layer
    )


def test_the_example_of_ones_own_model_is_planned_as_it_is():
    status, answer = plan(f"{REPOSITORY}/examples/own-model/train.py:planned")
    assert (status, answer["fit"], answer["lower_bound"]) == (0, "fits", False)
    assert not answer["notes"]
    assert len([unit for unit in answer["memory"]["kept_for_backward"] if "blocks." in unit]) == 4


def test_a_directory_of_transformers_is_planned_without_its_weights(tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 264,
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ("--set", "training.batch_size=4", "--set", "training.data.source_length=32")
    _, answer = plan(str(tmp_path), *words)
    assert answer["fit"] == "fits"
    assert {"model.layers.0", "model.layers.1"} <= answer["memory"]["kept_for_backward"].keys()
    (tmp_path / "config.json").unlink()
    with pytest.raises(UsageError, match=r"no config\.json"):
        plan(str(tmp_path), "--set", "training.seed=2")


def test_the_example_for_hugging_face_reads_its_own_options(tmp_path, monkeypatch):
    """As it trains: the rows and tokens of its command line, not those of [training]; and with the
    modules beside it, whatever lay beside another script."""
    another = ModuleType("data")
    another.__file__ = "/another/script/data.py"
    monkeypatch.setitem(sys.modules, "data", another)
    sharded = f"{REPOSITORY}/examples/huggingface/sharded.py:planned"
    directory = str(made("llama", tmp_path / "model"))
    told = ("--", "--model", directory, "--batch", "4", "--length", "32")
    status, answer = plan(sharded, *told)
    assert (status, answer["lower_bound"], answer["notes"]) == (0, False, [])
    rows = ("training.batch_size=4", "training.data.source_length=32")
    _, same = plan(directory, *(word for each in rows for word in ("--set", each)))
    assert answer["memory"]["allocated_bytes"] == same["memory"]["allocated_bytes"]
    with pytest.raises(UsageError, match=r"ends the program \(exit status 2\).* after --"):
        plan(sharded)


def test_a_branch_on_a_value_is_followed_both_ways_and_its_line_is_named():
    status, answer = of("branching")
    assert (status, answer["fit"], answer["lower_bound"]) == (0, "fits", False)
    (note,) = answer["notes"]
    assert line_of("if x.sum().item() > 0 else x") in note
    assert "followed both ways" in note
    # The other way no layer computes anything, and the larger of both is what is planned for.
    assert kept(answer) > 3 * 2 * INNER
    assert answer["memory"]["least_total_bytes"] <= answer["memory"]["total_bytes"]


def test_a_product_of_two_types_which_torch_refuses_does_not_fit_unseen():
    status, answer = of("spectral")
    assert (status, answer["fit"]) == (1, "not known")
    assert any("bfloat16 and float32" in note for note in answer["notes"])
    assert of("spectral", "--set", "training.precision.param=float32")[1]["fit"] == "fits"


@pytest.mark.parametrize(
    ("function", "line"),
    [("routed", "(flat.sum(-1) > 0).nonzero()"), ("masked", "out[mask] = out[mask] +")],
)
def test_a_size_that_values_decide_lies_between_none_and_all(function, line):
    status, answer = of(function)
    assert (status, answer["fit"]) == (0, "fits")
    (note,) = answer["notes"]
    assert line_of(line) in note
    assert "from 0 to 192 elements" in note
    # With all tokens chosen, at least what the same layer takes that computes for all of them.
    assert kept(answer) >= kept(of("reader")[1])
    assert answer["memory"]["least_total_bytes"] < answer["memory"]["total_bytes"] + 1


@pytest.fixture
def two_threads():
    """Of torch's in this process, which may have had one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(1 << 20).add_(1)  # starts OpenMP's threads, which a plan's child must not wait for
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_where_only_values_decide_whether_it_fits_that_is_the_answer(tmp_path):
    (tmp_path / "wide.py").write_text(
        f"import sys\nsys.path.insert(0, {str(MODELS.parent)!r})\n"
        "import torch\nfrom models import routed as small\n"
        "def routed():\n"
        "    return {**small(), 'batch': torch.zeros(4, 48 * 800, dtype=torch.int64)}\n"
    )
    status, answer = plan(f"{tmp_path / 'wide.py'}:routed", gpu="3")
    memory = answer["memory"]
    assert (status, answer["fit"], answer["lower_bound"]) == (1, "not known", False)
    assert memory["least_total_bytes"] < memory["limit_bytes"] < memory["total_bytes"]


@pytest.mark.parametrize(
    ("function", "line", "reason"),
    [
        ("through_numpy", "torch.from_numpy(x.detach()", "numpy"),
        ("address", "x.data_ptr() % 2", "address of a tensor"),
        ("endless", "while x.abs().max() > 1", "a loop that only a value would end"),
        ("own_kernel", "return twice(super()", "fsdpkit_tests::twice"),
    ],
)
def test_what_cannot_be_followed_is_named_and_the_plan_a_lower_bound(
    function, line, reason, monkeypatch
):
    monkeypatch.setattr(unknown, "MOST_READS", 64)  # a loop that no value ends is as endless after
    status, answer = of(function)
    assert (status, answer["fit"], answer["lower_bound"]) == (1, "not known", True)
    (note,) = [note for note in answer["notes"] if "lower bound" in note]
    assert line_of(line) in note
    assert reason in note
    # Weights, gradients and the optimizer's state are there whatever forward does.
    memory = answer["memory"]
    weights = of("reader")[1]["memory"]["weights_bytes"]
    assert memory["weights_bytes"] == weights
    assert memory["optimizer_bytes"] == pytest.approx(2 * weights, rel=0.01)
    assert memory["allocated_bytes"] >= 4 * weights


def test_a_kernel_without_a_fake_version_is_followed_to_the_end():
    """Its result taken to be like its first tensor, the rest of the step is there."""
    assert kept(of("own_kernel")[1]) >= kept(of("reader")[1])


def test_a_lower_bound_that_does_not_fit_does_not_fit():
    # As small as it gets, so that nothing else is tried that might fit.
    smallest = ("micro_batch=1", "sharding.activation_checkpointing=full")
    words = (word for each in smallest for word in ("--set", f"training.{each}"))
    status, answer = of("own_kernel", *words, gpu="1")
    assert (status, answer["fit"]) == (1, "does not fit")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (f"{MODELS}:none", "has no function none"),
        (f"{MODELS}:misspelt", "los: not among model"),
        (f"{MODELS}:no_loss", 'return a "loss"'),
        (f"{MODELS}:wordy", r"could not be followed: ValueError: invalid literal"),
        (f"{MODELS}:trains", "the file or the function would train here"),
        (f"{MODELS}:ends", "exit status 7"),
        (f"{MODELS}:without_samples", "no tensor with a dimension of samples"),
        (f"{MODELS}:sparse", "sparse gradients"),
        (f"{MODELS}:broken", r"fails: ValueError: no such file at .*models\.py:\d+"),
        ("nowhere.py:f", "is neither"),
        ("nowhere", "expected FILE.py:FUNCTION"),
    ],
)
def test_what_gives_no_model_is_refused(model, reason):
    with pytest.raises(FsdpkitError, match=reason):
        plan(model)


@pytest.mark.parametrize("function", ["on_cuda", "autocast", "flex", "lstm", "gru", "noisy"])
def test_what_only_a_gpu_computes_is_followed_to_the_end(function):
    status, answer = of(function)
    assert (status, answer["fit"], answer["lower_bound"]) == (0, "fits", False)


def test_autocast_casts_the_operations_that_torch_does_for_cuda():
    lists = (*cuda_calls.LOWER, *cuda_calls.PROMOTED, *cuda_calls.SUMMED, *cuda_calls.WHOLE)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    of_torch = {n for n in torch._C._dispatch_get_all_op_names() if has(n, "AutocastCUDA")}
    others = {"_convolution.deprecated", "binary_cross_entropy"}
    named = {name.removeprefix("aten::") for name in of_torch}
    assert {n for n in named - others if not n.startswith("cudnn_")} == set(lists)


def test_what_a_program_compiles_itself_is_followed_uncompiled():
    """What is compiled keeps its weights' names and is followed as it is written, which a note
    says."""
    _, answer = of("compiled")
    assert kept(answer) > kept(of("reader")[1])
    (note,) = answer["notes"]
    assert "gated" in note
    assert "followed uncompiled" in note


def test_low_masters_of_a_model_on_meta():
    words = ("precision.master=bfloat16", "optimizer.rounding=stochastic")
    low = of("reader", *(word for each in words for word in ("--set", f"training.{each}")))[1]
    assert low["memory"]["weights_bytes"] * 2 == of("reader")[1]["memory"]["weights_bytes"]


def test_rows_and_length_of_ones_own_model_can_be_asked_for():
    def memory(*sets: str) -> int:
        words = (word for each in sets for word in ("--set", f"training.{each}"))
        return of("sized", *words)[1]["memory"]["allocated_bytes"]

    assert memory() == memory("batch_size=4") == memory("data.source_length=48")
    assert memory() < memory("batch_size=8") < memory("batch_size=8", "data.source_length=96")
    with pytest.raises(UsageError, match="a parameter `length`"):
        of("reader", "--set", "training.data.source_length=96")


@pytest.mark.parametrize(
    ("lines", "trains"),
    [
        (["for _ in range(3):", "    loss.backward()"], 2),
        (["def step():", "    loss.backward()", "def main(): step()", "spawn(main)"], 2),
        (["if ddp: init_process_group('nccl')"], 1),
        (["def main(): loss.backward()", "if __name__ == '__main__': main()"], None),
        (["torch.manual_seed(1)", "class A:", "    def f(self): loss.backward()"], None),
    ],
)
def test_a_file_that_would_train_when_imported_is_known_by_its_source(lines, trains):
    assert trains_when_imported(ast.parse("\n".join(lines))) == trains


def test_a_file_that_would_train_is_refused_before_any_of_it_runs(tmp_path):
    ran = tmp_path / "ran"
    script = f"open({str(ran)!r}, 'w')\nloss.backward()\n"
    (tmp_path / "loop.py").write_text(script)
    with pytest.raises(UsageError, match=r"line 2 of loop\.py"):
        plan(f"{tmp_path / 'loop.py'}:planned")
    assert not ran.exists()


def test_words_for_a_script_are_for_one_that_is_named():
    with pytest.raises(UsageError, match="trainer settings use --set"):
        CliRunner().invoke(
            command,
            ["--gpu", "48", "--", "--set", "training.batch_size=4096"],
            standalone_mode=False,
            catch_exceptions=False,
        )
