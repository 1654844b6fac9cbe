"""`fsdpkit checkpoint`, as a person runs it, on what the real trainer wrote on two ranks."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fsdpkit.cli.main import main
from fsdpkit.errors import StorageError, UsageError
from fsdpkit.runs.checkpoints import sha256_of
from fsdpkit.runs.layout import RunPaths, TaskPaths
from tests.conftest import Completed, answer_of
from tests.json_answers import checked
from tests.runs.trained import STEPS, copied, flip, measure, trained_run
from tests.training.launch import EXAMPLE

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.torch
SHARD = "__0_0.distcp"
Command = Callable[..., Completed]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TaskPaths:
    return trained_run(tmp_path_factory)


@pytest.fixture
def run(trained: TaskPaths, tmp_path: Path) -> TaskPaths:
    """A run's directory with a copy of the checkpoints, among others in `runs`."""
    paths = copied(trained, tmp_path / "runs" / "t5-20261121-101500-3f2a")
    RunPaths(paths.dir).record.write_text("{}")
    return paths


@pytest.fixture
def checkpoint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """Runs `fsdpkit checkpoint ARGS…` in this process: torch is imported once for all exports."""
    monkeypatch.chdir(tmp_path)

    def command(*words: object) -> Completed:
        argv = ["fsdpkit", "checkpoint", *map(str, words)]
        monkeypatch.setattr(sys, "argv", argv)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        status = ended.value.code
        assert isinstance(status, int)
        return Completed(argv, status, out, err)

    return command


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def size_of(run: TaskPaths, step: int = STEPS[-1]) -> str:
    """Of one checkpoint; all have the same."""
    about = run.checkpoints / f"step-{step}" / "checkpoint.json"
    listed = json.loads(about.read_text())["files"]
    return f"{sum(listed.values()) / 1e3:.1f} kB"


def test_ls_shows_each_checkpoint_and_which_one_a_resume_takes(
    run: TaskPaths, checkpoint: Command
) -> None:
    (run.checkpoints / "step-6" / SHARD).unlink()
    flip(run.checkpoints / "step-2" / SHARD)  # only reading shows that
    done = checkpoint("ls", run.dir)
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = lines(done.stdout)
    assert head == "CHECKPOINT SAVED SIZE RANKS STATE"
    assert [row.split()[0] for row in rows] == ["step-2", "step-4", "step-6"]
    assert [" ".join(row.split()[3:]) for row in rows] == [
        f"{size_of(run)} 2 complete",
        f"{size_of(run)} 2 complete, a resume takes it",
        f"{size_of(run)} 2 refused: {SHARD} is missing",
    ]

    config = (run.checkpoints / "step-2" / "config.json").stat().st_size
    (run.checkpoints / "step-4" / "checkpoint.json").unlink()
    (run.checkpoints / "step-2" / "config.json").write_text("{}")
    assert [row.split("refused: ")[1] for row in lines(checkpoint("ls", run.dir).stdout)[1:]] == [
        f"config.json has 2 bytes instead of {config}",
        "checkpoint.json is missing: not a whole checkpoint of fsdpkit",
        f"{SHARD} is missing",
    ]


def test_one_that_a_newer_version_wrote_is_told_of_and_not_passed_over(
    run: TaskPaths, checkpoint: Command, tmp_path: Path
) -> None:
    """By a resume neither: it would train over what it cannot read."""
    about = run.checkpoints / "step-6" / "checkpoint.json"
    sums, before = about.with_name("SHA256SUMS"), sha256_of(about)
    about.write_text('{"format": 2, "versions": {"fsdpkit": "9.1"}}')
    sums.write_text(sums.read_text().replace(before, sha256_of(about)))
    told = "checkpoint.json has format 2, written by fsdpkit 9.1; this one reads format 1"
    listed = checkpoint("ls", run.dir)
    assert listed.returncode == 0
    assert f"refused: {told}" in listed.stdout
    assert "a resume takes it" not in listed.stdout
    verified = checkpoint("verify", run.dir)
    assert verified.returncode == 74
    assert f"step-6: {told}" in verified.stdout
    assert f"step-4: whole, {size_of(run, 4)}" in verified.stdout
    exported = checkpoint("export", run.dir, "out")
    assert exported.returncode == 65
    assert told in exported.stderr
    assert not (tmp_path / "out").exists()


