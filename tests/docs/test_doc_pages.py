"""Every command of the documents runs as it is printed: page by page, from top to bottom, as an
ordinary user who has what the page itself shows or names. What does not run here is in NOT_HERE and
ELSEWHERE, with the reason."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.documents import blocks, documents, typed
from tests.docs.reader import Reader
from tests.packaging.installation import ROOT

pytestmark = pytest.mark.local

NOT_HERE = {
    "make ": "makes an environment, or a Slurm cluster",
    "pip ": "asks a registry",
    "sha256sum ": "needs a release's files; tests/packaging/test_release.py",
    "torchrun ": "trains for minutes",
    "pytest ": "would run this suite in itself",
    "sacct ": "asks Slurm's accounting",
    "salloc ": "asks Slurm; tests/slurm/test_here_on_slurm.py",
    "fsdpkit submit train.py --here": "needs an allocation; tests/slurm/test_here_on_slurm.py",
    "fsdpkit submit --cluster ./ours.toml --nodes 2 --gpus 4 --check": "asks Slurm",
    "fsdpkit site d": "asks Slurm; tests/slurm/test_site_verbs.py",
    "fsdpkit --host": "needs a login node; tests/remote",
    "fsdpkit checkpoint save": "needs a trainer at work; tests/scheduling/test_saving.py",
    "fsdpkit nodes --forgive NODE": "needs a node that failed; tests/slurm/test_attacks.py",
    "fsdpkit submit --cluster SITE": "needs shellcheck or Slurm; tests/rendering",
}
"""By how a line begins. Each of them fails here, or is not needed."""

ELSEWHERE = {
    "fsdpkit check --nodes": "tests/slurm/test_check.py",
    "fsdpkit plan ": "tests/planning",
    "fsdpkit template test": "tests/publishing/test_template_test.py",
    "fsdpkit template lint": "tests/publishing/test_template_lint.py",
    "fsdpkit template diff": "tests/publishing/test_template_diff_and_context.py",
    "fsdpkit site build": "tests/publishing/test_catalogue_pages.py",
    "fsdpkit sweep lr.toml --nodes 1 --set training.steps=90 --on": "tests/sweeps",
    "fsdpkit sweep advance lr --on": "tests/sweeps/test_sweep_on_hold.py",
    "fsdpkit generate": "tests/cli/test_generate_command.py",
    "fsdpkit template export torchrun --to ondemand --job hold": "tests/publishing/export",
    "python examples/": "tests/training",
}
"""What would take minutes, by how a line begins, and the tests that run it."""

INSTEAD = {
    "fsdpkit init": "fsdpkit init --cluster local --no-account --environment current "
    "--script train.py",
    "fsdpkit shell RUN --node 1": "fsdpkit shell RUN --node 0 -- true",
    "fsdpkit submit finetune.toml --set resources.memory=64G": "fsdpkit submit finetune.toml "
    "--set resources.memory=1G",
}
"""For a line that asks on a terminal the same with its answers, and one for a small machine."""

STATUSES = {"fsdpkit submit --nodes 2 --gpus 4 --cluster osc-pitzer --account PAS2136": 2}
"""Other than 0; the page shows what is said."""

PLACES = r"(?<![\w/.~$}-])(?=/(?:apps|models|proj|srv|scratch|path|tmp|var/lib|home/me)/)"
"""Before the directories of a centre, which are the reader's own here."""
MADE = ("apps", "proj/pas1234", "scratch/alex", "srv/www", "path/to/runs", "tmp", "home/me/envs")
NODE_EXPORTER = "var/lib/node_exporter"

SUBMIT = "fsdpkit submit train.py --nodes 1 --gpus 1 --wait"
SIGNERS = "/apps/fsdpkit/allowed_signers"
PUBLISH = "fsdpkit publish templates/torchrun --to /apps/fsdpkit"
VERSION = "sed -i 's/^version = .*/version = \"%s\"/' templates/torchrun/template.toml"
COPIES = {
    "pairs.jsonl": ("corpus.jsonl", "corpus/a.jsonl"),
    "tokenizer.json": ("t5/tokenizer.json",),
    "train.csv": ("validation.csv", "test.csv"),
    "train.py": ("path/to/train.py",),
}
"""Of what lies in given/: the same under other names."""

