"""A batch script read as text: what becomes of its options, its lines and its one launch.

The scripts are small ones of our own, each after a way of doing things that is common in public.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsdpkit.errors import ConfigError
from fsdpkit.scheduling.batch_file.lines import BatchFile
from fsdpkit.scheduling.batch_file.reading import read
from fsdpkit.scheduling.batch_file.recognition import shell_script_kind
from fsdpkit.scheduling.batch_file.shape import Given
from fsdpkit.scheduling.batch_file.walking import Walk
from tests.programs import ran

HERE = "/lab/me"
ENVIRON = {"HOME": "/home/me", "USER": "me", "SCRATCH": "/scratch/me", "PATH": "/bin"}
TWO_BY_FOUR = "#!/bin/bash\n#SBATCH -N 2 --gpus-per-node=4\n"


def moved(text: str, given: Given | None = None) -> BatchFile:
    return read(text, ENVIRON, HERE, given)


def fates(found: BatchFile, fate: str) -> dict[str, str]:
    """The notes of what has this fate, by its text."""
    return {each.text: each.note for each in found.findings if each.fate == fate}


# ---- The launch -------------------------------------------------------------------------------

LAUNCHES = {
    "torchrun below srun": "srun torchrun --nproc_per_node 4 --nnodes 2 train.py --lr 1",
    "without srun": "torchrun --nproc-per-node=4 train.py --lr 1",
    "over several lines": "srun torchrun \\\n  --nproc_per_node 4 \\\n  train.py --lr 1",
    "shortened options": "torchrun --nproc 4 --master-p 1 train.py --lr 1",
    "a module of torch": "python -u -m torch.distributed.run --nproc_per_node=4 train.py --lr 1",
    "the old launcher": "python3 -m torch.distributed.launch --use_env --nproc_per_node 4 train.py "
    "--lr 1",
    "as many as Slurm gives": "srun torchrun --nproc_per_node $SLURM_GPUS_ON_NODE train.py --lr 1",
    "found on PATH": "srun $(which torchrun) --nproc_per_node 4 train.py --lr 1",
    "counted on the node": "torchrun --nproc_per_node $(nvidia-smi -L | wc -l) train.py --lr 1",
    "a command in a variable": 'L="torchrun --nproc_per_node 4 --rdzv_endpoint $(hostname):1"\n'
    'A="--lr 1"\nsrun bash -c "$L train.py $A"',
    "expanded on the node": 'srun bash -lc "torchrun --nproc_per_node 4 --role \\$(hostname): '
    'train.py --lr 1"',
    "options in an array": "O=(\n  --nproc_per_node 4  # a rank for each GPU\n  --nnodes 2\n)\n"
    'srun torchrun "${O[@]}" train.py --lr 1',
    "a variable with a default": "N=${GPUS:-4}\n: ${LR:=1}\ntorchrun --nproc_per_node $N train.py "
    "--lr $LR",
    "computed": "T=$((SLURM_NNODES * 4))\naccelerate launch --num_processes $T train.py --lr 1",
    "accelerate": "srun accelerate launch --multi_gpu --num_processes 8 --num_machines 2 "
    "--machine_rank $SLURM_NODEID --main_process_ip $(hostname) train.py --lr 1",
    "accelerate's module": "python -m accelerate.commands.launch --num_processes=8 train.py --lr 1",
    "deepspeed": "deepspeed --num_gpus 4 --num_nodes 2 --hostfile hosts train.py --lr 1",
    "in a function": "start() {\n  srun torchrun --nproc_per_node 4 train.py --lr 1\n}\nstart now",
    "behind a wrapper": "srun numactl -N 0 nsys profile -o x torchrun --nproc_per_node 4 train.py "
    "--lr 1",
    "behind a clock": "/usr/bin/time -v torchrun --nproc_per_node 4 train.py --lr 1",
    "behind a program that picks a GPU": "srun ./select_gpu torchrun --nproc_per_node 4 train.py "
    "--lr 1",
    "asked for its status": "if ! srun torchrun --nproc_per_node 4 train.py --lr 1; then\n"
    "  scontrol requeue $SLURM_JOB_ID\nfi",
    "with unknown options": "srun $EXTRA -l torchrun $MORE --nproc_per_node 4 train.py --lr 1",
    "in a branch that is taken": 'if [ -z "$SLURM_JOB_ID" ]; then\n  python other.py\nelse\n'
    "  torchrun --nproc_per_node 4 train.py --lr 1\nfi",
    "where one of two conditions decides": "A=1\nif [[ ! $A == 1 && -f x ]]; then\n"
    "  torchrun other.py\nfi\ntorchrun --nproc_per_node 4 train.py --lr $A",
    "its output kept": "srun torchrun --nproc_per_node 4 train.py --lr 1 2>&1 | tee -a log",
    "its failure handled": "torchrun --nproc_per_node 4 train.py --lr 1 || exit 1",
    "the script's own arguments": 'torchrun --nproc_per_node 4 train.py --lr 1 "$@"',
    "where nobody sets a variable": 'if [ -n "$DEBUG" ]; then\n  X="python -m pdb"\nfi\n'
    "srun torchrun $X --nproc_per_node 4 train.py --lr 1",
    "items by key": "declare -A by=([a]=1 [b]=2)\ntorchrun --nproc_per_node 4 train.py --lr 1",
    "arguments with defaults": "torchrun --nproc-per-node ${2:-4} ${1:-train.py} --lr 1",
    "within quotes and comments": "A=(--lr # a rank's\n  \"1\")  # don't\n"
    "torchrun --nproc_per_node 4 'train'.p\\y \"${A[@]}\"",
    "beside a here-document": "cat > c.yaml <<-EOF\n\ta: 1\n\ttorchrun x.py\n\tEOF\n"
    "torchrun --nproc_per_node 4 train.py --lr 1",
    "beside a case, a subshell and sums": 'case "$1" in\n  a) X=1 ;;\n  b|c) X=2 ;;\nesac\n'
    "((N = 4))\n(cd /tmp; ls) > log\ntorchrun --nproc_per_node 4 train.py --lr 1",
    "a function by its word": "function go {\n  A=1\n}\ngo\n"
    "torchrun --nproc_per_node 4 train.py --lr $A",
    "where something is set": 'A=1\ntorchrun --nproc_per_node 4 train.py ${A:+--lr} "${A[*]}"',
    "a variable of another command": "L=2 echo\ntorchrun --nproc_per_node 4 train.py --lr ${L:-1}",
    "beside a preparation": "python prepare.py\ntorchrun --nproc_per_node 4 train.py --lr 1",
}


@pytest.mark.parametrize("body", LAUNCHES.values(), ids=LAUNCHES)
def test_a_launch_is_taken_apart_to_its_program(body: str) -> None:
    found = moved(f"{TWO_BY_FOUR}{body}\n")
    assert (found.entry, found.args) == ("train.py", ("--lr", "1"))
    assert (found.shape.nodes, found.shape.gpus, found.shape.ranks) == (2, 4, 4)


def test_an_installed_command_is_what_srun_starts_if_nothing_else_is() -> None:
    found = moved(TWO_BY_FOUR + "echo on\nsrun -l fairseq-train bin --lr 1\n")
    assert (found.entry, found.args) == ("fairseq-train", ("bin", "--lr", "1"))
    assert moved(TWO_BY_FOUR + "srun hostname\nsrun python t.py\n").entry == "t.py"


def test_what_watches_gpus_is_not_needed_and_said_where_that_is_seen() -> None:
    lines = ["nvidia-smi --query-gpu=power.draw --format=csv -l > gpu.csv &", "PID=$!"]
    lines += ["srun torchrun --nproc_per_node 4 train.py", "kill $PID", "jobstats $SLURM_JOB_ID"]
    found = moved(TWO_BY_FOUR + "\n".join([*lines, "seff $SLURM_JOB_ID", ""]))
    told = [why for why in fates(found, "not needed").values() if "fsdpkit usage" in why]
    assert (found.entry, len(told)) == ("train.py", 3)


WORDS = r"""
"$x" $x ${y:-d e} "${A[@]}" t"${A[@]}"u "${A[*]}" ${A[@]} ~/z '$x' "\$x" a\ b \ #c
$((2*3+n)) $(( n / 2 ))
${e:-q}${e-q} ${x:+p} "${x}'s" $"s" '' "" $e "$e" a#b {x= x{} $ !  # "c
"""


def test_words_are_expanded_as_bash_expands_them() -> None:
    text = f'x="v w"; A=("p q" r ""); e=; n=7\nprog {" ".join(WORDS.split(chr(10)))}\n'
    shown = "prog() { printf '%s\\0' \"$@\"; }; HOME=/h\n" + text
    answer = ran(["bash", "-c", shown], status=0)
    walk = Walk({}, {"HOME": "/h"}, HERE)
    walk.walk(walk.parsed(text))
    assert [*walk.steps[-1].words[1:]] == answer.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    ("lines", "argument"),
    [
        ("A=1\nif [ -f x ]; then\n  A=2\nfi", "$A"),
        ("A=1\nfor i in 1 2; do\n  A=$i\ndone", "$A"),
        ("A=1\nif [[ 1 == 2 && 2 == 2 || 3 == 3 ]]; then\n  A=2\nfi", "$A"),
        ("", "${TMPDIR:-/tmp}/x"),
        ("", "*.json"),
    ],
)
def test_what_the_text_does_not_decide_stays_as_written(lines: str, argument: str) -> None:
    found = moved(f"{TWO_BY_FOUR}{lines}\ntorchrun --nproc_per_node 4 t.py {argument}\n")
    assert found.args == (argument,)
    assert [each.text for each in found.unknown] == [argument]


def test_a_shell_s_text_is_read_where_it_is_given() -> None:
    launch = "srun bash -c 'cd sub; torchrun --nproc_per_node 4 t.py $A; echo'"
    found = moved(f"{TWO_BY_FOUR}A=1\ncd repo\n{launch}\ncd ..\nA=2\n")
    assert (found.args, found.directory) == (("1",), "/lab/me/repo/sub")


def test_of_a_container_the_image_is_taken_and_its_options_are_quoted() -> None:
    found = moved(
        f"{TWO_BY_FOUR}apptainer exec --nv -B /a:/b x.sif torchrun --nproc_per_node 4 t.py"
    )
    assert found.tables["environment"] == {"container": "x.sif"}
    assert "-B /a:/b" in fates(found, "no home")


def test_a_python_program_with_options_for_slurm_is_no_shell_script(tmp_path: Path) -> None:
    for name, first, kind in (
        ("a.py", "#!/usr/bin/env python3", None),
        ("b", "#!/bin/bash", "an sbatch script"),
    ):
        (tmp_path / name).write_text(f"{first}\n#SBATCH -N 1\n")
        assert shell_script_kind(tmp_path / name) == kind


# ---- Slurm's options --------------------------------------------------------------------------


def test_options_in_all_of_sbatch_s_spellings() -> None:
    found = moved(
        "#!/bin/bash -l\n\n"
        "#SBATCH -J run1 -A acct -p=gpu  # the short ones\n"
        "#SBATCH --nodes 2 --ntasks-per-node=1 --gres=gpu:a100:4\n"
        '#SBATCH --constraint="a100&ib" --qos high\n'
        "#SBATCH -t1-12 --mem=480G --exclusive -job_run1\n"
        "#SBATCH --cpus-per-t 32 --lic=a:1 --node=3\n"
        "##SBATCH --nodes=9\n# SBATCH --nodes=9\n"
        "#SBATCH --reservation=$MINE --export=ALL,A=1\n"
        "#SBATCH --mail-user=me@here.org --mail-type=END\n#SBATCH --mail-type=FAIL,BEGIN\n"
        "torchrun --nproc_per_node=4 train.py\n"
        "#SBATCH --nodes=7\n"
    )
    assert found.name == "run1"
    of_slurm = {"account": "acct", "partition": "gpu", "qos": "high", "constraint": "a100&ib"}
    shape = {"nodes": 2, "gpus": 4, "time": "1-12", "cpus_per_gpu": 8, "memory": "480G"}
    assert found.tables["resources"] == {**shape, **of_slurm, "exclusive": True}
    assert found.tables["notify"] == {"mail": "me@here.org", "on": ["end", "failure"]}
    assert found.tables["slurm"] == {"options": {"licenses": "a:1"}}
    assert "first command" in fates(found, "not needed")["#SBATCH --nodes=7"]
    assert fates(found, "no home").keys() == {
        *("--gres=gpu:a100:4", "--mail-type=FAIL,BEGIN", "--reservation=$MINE"),
        *("--export=ALL,A=1", "-job_run1", "--node=3"),
    }


@pytest.mark.parametrize(
    ("options", "launch", "shape"),
    [
        ("-N 2 --gres=gpu:4", "torchrun --nproc-per-node 4 t.py", (2, 4, 4)),
        ("-N 2 --gres=gpu,tmp:9", "torchrun t.py", (2, 1, 1)),
        ("-N 2 --gpus=8", "torchrun --nproc-per-node 4 t.py", (2, 4, 4)),
        ("-N 2 -n 2 --gpus-per-task=4", "torchrun --nproc-per-node 4 t.py", (2, 4, 4)),
        ("-n 8 --ntasks-per-node=4 --gpus-per-task=1", "srun python t.py", (2, 4, 4)),
        ("-N 2 -n 8 --gpus-per-node=a100:4", "srun python t.py", (2, 4, 4)),
        ("-N 2 --gpus-per-node=4", "srun --ntasks-per-node=4 python t.py", (2, 4, 4)),
        ("-N 2 --exclusive", "torchrun --nproc-per-node 4 t.py", (2, 4, 4)),
        ("--gpus-per-node=4", "torchrun --nproc-per-node 4 t.py", (1, 4, 4)),
        ("--gpus-per-node=4", "torchrun --nnodes=5 --nproc-per-node 4 t.py", (5, 4, 4)),
        ("-N 2 --gpus-per-node=8 --gpus-per-task=1", "srun python t.py", (2, 8, 8)),
        ("-N 2 --gres=gpu:8 --gpus-per-task=8", "srun torchrun --nproc-per-node 8 t.py", (2, 8, 8)),
        ("-n 2 --gpus-per-node=4", "torchrun --nnodes 2 --nproc-per-node 4 t.py", (2, 4, 4)),
    ],
)
def test_gpus_of_a_node_are_counted_however_they_are_asked_for(
    options: str, launch: str, shape: tuple[int, int, int]
) -> None:
    found = moved(f"#!/bin/bash\n#SBATCH {options}\n{launch}\n").shape
    assert (found.nodes, found.gpus, found.ranks) == shape


# ---- The environment --------------------------------------------------------------------------

LAUNCH = "torchrun --nproc_per_node 4 train.py\n"


@pytest.mark.parametrize(
    ("lines", "environment"),
    [
        ("module purge\nmodule load a/1 b\nmodule add c", {"modules": ["a/1", "b", "c"]}),
        ("module load a\nmodule purge\nmodule load b", {"modules": ["b"]}),
        ("ml a b", {"modules": ["a", "b"]}),
        ("module load a || module load b", {"modules": ["a"]}),
        ("source env/bin/activate", {"venv": "/lab/me/env"}),
        (". ~/envs/torch/bin/activate", {"venv": "/home/me/envs/torch"}),
        ('eval "$(conda shell.bash hook)"\nconda activate torch', {"conda": "torch"}),
        ("source ~/.bashrc\nsource activate torch", {"conda": "torch"}),
        ("conda activate torch\nconda deactivate", {}),
        ("E=/opt/torch\nmamba activate ${E}", {"conda": "/opt/torch"}),
        ("source /opt/miniconda3/bin/activate", {"conda": "/opt/miniconda3"}),
        ("export P=/x:$P\nexport P=/y", {"variables": {"P": "/y"}}),
        ("PATH=/opt/b:$PATH", {"prepend": {"PATH": "/opt/b"}}),
        ("export A=1 B='x y'", {"variables": {"A": "1", "B": "x y"}}),
        ("D=/data\nexport A=$D/x C=$HOME/c", {"variables": {"A": "/data/x", "C": "/home/me/c"}}),
        ("export N=$SLURM_CPUS_PER_TASK S=$SCRATCH", {"variables": {"S": "/scratch/me"}}),
        ("export MASTER_ADDR=$(hostname) MASTER_PORT=1 WORLD_SIZE=8", {}),
    ],
)
def test_modules_environments_and_literal_variables(
    lines: str, environment: dict[str, object]
) -> None:
    found = moved(f"{TWO_BY_FOUR}{lines}\n{LAUNCH}")
    assert found.tables.get("environment", {}) == environment


def test_the_program_has_the_variables_that_bash_gives_it() -> None:
    lines = "export A=1\nA=2\nexport B\nB=3\nset -euao pipefail\nC=4\nset +a\nD=5\n"
    lines += "export E=6\nunset E\n(export F=7; A=7; cd /tmp)\nSCRATCH=/s\n"
    found = moved(f"{TWO_BY_FOUR}{lines}{LAUNCH}export A=8 G=8\nmodule load b\n")
    told = ran(["env", "-i", "SCRATCH=/scratch/me", "bash", "-c", f"{lines}env"], status=0).stdout
    of_bash = dict(line.split("=", 1) for line in told.splitlines() if not line.startswith("_="))
    of_bash = {name: value for name, value in of_bash.items() if name not in ("PWD", "SHLVL")}
    assert found.tables["environment"] == {"variables": of_bash}
    assert found.directory == HERE
    assert fates(found, "not needed")["module load b"] == "it stands behind the program"


def test_an_exported_text_that_the_command_is_made_of_is_no_variable() -> None:
    launch = "srun bash -c 'torchrun --nproc_per_node 4 t.py $A'\n"
    assert "environment" not in moved(f"{TWO_BY_FOUR}export A='--lr 1'\n{launch}").tables


def test_a_secret_is_written_nowhere() -> None:
    found = moved(f"{TWO_BY_FOUR}export WANDB_API_KEY=0123456789abcdef0123\n{LAUNCH}")
    assert "environment" not in found.tables
    assert "environment.pass" in "".join(fates(found, "no home").values())


def test_what_a_condition_decides_is_not_taken() -> None:
    found = moved(
        f"{TWO_BY_FOUR}if [ -f there ]; then\n  module load a\n  export A=1\nfi\n"
        f"[ -d /x ] && export B=1\n{LAUNCH}"
    )
    assert "environment" not in found.tables
    assert {"module load a", "export A=1", "export B=1"} <= fates(found, "no home").keys()


# ---- Every line, in its own words -------------------------------------------------------------

OWN = """\
#!/bin/bash -l
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=02:00:00
#SBATCH --output=%x-%j.out