def test_ls_as_json(run: TaskPaths, checkpoint: Command) -> None:
    (run.checkpoints / "step-6" / "SHA256SUMS").unlink()
    (run.checkpoints / "step-2" / "checkpoint.json").unlink()
    first, second, third = answer_of(checkpoint("ls", run.dir, "--json"))["checkpoints"]
    path = run.checkpoints / "step-4"
    unlisted = ("checkpoint.json", "SHA256SUMS")
    size = sum(file.stat().st_size for file in path.iterdir() if file.name not in unlisted)
    about = json.loads((path / "checkpoint.json").read_text())
    assert second == {
        "name": "step-4",
        "path": str(path),
        "task": None,
        "step": 4,
        "saved_at": about["saved_at"],
        "bytes": size,
        "ranks": 2,
        "problem": None,
        "resumes": True,
        "measured": {},
        "best": False,
        "best_by": None,
    }
    assert (third["step"], third["bytes"], third["resumes"]) == (6, size, False)
    assert third["problem"].startswith("SHA256SUMS is missing")
    assert (first["step"], first["saved_at"], first["bytes"]) == (2, None, None)


def test_a_run_is_found_by_id_by_part_of_it_and_by_any_directory_of_it(
    run: TaskPaths, checkpoint: Command, tmp_path: Path
) -> None:
    for named in (run.dir, run.dir.name, "3f2a", run.checkpoints, "runs/" + run.dir.name):
        assert len(lines(checkpoint("ls", named).stdout)) == 4, named
    shutil.move(run.dir, tmp_path / "task-0")  # a task's directory has no record
    assert len(lines(checkpoint("ls", "task-0").stdout)) == 4
    assert checkpoint("verify", "task-0/checkpoints/step-4").stdout.startswith("step-4: whole")
    shutil.move(tmp_path / "task-0" / "checkpoints" / "step-4", tmp_path / "the good one")
    (_, row) = lines(checkpoint("ls", "the good one").stdout)
    assert row.startswith("the good one ")
    assert row.endswith(" complete")  # which one a resume takes, its directory decides


def test_an_array_has_checkpoints_by_task(run: TaskPaths, checkpoint: Command) -> None:
    for task in (0, 3):
        shutil.copytree(run.checkpoints, run.dir / f"task-{task}" / "checkpoints")
    shutil.rmtree(run.checkpoints)
    flip(run.dir / "task-3" / "checkpoints" / "step-6" / SHARD)
    listed = [row.split()[0] for row in lines(checkpoint("ls", run.dir).stdout)[1:]]
    assert listed == [f"task-{task}/step-{step}" for task in (0, 3) for step in STEPS]
    assert len(lines(checkpoint("ls", run.dir, "--task", 3).stdout)) == 4
    wrong = checkpoint("verify", run.dir)
    assert f"task-3/step-6: {SHARD} is not what was written" in wrong.stdout
    assert wrong.returncode == 74
    assert checkpoint("verify", run.dir, "--task", 0).returncode == 0
    absent = checkpoint("ls", run.dir, "--task", 1)
    assert absent.returncode == 66
    assert "no array task 1 that started: it has tasks 0, 3" in absent.stderr
    assert checkpoint("ls", run.dir / "task-3", "--task", 3).returncode == 2


