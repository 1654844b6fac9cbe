"""Every command of fsdpkit as somebody types it who was asked to look at what a stranger wrote.

A line `looks` if it only shows, checks or compares: it may say what it likes, and ends with the
status given, so that a line which is refused for another reason is noticed. A line that would run,
load or believe what the stranger wrote `asks`, and where nobody can be asked it refuses and names
`--trust`. Others are `refused`, for what they say.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Line:
    """Words after the command, in which `{sam}`, `{alex}`, `{run}` and `{bad}` are places."""

    words: tuple[str, ...]
    says: str = ""
    statuses: tuple[int, ...] = (0,)
    env: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(self.words)


REFUSALS = (1, 2, 65, 66, 69, 74, 78)


def looks(words: str, status: int = 0, says: str = "") -> Line:
    return Line(tuple(words.split()), says, (status,))


def asks(words: str) -> Line:
    return Line(tuple(words.split()), "--trust", REFUSALS)


def refused(words: str, says: str = "", **env: str) -> Line:
    return Line(tuple(words.split()), says, REFUSALS, env)


RUNS = "--runs {sam}/runs"
HERE = "--cluster local"
SMALL = f"{HERE} --nodes 1 --gpus 1 --time 10"
CENTRE = "--to {sam}/centre"
JOBS = ("venv", "conda", "variables", "full", "module", "command", "by-template")
"""Files of jobs: by what they name."""

Command = tuple[str, ...]
COMMANDS: dict[Command, list[Line]] = {
    ("init",): [
        looks("--from {sam}/old.sbatch --output {alex}/out/init.toml --cluster local --no-account"),
    ],
    ("plan",): [
        asks("{sam}/trainer.toml --gpu h100-80"),
        asks("{sam}/trainer.toml --gpu h100-80 --tune"),
        asks("{alex}/own.toml --gpu h100-80 --model {sam}/model.py:model"),
        refused("{alex}/own.toml --gpu h100-80 --model {sam}/model"),
    ],
    ("submit",): [
        *(looks(f"{{sam}}/{name}.toml {HERE} --dry-run") for name in ("full", "by-template")),
        *(asks(f"{{sam}}/{name}.toml {HERE}") for name in JOBS),
        looks("{sam}/conda.toml --cluster osc-ascend --account PAS1234 --dry-run"),
        looks("{sam}/container.toml --cluster osc-ascend --account PAS1234 --dry-run"),
        looks("{sam}/trainer.toml --cluster local --dry-run"),
        looks("{sam}/venv.toml --cluster local --check"),
        looks("{alex}/own.toml --cluster {sam}/site.toml --dry-run"),
        asks("{alex}/own.toml --cluster {sam}/site.toml"),
        asks("{alex}/own.toml --cluster local --set template={sam}/template"),
        refused("{sam}/by-jinja.toml --cluster local --dry-run", "jinja"),
        refused("{sam}/old.sbatch", "init --from"),
        looks(f"{{sam}}/train.py {SMALL} --dry-run"),
        looks(f"train.py {SMALL} --dry-run"),
        looks(f"-m helper {SMALL} --dry-run"),
        looks("{alex}/own.toml --cluster local --wait"),
    ],
    ("sweep", "start"): [
        looks("{sam}/sweep.toml --cluster local --dry-run"),
        asks("{sam}/sweep.toml --cluster local"),
    ],
    ("sweep", "status"): [looks(f"sams {RUNS}")],
    ("sweep", "best"): [refused(f"sams {RUNS}")],
    ("sweep", "report"): [looks(f"sams {RUNS} --output {{alex}}/out/sweep.html")],
    ("sweep", "extend"): [asks(f"sams {RUNS} --trials 1")],
    ("sweep", "advance"): [refused(f"sams {RUNS}")],
    ("sweep", "cancel"): [looks(f"sams {RUNS}")],
    ("scale", "start"): [
        looks("{sam}/venv.toml --nodes 1,2 --gpus 1 --cluster local --dry-run"),
        asks("{sam}/venv.toml --nodes 1,2 --gpus 1 --cluster local"),
    ],
    ("scale", "status"): [looks(f"scale-quiet {RUNS}")],
    ("scale", "write"): [looks(f"scale-quiet {RUNS} --output {{alex}}/out/study")],
    ("resume",): [
        looks("{bad} --set args=['x'] --dry-run"),
        asks("{bad} --set args=['x']"),
        asks("{run} --set args=['x']"),
    ],
    ("status",): [looks(RUNS), looks("{bad}"), looks("")],
    ("logs",): [looks("{bad} --errors"), looks("{bad} --batch --tail 5")],
    ("diagnose",): [looks("{bad}")],
    ("report",): [looks("{bad} --output {alex}/out/report.html")],
    ("compare",): [looks("{run} {bad} --html {alex}/out/compare.html")],
    ("watch",): [looks("{bad}")],
    ("shell",): [refused("{bad} -- true")],
    ("stacks",): [refused("{bad}")],
    ("top",): [looks("{bad} --once")],
    ("cancel",): [looks("{bad}")],
    ("check",): [
        looks(HERE),
        looks("--cluster {sam}/site.toml"),
        asks("--cluster {sam}/site.toml --nodes 1 --gpus 1"),
    ],
    ("nodes",): [looks(RUNS), refused(f"--forgive node1 {RUNS}")],
    ("data", "prepare"): [
        looks("{sam}/pairs.jsonl --output {alex}/out/data --processes 1"),
        refused("{sam}/pairs.jsonl --tokenizer {sam}/model/tokenizer.json --output {alex}/out/two"),
        refused("{sam}/pairs.jsonl --tokenizer {sam}/model/tokenizer.model --output {alex}/out/3"),
    ],
    ("data", "show"): [refused("{sam}/data")],
    ("checkpoint", "export"): [refused("{bad} {alex}/out/model")],
    ("checkpoint", "ls"): [looks("{bad}")],
    ("checkpoint", "save"): [refused("{bad}")],
    ("checkpoint", "verify"): [looks("{bad}", 74)],
    ("track",): [
        refused("{bad}", "MLFLOW_TRACKING_URI"),
        refused("{bad} --to mlflow", "MLFLOW_TRACKING_URI", MLFLOW_TRACKING_TOKEN=""),
        refused("{bad} --to wandb"),
        refused(RUNS),
        looks("{bad} --to tensorboard"),  # into a directory of the viewer's
    ],
    ("prune",): [looks("{bad} --yes"), looks(f"{RUNS} --older 0 --yes")],
    ("generate",): [refused("{bad} hello --device cpu"), refused("{sam}/model hello --device cpu")],
    ("jobs",): [looks("{sam}/venv.toml --all"), looks("{sam}/full.toml")],
    ("sites",): [looks("local"), looks("--check")],
    ("site", "draft"): [refused("--output {alex}/out/site.toml")],
    ("site", "diff"): [refused("{sam}/site.toml")],
    ("site", "build"): [refused("{sam}/centre --output {alex}/out/pages --runtime {alex}/none")],
    ("templates",): [looks("{sam}/template"), looks("--check")],
    ("publish", "start"): [refused(f"{{sam}}/template {CENTRE} --dry-run")],
    ("publish", "promote"): [refused(f"template/template@3.5.0 {CENTRE} --dry-run")],
    ("publish", "rollback"): [refused(f"template/template {CENTRE} --dry-run")],
    ("publish", "withdraw"): [
        refused(f"template/template@3.5.0 --reason old {CENTRE} --dry-run"),
    ],
    ("publish", "sign"): [refused(CENTRE)],
    ("publish", "list"): [refused(CENTRE)],
    ("audit",): [looks("{sam}/centre")],
    ("template", "new"): [looks("ours --from {sam}/template")],
    ("template", "context"): [looks("{sam}/template --site generic")],
    ("template", "lint"): [looks("{sam}/template", 65), looks("{sam}/jinja", 65)],
    ("template", "test"): [
        asks("{sam}/template --site local"),
        refused("{sam}/linked --site local --no-run --update"),
    ],
    ("template", "diff"): [looks("torchrun {sam}/template --site local", 1)],
    ("template", "export"): [
        looks("{sam}/template --to open-composer --cluster osc-ascend --output {alex}/out/app"),
    ],
    ("skill",): [looks("")],
    ("completion",): [looks("bash")],
    ("_remote",): [looks("x")],
}
"""A command that is not here fails its test: say there what it does with a stranger's file."""
