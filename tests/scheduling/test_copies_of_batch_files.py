"""What a batch script copies to its nodes' own disk: in `[stage]`, in a step of every node, or said
to have no home. The scripts are small ones of our own, each after a way that is common in public.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdpkit.cli.main import fsdpkit as commands
from fsdpkit.config.stage import item_name
from fsdpkit.scheduling.batch_file.lines import BatchFile
from fsdpkit.scheduling.batch_file.reading import read
from fsdpkit.scheduling.batch_file.shape import Given

HEAD = "#!/bin/bash\n#SBATCH -N 2 --gpus-per-node=4 --time=1:00:00\n"
LAUNCH = "srun torchrun --nproc_per_node 4 train.py"
SLURM = """\
srun() { while [[ $1 == -* ]]; do shift; done; "$@"; }
sbcast() { cp "${@: -2}"; }
torchrun() { :; }
"""


def moved(body: str, lab: Path = Path("/lab"), local: str | None = "$TMPDIR") -> BatchFile:
    environ = {"LAB": str(lab), "USER": "me", "SCRATCH": "/scratch/me"}
    return read(HEAD + body, environ, str(lab / "work"), Given(local=local))


def notes(found: BatchFile, fate: str) -> dict[int, str]:
    return {each.line - 2: each.note for each in found.findings if each.fate == fate}


COPIES = {
    "a directory": f"cp -r $LAB/corpus $TMPDIR\n{LAUNCH} --data $TMPDIR/corpus",
    "under another name": f'rsync -a $LAB/corpus/ "$TMPDIR/d/"\n{LAUNCH} --data="${{TMPDIR}}/d"',
    "below a directory": f"mkdir -p $TMPDIR/d\ncp -r $LAB/corpus $TMPDIR/d/\n{LAUNCH} $TMPDIR/d",
    "files by a pattern": f"cp $LAB/corpus/*.bin $TMPDIR\n{LAUNCH} --data $TMPDIR",
    "several sources": f"mkdir $TMPDIR/d\ncp $LAB/corpus/a.bin $LAB/x.json $TMPDIR/d\n"
    f"{LAUNCH} $TMPDIR/d $TMPDIR/d/x.json",
    "one among another's": f"cp -r $LAB/corpus $TMPDIR/d\ncp $LAB/x.json $TMPDIR/d/y.json\n"
    f"tar xf $LAB/data.tar -C $TMPDIR\n{LAUNCH} $TMPDIR/d $TMPDIR/data",
    "two of a name": f"cp -r $LAB/corpus $TMPDIR\ncp -r $LAB/other/corpus $TMPDIR/two\n"
    f"{LAUNCH} $TMPDIR/corpus $TMPDIR/two",
    "by sbcast": f"sbcast -pf $LAB/x.json $TMPDIR/y.json\n{LAUNCH} --c $TMPDIR/y.json",
    "without -r, from where it is": f"cd $LAB\ncp x.json $TMPDIR\ncd -\n{LAUNCH} $TMPDIR/x.json",
    "from the disk itself": f"cd $TMPDIR\ncp -r $LAB/corpus .\ncd -\n{LAUNCH} $TMPDIR/corpus",
    "an archive": f"tar xf $LAB/data.tar -C $TMPDIR\n{LAUNCH} --data $TMPDIR/data",
    "an archive on the disk": f"mkdir $TMPDIR/d\ncp $LAB/data.tar $TMPDIR/\n"
    f"tar -xf $TMPDIR/data.tar -C $TMPDIR/d\n{LAUNCH} --data $TMPDIR/d,$TMPDIR/d/data/t.bin",
    "an archive, into where one is": f"cd $TMPDIR && tar -xf $LAB/data.tar\ncd $LAB/work\n"
    f"{LAUNCH} $TMPDIR/data",
    "beside what was unpacked": f"tar xf $LAB/data.tar -C $TMPDIR\ncp -r $LAB/corpus $TMPDIR/data\n"
    f"{LAUNCH} $TMPDIR/data",
    "into what may be there": f"[ -d $TMPDIR/d ] || mkdir $TMPDIR/d\nmkdir -p $TMPDIR/d\n"
    f"cp $LAB/x.json $TMPDIR/d\nrsync -a $LAB/v1.0 $TMPDIR/d\n{LAUNCH} $TMPDIR/d",
    "a zip": f"unzip -q $LAB/data.zip -d $TMPDIR/d\n{LAUNCH} $TMPDIR/d",
    "by a task of each node": f"srun --ntasks-per-node=1 bash -c 'mkdir -p $TMPDIR/d && tar xf "
    f"'$LAB/data.tar' -C $TMPDIR/d'\n{LAUNCH} $TMPDIR/d",
}


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    for path in (
        "corpus/a.bin",
        "corpus/sub/b.bin",
        "x.json",
        "v1.0/d.bin",
        "other/corpus/c.bin",
        "data/t.bin",
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    for name in ("work", "disk", "stage"):
        (tmp_path / name).mkdir()
    with tarfile.open(tmp_path / "data.tar", "w") as archive:
        archive.add(tmp_path / "data", "data")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as packed:
        packed.write(tmp_path / "data/t.bin", "t.bin")
    return tmp_path


def contents(path: Path) -> dict[str, str]:
    if path.is_file():
        return {"": path.read_text()}
    files = [Path(at, name) for at, _, names in os.walk(path, followlinks=True) for name in names]
    return {str(f.relative_to(path)): f.read_text() for f in files if f.suffix in (".bin", ".json")}


def bash(text: str, lab: Path) -> None:
    variables = {"TMPDIR": str(lab / "disk"), "LAB": str(lab), "FSDPKIT_STAGE": str(lab / "stage")}
    environ = os.environ | variables
    subprocess.run(["bash", "-euc", text], cwd=lab / "work", env=environ, check=True)


def fill_stage(found: BatchFile, lab: Path) -> None:
    """As each node has it: every item under its name, then the step."""
    for pattern in found.tables["stage"]["data"]:
        whole, place = os.path.join(lab, "work", pattern), lab / "stage" / item_name(pattern)
        for source in map(Path, glob.glob(whole)):
            target = place / source.name if "*" in pattern else place
            target.parent.mkdir(exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    bash("\n".join(found.each_node), lab)


@pytest.mark.parametrize("body", COPIES.values(), ids=COPIES)
def test_the_program_finds_on_every_node_what_the_script_copied(body: str, lab: Path) -> None:
    found, before = moved(body, lab), moved(body, lab, local=None)
    if "rsync" in body and shutil.which("rsync") is None:
        pytest.skip("there is no rsync here")
    bash(SLURM + body, lab)
    fill_stage(found, lab)
    assert not found.unknown
    pairs = zip(before.args, found.args, strict=True)
    for text, staged in [pair for pair in pairs if "$" in "".join(pair) or "{" in pair[1]]:
        paths = text.replace("${TMPDIR}", "$TMPDIR").replace("$TMPDIR", str(lab / "disk"))
        ours = staged.replace("{stage}", str(lab / "stage"))
        for theirs, own in zip(paths.split(","), ours.split(","), strict=True):
            wanted = contents(Path(theirs.rpartition("=")[2]))
            assert wanted
            assert wanted.items() <= contents(Path(own.rpartition("=")[2])).items()


def test_each_file_is_read_once_for_all_nodes_where_stage_can_say_it() -> None:
    found = moved(f"cp -r /data/c $TMPDIR\ntar xf /data/t.tgz -C $TMPDIR\n{LAUNCH} $TMPDIR/c")
    assert found.tables["stage"] == {"data": ["/data/c", "/data/t.tgz"]}
    assert found.each_node == ('tar xf "$FSDPKIT_STAGE"/t.tgz -C "$FSDPKIT_STAGE"',)


def test_a_program_that_knows_the_disk_itself_has_it_filled_on_every_node() -> None:
    found = moved(f"mkdir $SLURM_TMPDIR/d\nsbcast /data/x $SLURM_TMPDIR/d/x\n{LAUNCH}", local="")
    assert found.each_node == ('mkdir -p "$SLURM_TMPDIR"/d', 'cp /data/x "$SLURM_TMPDIR"/d/x')
    assert "stage" not in found.tables


@pytest.mark.parametrize(
    "end", ["cp -r $TMPDIR/out $SLURM_SUBMIT_DIR", "rsync -a $TMPDIR/out/* ~/r"]
)
@pytest.mark.parametrize("trapped", [False, True])
def test_results_come_back_from_every_node(end: str, trapped: bool) -> None:
    launch = f"{LAUNCH} --out $TMPDIR/out\n"
    found = moved(f"trap '{end}' EXIT\n{launch}" if trapped else launch + end)
    assert found.tables["stage"] == {"back": ["out"]}
    assert found.args == ("--out", "{stage}/out")


@pytest.mark.parametrize(
    ("body", "line", "why"),
    [
        (f"cp -r /d/c $JOBSCRATCH\n{LAUNCH} $JOBSCRATCH/c", 1, "no other command"),
        (f"cp -r /d/c $SCRATCH\n{LAUNCH} $SCRATCH/c", 1, "no other command"),
        (f"cp -r $(ls -d /d/*) $TMPDIR\n{LAUNCH}", 1, "known only where"),
        (f"cp -r /d/c $TMPDIR/$(date +%s)\n{LAUNCH}", 1, "no other command"),
        (f"rsync -a --exclude=x /d/c $TMPDIR\n{LAUNCH} $TMPDIR/c", 1, "whole files"),
        (f"if [ -e x ]; then\ncp -r /d/c $TMPDIR\nfi\n{LAUNCH} $TMPDIR/c", 2, "no other command"),
        (f"if [ -e x ]; then\nbash -c 'cp -r /d/c $TMPDIR'\nfi\n{LAUNCH}", 2, "no other command"),
        (f"for x in a b; do\ncp -r /d/$x $TMPDIR\ndone\n{LAUNCH} $TMPDIR/a", 2, "no other command"),
        (f"pigz -dc /d/x.tgz | tar xf - -C $TMPDIR\n{LAUNCH} $TMPDIR/x", 1, "no other command"),
        (f"tar xf - -C $TMPDIR < /d/x.tar\n{LAUNCH} $TMPDIR/x", 1, "no other command"),
        (f"{LAUNCH} $TMPDIR/x\ncp $TMPDIR/*.pt ~", 2, "no other command"),
        (f"srun bash -c 'cp /d/x $TMPDIR; make x'\n{LAUNCH} $TMPDIR/x", 1, "no other command"),
        (f"virtualenv $TMPDIR/e\nsource $TMPDIR/e/bin/activate\n{LAUNCH}", 2, "environment = true"),
        (f"tar xf /d/e.tgz -C /mnt/bb/e\nconda activate /mnt/bb/e\n{LAUNCH}", 2, "all nodes see"),
        (f"cp -r /d $TMPDIR/p\ncd $TMPDIR/p\n{LAUNCH}", 2, "submitted from"),
    ],
)
def test_what_cannot_be_said_in_keys_is_reported(body: str, line: int, why: str) -> None:
    found = moved(body)
    assert why in notes(found, "no home")[line]
    assert not found.each_node
    assert not {"stage", "environment"} & found.tables.keys()


def test_a_program_that_was_copied_is_started_where_it_is() -> None:
    found = moved(f"cp -r /lab/code $TMPDIR/p\ncd $TMPDIR/p\n{LAUNCH} --lr 1")
    assert (found.entry, found.args, found.each_node) == ("/lab/code/train.py", ("--lr", "1"), ())


def test_without_a_known_disk_arguments_stay_as_they_were() -> None:
    found = moved(f"cp -r /d/c $TMPDIR\n{LAUNCH} $TMPDIR/c", local="")
    assert "storage.local" in notes(found, "no home")[1]
    assert found.args == ("$TMPDIR/c",)


def test_the_step_is_a_file_beside_the_job(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = lab / "home/site/profiles/own.toml"
    profile.parent.mkdir(parents=True)
    profile.write_text('schema = "fsdpkit.site/1"\ntitle = "own"\n[storage]\nlocal = "$TMPDIR"\n')
    monkeypatch.chdir(lab / "work")
    monkeypatch.setenv("FSDPKIT_SITE_PATH", str(lab / "home"))
    monkeypatch.setenv("LAB", str(lab))
    Path("train.py").touch()
    Path("old.sbatch").write_text(HEAD + COPIES["an archive"])
    command = ["init", "--from", "old.sbatch", "--cluster", "own"]
    assert CliRunner().invoke(commands, command, catch_exceptions=False).exit_code == 0
    assert 'each_node = "old-each-node.sh"' in Path("old.toml").read_text()
    assert "tar xf" in Path("old-each-node.sh").read_text()
    Path("two-each-node.sh").touch()
    result = CliRunner().invoke(commands, [*command, "-o", "two.toml"])
    assert result.exit_code != 0
    assert glob.glob("two*") == ["two-each-node.sh"]