@pytest.mark.parametrize("words", [("ls",), ("verify",), ("export", "out")])
def test_where_no_checkpoint_is_the_answer_says_what_to_do(
    words: tuple[str, ...], checkpoint: Command, tmp_path: Path
) -> None:
    verb, *rest = words
    (tmp_path / "runs" / "young").mkdir(parents=True)
    (tmp_path / "runs" / "young" / "run.json").write_text("{}")
    lightning = tmp_path / "runs" / "other" / "lightning"
    lightning.mkdir(parents=True)
    (lightning.parent / "run.json").write_text("{}")
    for name in ("epoch=0-step=9.ckpt", "epoch=0-step=9.ckpt.fsdpkit.json"):
        (lightning / name).write_text("{}")
    (tmp_path / "empty").mkdir()
    for named, told in (
        ("young", "young has no checkpoint. training.checkpoint.every_steps says when"),
        ("other", f"Its own trainer saved epoch=0-step=9.ckpt in {lightning};"),
        ("empty", "empty is neither a run nor a directory"),
        ("nosuch", "there is no run 'nosuch'"),
    ):
        done = checkpoint(verb, named, *rest)
        assert (done.returncode, done.stdout) == (66, "")
        assert told in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_draft_is_told_of_and_is_no_checkpoint(run: TaskPaths, checkpoint: Command) -> None:
    (run.checkpoints / ".step-8.0123456789ab").mkdir()
    done = checkpoint("ls", run.dir)
    assert len(lines(done.stdout)) == 4
    assert ".step-8.0123456789ab: being written, or left by a process that was" in done.stderr
    for step in STEPS:
        shutil.rmtree(run.checkpoints / f"step-{step}")
    only = checkpoint("ls", run.checkpoints)
    assert only.returncode == 66
    assert ".step-8.0123456789ab" in only.stderr
    assert "has no checkpoint" in only.stderr


def test_verify_reads_every_byte_and_agrees_with_sha256sum(
    run: TaskPaths, checkpoint: Command
) -> None:
    def agree() -> list[int]:
        answers = []
        for step in STEPS:
            done = checkpoint("verify", run.dir, "--step", step)
            by_hand = subprocess.run(
                ["sha256sum", "-c", "--strict", "--status", "SHA256SUMS"],
                cwd=run.checkpoints / f"step-{step}",
                stderr=subprocess.DEVNULL,
                check=False,
            )
            assert (done.returncode == 0) == (by_hand.returncode == 0)
            answers.append(done.returncode)
        return answers

    done = checkpoint("verify", run.dir)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"step-{step}: whole, {size_of(run)}" for step in STEPS]
    assert agree() == [0, 0, 0]
    flip(run.checkpoints / "step-4" / SHARD)
    (run.checkpoints / "step-4" / "config.json").unlink()
    (run.checkpoints / "step-6" / "SHA256SUMS").write_text("")
    assert agree() == [0, 74, 74]
    done = checkpoint("verify", run.dir)
    assert done.returncode == StorageError.exit_code
    assert done.stdout.splitlines() == [
        f"step-2: whole, {size_of(run)}",
        f"step-4: {SHARD} is not what was written (SHA-256 differs)",
        "step-4: config.json is missing",
        "step-6: SHA256SUMS is incomplete or was changed: it does not list the files here",
    ]
    assert "2 of 3 checkpoints are not whole" in done.stderr
    unknown = checkpoint("verify", run.dir, "--step", 5)
    assert unknown.returncode == 66
    assert "no checkpoint of step 5; the newest are step-2, step-4, step-6" in unknown.stderr