FIRST: dict[str, dict[str, str]] = {
    "docs/administrators.md": {
        "fsdpkit check": "export SBATCH_ACCOUNT=pas1234; mkdir /apps/fsdpkit; "
        f'echo "alex@centre.example $(cat ~/.ssh/id_ed25519.pub)" > {SIGNERS}',
    },
    "docs/data-and-checkpoints.md": {"fsdpkit data prepare": f"touch unfinished; {SUBMIT}"},
    "docs/failures/index.md": {"fsdpkit diagnose": SUBMIT},
    "docs/profiles.md": {"fsdpkit site draft": "export SBATCH_ACCOUNT=pas1234"},
    "docs/publishing.md": {
        PUBLISH: f"{VERSION % '3.3.0'}; {PUBLISH}; {VERSION % '3.4.0'}",
        "fsdpkit publish deprecate": f"{VERSION % '3.5.0'}; {PUBLISH}",
    },
    "docs/sweeps.md": {"fsdpkit sweep best": "until fsdpkit sweep best lr; do sleep 1; done"},
    "docs/worth.md": {"fsdpkit audit": "mkdir -p /apps/fsdpkit/audit"},
    "docs/your-script.md": {"fsdpkit submit train.py": "touch unfinished"},
    "skills/fsdpkit/SKILL.md": {"fsdpkit submit": "touch unfinished"},
}
"""What the reader has done before a line, by how that begins."""

FILES: dict[str, dict[str, tuple[str, str]]] = {
    "docs/administrators.md": {"ours.toml": ("docs/profiles.md", "fsdpkit.site/1")},
    "docs/many-runs.md": {"lr.toml": ("docs/sweeps.md", 'name = "lr"')},
    "docs/profiles.md": {"ours.toml": ("docs/profiles.md", "fsdpkit.site/1")},
    "docs/sweeps.md": {
        "lr.toml": ("docs/sweeps.md", 'name = "lr"'),
        "mine.toml": ("docs/sweeps.md", 'name = "mine"'),
    },
    "docs/your-script.md": {
        "train.py": ("docs/your-script.md", "STEPS = 100_000"),
        "finetune.toml": ("docs/your-script.md", 'name = "finetune"'),
    },
}
"""Those that pages show: on which, and words in them. What a page says that its reader has lies in
given/."""


REFUSED = "docs/messages.md"
"""What stands there is typed wrong on purpose; messages.py runs it."""


@cache
def lines(page: str) -> list[str]:
    """What a page has typed, without blocks that an earlier page has word for word."""
    earlier = set(documents()[: documents().index(page)]) - {REFUSED}
    before = [block for name in earlier for block in typed(name)]
    found = [line for block in typed(page) if block not in before for line in block]
    return [re.split(r"\s+# ", line)[0] for line in found]


PAGES = [name for name in documents() if name != REFUSED and lines(name)]


def begins(line: str, keys: dict[str, str]) -> str | None:
    return next((key for key in keys if line.startswith(key)), None)


def block_with(page: str, words: str) -> str:
    (text,) = (block.text for block in blocks(page) if words in block.text)
    return text


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """With two runs: one that has trained, and one that goes on."""
    if os.geteuid() != 0:
        pytest.skip("only root can become an ordinary user")
    reader = Reader(tmp_path_factory.mktemp("reader"))
    (reader.home / "train.py").write_text("import time\ntime.sleep(3600)\n")
    submit = f"{reader.at_work}fsdpkit submit --nodes 1 --gpus 1"
    try:
        done = reader.types(
            [
                "ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519",
                f"{submit} train.py --set launch.warm=off",
                f"{submit} --set training.steps=6 --set training.checkpoint.every_steps=3 --wait",
                "fsdpkit checkpoint export runs/$(ls runs | grep ^fsdp) model",
            ],
            reader.home,
        )
        assert [each.status for each in done] == [0] * 4, done
        yield reader
    finally:
        reader.types(["fsdpkit cancel $(ls runs | grep ^train)"], reader.home)
        reader.end()


