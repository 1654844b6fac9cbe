"""Small git work trees, as a person has them."""

from __future__ import annotations

import os
from pathlib import Path

from tests.programs import ran


def git(tree: Path, *words: str) -> str:
    """`git WORDS` as somebody with a name would run it."""
    who = {
        f"GIT_{one}_{key}": "a@b" for one in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")
    }
    done = ran(
        ["git", *words], cwd=tree, env={**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull}
    )
    assert done.returncode == 0 or "CONFLICT" in done.stdout, done.stderr
    return done.stdout.strip()


def work_tree(tree: Path) -> Path:
    """A committed script and helper; data that git ignores; one edit and one new file."""
    tree.mkdir(parents=True)
    git(tree, "init", "-q", "-b", "main")
    (tree / "train.py").write_text("import helper\nprint(helper.WORD)\n")
    (tree / "helper.py").write_text("WORD = 'committed'\n")
    (tree / ".gitignore").write_text("data/\n")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "one")
    (tree / "data").mkdir()
    (tree / "data" / "corpus.txt").write_text("x" * 1000)
    (tree / "helper.py").write_text("WORD = 'edited'\n")
    (tree / "new.py").write_text("pass")
    return tree