def test_a_checkpoint_that_is_pruned_while_it_is_read_is_no_damage(
    run: TaskPaths, checkpoint: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsdpkit.runs import checkpoints

    read = checkpoints.problems_of

    def after_pruning(path: Path, *more: Any) -> list[str]:
        shutil.rmtree(run.checkpoints / "step-2", ignore_errors=True)
        return read(path, *more)

    monkeypatch.setattr(checkpoints, "problems_of", after_pruning)
    done = checkpoint("verify", run.dir)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step-2: removed meanwhile")


def tensors_in(directory: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    files = [load_file(file) for file in directory.glob("*.safetensors")]
    return {name: tensor for file in files for name, tensor in file.items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bit for bit, types included."""
    import torch

    return one.keys() == other.keys() and all(
        a.dtype == other[n].dtype and torch.equal(a, other[n]) for n, a in one.items()
    )


def test_verify_and_export_as_json(run: TaskPaths, checkpoint: Command, tmp_path: Path) -> None:
    flip(run.checkpoints / "step-4" / SHARD)
    done = checkpoint("verify", run.dir, "--json")
    assert (done.returncode, "not whole" in done.stderr) == (74, True)
    told = checked(done.stdout)
    assert not told["ok"]
    assert [one["whole"] for one in told["checkpoints"]] == [True, False, True]
    assert SHARD in told["checkpoints"][1]["problems"][0]
    told = answer_of(checkpoint("export", run.dir, "model", "--json"))
    assert (Path(told["checkpoint"]).name, told["path"]) == ("step-6", str(tmp_path / "model"))
    assert sum(Path(name).stat().st_size for name in told["files"]) == told["bytes"]
    refused = checkpoint("export", run.dir, "other", "--step", 4, "--json")
    assert checked(refused.stdout)["kind"] == "storage"


def test_an_export_has_the_bits_of_the_run_s_own(
    trained: TaskPaths, run: TaskPaths, checkpoint: Command, tmp_path: Path
) -> None:
    import torch

    done = checkpoint("export", run.dir, "my model")
    assert (done.returncode, done.stderr) == (0, "")
    first, *ways = done.stdout.splitlines()
    assert re.fullmatch(r"my model: weights of step-6, \d+\.\d kB in 5 files", first)
    assert ways == [
        "  python examples/T5-fsdp/generate.py --weights 'my model' \"some text\"",
        "  transformers.T5ForConditionalGeneration.from_pretrained('my model')",
    ]
    theirs = {p.name: p.read_bytes() for p in trained.export.iterdir()}
    assert json.loads(theirs["tokenizer_config.json"])["tokenizer_class"] == "ByT5Tokenizer"
    assert {p.name: p.read_bytes() for p in (tmp_path / "my model").iterdir()} == theirs

    weights = tensors_in(trained.export)
    done = checkpoint("export", run.dir, "model.pt", "--format", "file")
    assert done.stdout.splitlines()[1:] == ["  torch.load('model.pt', weights_only=True)"]
    assert equal(torch.load(tmp_path / "model.pt", weights_only=True), weights)

    assert checkpoint("export", run.dir, "my model", "--step", 4).returncode == 0  # replaces it
    assert not equal(tensors_in(tmp_path / "my model"), weights)

    assert checkpoint("export", run.dir, "half", "--dtype", "bfloat16").returncode == 0
    halves = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    assert equal(tensors_in(tmp_path / "half"), halves)
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_an_export_with_its_optimizer_goes_on_in_one_process(
    run: TaskPaths, checkpoint: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is what torch's own converter makes of the checkpoint."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    from fsdpkit.config.training.optimizer import OptimizerSettings
    from fsdpkit.config.training.presets import read_config_json
    from fsdpkit.training.optimizers import make_optimizer

    done = checkpoint("export", run.dir, "all.pt", "--format", "file", "--with-optimizer")
    assert (done.returncode, done.stderr) == (0, "")
    assert "all.pt: weights and optimizer of step-6, " in done.stdout
    assert 'set_optimizer_state_dict(model, optimizer,\n      saved["optimizer"]' in done.stdout
    saved = torch.load(tmp_path / "all.pt", weights_only=True)
    assert sorted(saved) == ["model", "optimizer", "step"]
    assert saved["step"] == STEPS[-1]

    newest = run.checkpoints / f"step-{STEPS[-1]}"
    dcp_to_torch_save(newest, tmp_path / "torch.pt")
    theirs = torch.load(tmp_path / "torch.pt", weights_only=False)
    assert equal(saved["model"], theirs["model"])
    assert saved["optimizer"]["param_groups"] == theirs["optimizer"]["param_groups"]
    assert saved["optimizer"]["state"].keys() == saved["model"].keys()
    for name, own in theirs["optimizer"]["state"].items():
        assert equal(saved["optimizer"]["state"][name], own)

    monkeypatch.syspath_prepend(str(EXAMPLE))
    from model import T5, T5Config  # type: ignore[import-not-found]

    model = T5(T5Config(**read_config_json(newest / "config.json")))
    optimizer = make_optimizer(model, OptimizerSettings())
    model.load_state_dict(saved["model"])
    options = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(model, optimizer, saved["optimizer"], options=options)
    taken = get_optimizer_state_dict(model, optimizer, options=options)
    for name, own in saved["optimizer"]["state"].items():
        assert equal(taken["state"][name], own)

    refused = checkpoint("export", run.dir, "model", "--with-optimizer")
    assert refused.returncode == 2
    assert "add --format file" in refused.stderr
    assert not (tmp_path / "model").exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_an_optimizer_that_has_taken_no_step_is_not_exported(tmp_path: Path) -> None:
    import torch
    from torch.distributed.checkpoint import FileSystemWriter, state_dict_saver

    from fsdpkit.training.export import export_file

    state = {"model": {"w": torch.ones(3)}}
    state_dict_saver.save(state, storage_writer=FileSystemWriter(tmp_path / "step-1"), no_dist=True)
    with pytest.raises(UsageError, match="no step had been taken"):
        export_file(tmp_path / "step-1", tmp_path / "all.pt", with_optimizer=True)
    assert not (tmp_path / "all.pt").exists()


def test_an_export_in_several_files_has_the_same_tensors(
    trained: TaskPaths, tmp_path: Path
) -> None:
    from fsdpkit.training.export import export_hugging_face

    newest = trained.checkpoints / f"step-{STEPS[-1]}"
    export_hugging_face(newest, tmp_path / "parts", max_file_bytes=20_000)
    files = sorted(p.name for p in (tmp_path / "parts").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((tmp_path / "parts" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files)
    weights = tensors_in(trained.export)
    assert set(index["weight_map"]) == set(weights)
    assert equal(tensors_in(tmp_path / "parts"), weights)


def test_only_what_is_whole_is_exported(
    run: TaskPaths, checkpoint: Command, tmp_path: Path
) -> None:
    flip(run.checkpoints / "step-6" / SHARD)
    named = checkpoint("export", run.dir, "out", "--step", 6)
    assert (named.returncode, named.stdout) == (74, "")
    assert f"step-6 is refused: {SHARD} is not what was written" in named.stderr
    assert "the one of step 6 is not whole; nothing was exported" in named.stderr
    newest = checkpoint("export", run.dir, "out")
    assert newest.returncode == 0
    assert "step-6 is refused" in newest.stderr
    assert newest.stdout.startswith("out: weights of step-4,")
    shutil.rmtree(tmp_path / "out")
    for step in (2, 4):
        (run.checkpoints / f"step-{step}" / "SHA256SUMS").unlink()
    none = checkpoint("export", run.dir, "out")
    assert none.returncode == 74
    assert "no checkpoint is whole; nothing was exported" in none.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["huggingface", "file"])
def test_what_exists_and_is_no_earlier_export_is_left_alone(
    kind: str, run: TaskPaths, checkpoint: Command, tmp_path: Path
) -> None:
    """Thesis and downloaded model alike."""
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("a year")
    (tmp_path / "notes").write_text("a day")
    (tmp_path / "flan-t5").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / "flan-t5" / name).write_text("an hour")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for place in ("thesis", "notes", "flan-t5", "."):
        done = checkpoint("export", run.dir, place, "--format", kind)
        assert (done.returncode, done.stdout) == (74, ""), place
    assert checkpoint("export", run.dir, "/", "--format", kind).returncode in (2, 74)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_on_a_terminal_of_eighty_columns_nothing_is_wider(run: TaskPaths, tmp_path: Path) -> None:
    """With a bar while bytes are read, and a table whose long last column wraps."""
    long = copied(run, tmp_path / ("a-directory-with-a-long-name-" * 4))
    (long.checkpoints / "step-6" / SHARD).write_text("")
    (long.checkpoints / "step-4" / "checkpoint.json").unlink()
    shown, status = on_terminal("checkpoint", "ls", str(long.checkpoints))
    assert status == 0, shown
    assert "complete, a resume takes it" in shown
    assert "refused: checkpoint.json is missing" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    shown, status = on_terminal("checkpoint", "verify", str(long.checkpoints))
    assert status == 74, shown
    said = re.split(r"[\r\n]+", shown)
    assert f"step-2: whole, {size_of(run)}" in said
    assert any(line.startswith("step-2 ━") and len(line) <= 80 for line in said)
    assert f"step-6: {SHARD} is not what was written (SHA-256 differs)" in said


@pytest.mark.parametrize("words", [(), ("ls",), ("verify",), ("export",)])
def test_help_fits_a_terminal_and_opens_with_an_example(
    words: tuple[str, ...], checkpoint: Command
) -> None:
    done = checkpoint(*words, "--help")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    before_options = done.stdout.split("Options:")[0]
    assert f"    fsdpkit checkpoint {words[0] if words else 'ls'} " in before_options


def on_terminal(*words: str) -> tuple[str, int]:
    """What `fsdpkit WORDS…` shows on a terminal with 80 columns, and its exit status."""
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-m", "fsdpkit", *words],
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # EIO: the other side was closed
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode())
    return plain, command.wait(timeout=60)


def test_the_best_is_marked_in_the_list_and_exported_when_asked(
    run: TaskPaths, checkpoint: Command
) -> None:
    for step, loss in zip(STEPS, (3.5, 2.25, 8.0), strict=True):
        measure(run.checkpoints / f"step-{step}", eval_loss=loss)
    rows = lines(checkpoint("ls", run.dir).stdout)[1:]
    assert [row.partition(" 2 ")[2] for row in rows] == [
        "complete",
        "complete, best by eval_loss 2.25",
        "complete, a resume takes it",
    ]
    listed = answer_of(checkpoint("ls", run.dir, "--json"))["checkpoints"]
    assert [entry["best"] for entry in listed] == [False, True, False]
    assert [entry["measured"]["eval_loss"] for entry in listed] == [3.5, 2.25, 8.0]
    done = checkpoint("export", run.dir, "model", "--best")
    assert done.stdout.startswith("model: weights of step-4, ")


def test_a_best_one_that_nobody_kept_is_not_guessed(run: TaskPaths, checkpoint: Command) -> None:
    done = checkpoint("export", run.dir, "model", "--best")
    assert done.returncode != 0
    assert "has no best checkpoint" in done.stderr
    assert "training.checkpoint.keep_best" in done.stderr
    both = checkpoint("export", run.dir, "model", "--best", "--step", 2)
    assert both.returncode == 2
    assert "give one of them" in both.stderr


def test_a_best_one_that_is_damaged_is_said_not_replaced(
    run: TaskPaths, checkpoint: Command
) -> None:
    for step, loss in zip(STEPS, (3.5, 2.25, 8.0), strict=True):
        measure(run.checkpoints / f"step-{step}", eval_loss=loss)
    flip(run.checkpoints / "step-4" / SHARD)
    done = checkpoint("export", run.dir, "model", "--best")
    assert done.returncode == StorageError.exit_code
    assert "the one of step 4 is not whole; nothing was exported" in done.stderr