def furnish(directory: Path, page: str) -> None:
    shutil.copytree(Path(__file__).with_name("given"), directory)
    for name, others in COPIES.items():
        for other in others:
            (directory / other).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(directory / name, directory / other)
    for name in (*MADE, NODE_EXPORTER):
        (directory / "root" / name).mkdir(parents=True)
    for model in ("flan-t5-base", "flan-t5-large"):
        shutil.copytree(directory.parent / "model", directory / "root/models" / model)
        shutil.copy(directory / "tokenizer.json", directory / "root/models" / model)
    shutil.copy(directory / "root/models/flan-t5-base/model.safetensors", directory / "model.pt")
    (directory / "root/home/me/envs/torch").symlink_to(sys.prefix)
    (directory / "examples").symlink_to(ROOT / "examples")
    shutil.copytree(ROOT / "templates", directory / "templates")
    for name, (where, words) in FILES.get(page, {}).items():
        text = re.sub(PLACES, f"{directory}/root", block_with(where, words))
        (directory / name).write_text(text)


def filled(line: str, page: str, directory: Path) -> str:
    """What the reader types: with what was to be done first, and with their own names."""
    first = FIRST.get(page, {})
    before = first.get(begins(line, first) or "", "")
    line = re.sub(PLACES, f"{directory}/root", f"{before}\n{INSTEAD.get(line, line)}").lstrip()
    line = re.sub(r"\b\w[\w-]*-\d{8}-\d{6}-[0-9a-f]{4}\b", "RUN", line)
    newest = "fsdpkit watch > seen; fsdpkit resume $(ls -t runs | head -1)"
    line = line.replace("fsdpkit resume RUN", newest)
    runs = directory.parent / "runs"
    trained, live = (f"{runs}/$(ls {runs} | grep ^{name})" for name in ("fsdp-t5", "train"))
    line = line.replace("RUN RUN", f"{trained} {live}")
    goes_on = re.search(r"fsdpkit (stacks|top|shell|cancel)", line)
    line = re.sub(r"\bRUN\b", live if goes_on else trained, line)
    line = re.sub(r"\bHOLD\b", "$(ls runs | grep ^hold-)", line).replace("MODULE", "json")
    works = re.search(r"^fsdpkit (check|hold|release)\b|--on |--keep-on", line)
    return f"FSDPKIT_CONFIG_DIR={directory.parent}/at-work {line}" if works else line


@pytest.mark.parametrize("page", PAGES)
def test_its_commands_run_as_printed_from_top_to_bottom(reader: Reader, page: str) -> None:
    directory = reader.home / page.replace("/", "-")
    furnish(directory, page)
    run = [line for line in lines(page) if not begins(line, ELSEWHERE)]
    done = reader.types([filled(line, page, directory) for line in run], directory)
    wrong = [
        (line, *came)
        for line, came in zip(run, done, strict=True)
        if (came.status == STATUSES.get(line, 0)) is bool(begins(line, NOT_HERE))
    ]
    assert wrong == []
    for line, came in zip(run, done, strict=True):
        if line in STATUSES:
            shown = {text.strip() for text in block_with(page, line).splitlines()[1:]}
            assert shown - {"…"} <= {text.strip() for text in came.output.splitlines()}


def test_no_entry_is_without_a_line_and_tests_that_are_named_exist() -> None:
    every = [line for page in PAGES for line in lines(page)]
    for keys in (NOT_HERE, ELSEWHERE, INSTEAD, STATUSES):
        assert [key for key in keys if not any(line.startswith(key) for line in every)] == []
    for page, first in FIRST.items():
        assert [key for key in first if not any(line.startswith(key) for line in lines(page))] == []
    named = re.findall(r"tests/[\w./]+", " ".join([*NOT_HERE.values(), *ELSEWHERE.values()]))
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_line_can_be_copied_into_any_shell(page: str) -> None:
    """A comment is words to zsh and tcsh when a person types it: one with an apostrophe waits for
    the second, one with a question mark looks for files. And a block without output has no prompt,
    which a copy would have, too."""
    typed_ = [line for block in typed(page) for line in block]
    comments = [
        words[1] for line in typed_ if len(words := re.split(r"\s+# ", line, maxsplit=1)) > 1
    ]
    assert [text for text in comments if re.search(r"[\"'`?*;&|<>()$!\[\]{}]", text)] == []
    shown = [block.text.replace("\\\n", " ").splitlines() for block in blocks(page)]
    assert [text for text in shown if text and all(line.startswith("$ ") for line in text)] == []