# the usual preparations
set -euo pipefail
module purge
module use /opt/mine
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node_ip=$(srun -N1 -n1 -w ${nodes[0]} hostname --ip-address)
export NCCL_DEBUG=INFO
export WORLD_SIZE=$((SLURM_NNODES * 4))
export TMPDIR=/tmp/$SLURM_JOB_ID
export PATH=/opt/mine/bin:$PATH
mkdir -p logs
ulimit -n 65536
rsync -a /data/ "$TMPDIR" --exclude='*.tmp'
cd $SLURM_SUBMIT_DIR
UNUSED=3
echo "starts at $(date)"
srun torchrun --nproc_per_node 4 --rdzv_endpoint $head_node_ip:29500 train.py --out $TMPDIR
"""


def test_every_line_of_a_script_is_accounted_for() -> None:
    found = moved(OWN)
    lines = enumerate(OWN.splitlines(), 1)
    meant = {n for n, line in lines if line and not re.match(r"#(?!SBATCH)", line)}
    assert {each.line for each in found.findings if each.line} == meant


def test_what_has_no_home_is_quoted_and_never_guessed() -> None:
    found = moved(OWN)
    homeless = fates(found, "no home")
    for quoted in (
        "module use /opt/mine",
        "export TMPDIR=/tmp/$SLURM_JOB_ID",
        "ulimit -n 65536",
        "rsync -a /data/ \"$TMPDIR\" --exclude='*.tmp'",
    ):
        assert quoted in homeless
    assert "export PATH=/opt/mine/bin:$PATH" not in homeless
    assert found.args == ("--out", "/tmp/$SLURM_JOB_ID")
    assert [each.text for each in found.unknown] == ["/tmp/$SLURM_JOB_ID"]
    assert found.tables["environment"]["variables"] == {"NCCL_DEBUG": "INFO"}


def test_what_a_script_does_for_its_program_is_never_called_unnecessary() -> None:
    lines = ["echo {} > ds.json", "trap again USR1", "scontrol requeue 1", "cat a | sed s/a/b/ >c"]
    lines += ["export A='$x'", "export ROCR_VISIBLE_DEVICES=$SLURM_LOCALID"]
    options = ["-D /x", "--environment=e.toml", "--export=NONE"]
    launch = f"srun {' '.join(options)} torchrun --nproc_per_node 4 t.py < in.txt"
    found = moved(TWO_BY_FOUR + "\n".join(["pushd sub", *lines, launch, "popd", ""]))
    lost = {*lines[:3], *lines[4:], "sed s/a/b/ >c", *options, "< in.txt", "cd /lab/me/sub"}
    assert fates(found, "no home").keys() - {"no --time, so the partition's own limit"} == lost
    assert "echo > x.log" in fates(moved(f"{TWO_BY_FOUR}echo > x.log\n{LAUNCH}"), "not needed")


def test_no_text_of_a_script_leaves_the_comment_that_quotes_it() -> None:
    text = (
        'ulimit -n "5\n[resources]\nnodes = 9\x1b[2J"\ntorchrun --nproc_per_node 4 t.py "$(a\nb)"\n'
    )
    for each in moved(TWO_BY_FOUR + text).findings:
        assert (each.text + each.note).isprintable()


# ---- What cannot become a job -----------------------------------------------------------------

REFUSED = {
    "two launches": (
        TWO_BY_FOUR + "torchrun a.py\nmodule load x\nsrun python b.py\n",
        "line 3: torchrun a.py; line 5: srun python b.py",
    ),
    "a loop": (TWO_BY_FOUR + "for lr in 1 2; do\n torchrun t.py $lr\ndone\n", "loop (line 3"),
    "until it succeeds": (TWO_BY_FOUR + "until torchrun t.py; do\n :\ndone\n", "once: [retry]"),
    "a part of its tasks": (TWO_BY_FOUR + "srun -n 1 torchrun t.py\n", "2 nodes and starts the"),
    "a part of its nodes": (TWO_BY_FOUR + "srun -N 1 torchrun t.py\n", "2 nodes and starts the"),
    "a script that it submits": (TWO_BY_FOUR + 'sbatch --wrap "torchrun t.py"\n', "it submits"),
    "several in one srun": (TWO_BY_FOUR + "srun python a.py : -n 1 python b.py\n", "a colon"),
    "another launcher": (TWO_BY_FOUR + "mpirun -n 8 python t.py\n", "none of these starts it"),
    "a function that is called twice": (
        TWO_BY_FOUR + 'go() { torchrun t.py "$1"; }\ngo 1\ngo 2\n',
        "2 programs",
    ),
    "eval": (TWO_BY_FOUR + 'C="torchrun t.py --lr 1"\neval $C\n', "eval"),
    "eval of what is not known": (TWO_BY_FOUR + 'eval "$(cat c)"\n', "eval"),
    "a here-document": (TWO_BY_FOUR + "srun bash <<EOF\ntorchrun t.py\nEOF\n", "here-document"),
    "no launch": (TWO_BY_FOUR + "module load x\necho done\n", "nothing that it starts"),
    "another script": (TWO_BY_FOUR + "srun ./run.sh 1\n", "./run.sh"),
    "a program that is an argument": (TWO_BY_FOUR + "srun python $*\n", "argument"),
    "a program that is unknown": (TWO_BY_FOUR + "T=$(ls)\ntorchrun src/$T.py\n", "--script"),
    "PBS": ("#!/bin/bash\n#PBS -l nodes=2\ntorchrun t.py\n", "another scheduler (line 2: #PBS"),
    "LSF": ("#!/bin/bash\n#BSUB -n 2\njsrun python t.py\n", "line 2: #BSUB"),
    "Grid Engine": ("#!/bin/bash\n#$ -l gpu=1\npython t.py\n", "line 2: #$"),
    "Flux": ("#!/bin/bash\n#FLUX: -N 2\nflux run python t.py\n", "line 2: #FLUX"),
    "DOS": ("#!/bin/bash\r\n#SBATCH -N 2\r\ntorchrun t.py\r\n", "carriage return"),
    "another shell": ("#!/bin/tcsh\n#SBATCH -N 2\ntorchrun t.py\n", "tcsh"),
    "no text": ("\n", "empty"),
    "nodes in a range": ("#!/bin/bash\n#SBATCH -N 2-4\ntorchrun t.py\n", "--nodes"),
    "nodes that nobody says": ("#!/bin/bash\n#SBATCH -n 8\nsrun python t.py\n", "--nodes"),
    "two counts": ("#!/bin/bash\n#SBATCH --gres=gpu:4 --gpus-per-node=2\ntorchrun t.py", "--gpus"),
    "a rank for half a GPU": (TWO_BY_FOUR + "torchrun --nproc_per_node 3 t.py\n", "--gpus"),
    "a heterogeneous job": (TWO_BY_FOUR + "#SBATCH hetjob\ntorchrun t.py\n", "keep the options"),
    "a quote left open": (TWO_BY_FOUR + 'torchrun t.py "a\n', "line 3"),
    "an option with a line break": ('#!/bin/bash\n#SBATCH -J "a\nb"\ntorchrun t.py\n', "line 2"),
    "nesting without end": (TWO_BY_FOUR + "A=" + "${a:-" * 5000 + "}" * 5000 + "\n", "nested"),
    "blocks without end": (TWO_BY_FOUR + "if true; then\n" * 500, "nested"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_unclear_is_refused_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        moved(text)
    assert len(str(caught.value)) < 600


def test_how_accelerate_trains_stays_said() -> None:
    said = "--use_fsdp --fsdp_sharding_strategy 1 --mixed_precision bf16"
    found = moved(f"{TWO_BY_FOUR}srun accelerate launch --num_machines 2 {said} train.py")
    assert found.tables["launch"] == {"accelerate_args": said.split()}
    alone = moved(f"{TWO_BY_FOUR}accelerate launch --mixed_precision bf16 train.py")
    assert alone.tables["environment"]["variables"] == {"ACCELERATE_MIXED_PRECISION": "bf16"}


def test_a_srun_that_asks_for_the_nodes_is_read_as_the_options() -> None:
    found = moved(
        "P=$1\nsrun -p $P --gres=gpu:8 --ntasks=16 --ntasks-per-node=8 --kill-on-bad-exit=1 "
        "--time=2:00:00 python -u train.py --launcher=slurm"
    )
    said = {key: found.tables["resources"].get(key) for key in ("nodes", "gpus", "time")}
    assert said == {"nodes": 2, "gpus": 8, "time": "2:00:00"}
    assert "partition" not in found.tables["resources"]
    assert "-p $1" in fates(found, "no home")
    assert found.args == ("--launcher=slurm",)
