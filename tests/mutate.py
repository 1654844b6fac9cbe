"""How many small mistakes in `fsdpkit/` do the tests notice? Run by hand.

    python -m tests.mutate --number 30 --seed 1 --packages config runs cli

Each mutant is one change of one line (`CHANGES`) in a copy of the tree, on which the tests run that
name the changed module, without a cluster and without training ranks. A mutant that none of them
notices is a line nobody tests, or a change that makes no difference: somebody has to look. This is
no part of the suite: it takes minutes, and its answer depends on the places that the seed chose.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

ROOT = Path(__file__).resolve().parent.parent
QUICK = "not slurm and not newest_slurm and not torch and not local and not packages"
PASSED, NOTHING_RAN = 0, 5
"""Exit statuses of pytest: with any other the tests noticed something."""
FAR = 8
"""Files of tests, the shortest ones, that know a changed module by one that imports it."""

PAIRS: tuple[tuple[type[ast.cmpop], type[ast.cmpop]], ...] = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)),
    *((ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
)
FLIPPED = {**dict(PAIRS), **{other: one for one, other in PAIRS}}
Change = Callable[[ast.AST], bool]
"""Changes a node, where it can."""


@dataclass(frozen=True)
class Mutant:
    """A changed module: `text` is the whole file."""

    file: Path
    line: int
    change: str
    text: str


def flip(node: ast.AST) -> bool:
    """`a < b` becomes `a <= b`, `==` becomes `!=`."""
    if not isinstance(node, ast.Compare):
        return False
    node.ops[0] = FLIPPED[type(node.ops[0])]()
    return True


def add_one(node: ast.AST) -> bool:
    """`3` becomes `4`."""
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        return False
    node.value += 1
    return True


def drop_return(node: ast.AST) -> bool:
    """`return value` becomes `return None`."""
    if not isinstance(node, ast.Return) or node.value is None:
        return False
    if isinstance(node.value, ast.Constant) and node.value.value is None:
        return False
    node.value = ast.Constant(None)
    return True


def swap_and_or(node: ast.AST) -> bool:
    """`a and b` becomes `a or b`."""
    if not isinstance(node, ast.BoolOp):
        return False
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    return True


def drop_argument(node: ast.AST) -> bool:
    """`f(a, key=b)` becomes `f(a)`."""
    if not isinstance(node, ast.Call) or not node.keywords:
        return False
    node.keywords.pop()
    return True


CHANGES: tuple[Change, ...] = (flip, add_one, drop_return, swap_and_or, drop_argument)


def walked(node: ast.AST) -> Iterator[ast.AST]:
    """The expressions and statements that run; annotations do not, here."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from walked(child)


def places_in(tree: ast.Module) -> list[tuple[int, Change]]:
    """What can be changed where: the number of the node in `walked`, and how."""
    return [
        (number, change)
        for number, node in enumerate(walked(tree))
        for change in CHANGES
        if change(copy.deepcopy(node))
    ]


def mutant_of(file: Path, root: Path, choose: random.Random) -> Mutant | None:
    """A change of `file` at a random place; None if it has no place to change."""
    tree = ast.parse((root / file).read_text(encoding="utf-8"))
    places = places_in(tree)
    if not places:
        return None
    number, change = choose.choice(places)
    node = list(walked(tree))[number]
    before = ast.unparse(node)
    change(node)
    ast.fix_missing_locations(tree)
    line = int(getattr(node, "lineno", 0))
    shown = (shorten(code, 48, placeholder="…") for code in (before, ast.unparse(node)))
    return Mutant(file, line, " -> ".join(shown), ast.unparse(tree))


def covering(file: Path, root: Path, tests: Sequence[str]) -> list[str]:
    """Files of tests that name the module of `file`, then a few that name a module that imports it,
    and a few that name a helper of the tests that does either.

    Those with the module's own name come first, so that most mutants are noticed at once.
    """
    texts = {
        path: path.read_text(encoding="utf-8")
        for folder in tests
        for path in sorted((root / folder).rglob("test_*.py"))
    }
    named = naming(file)
    near = [path for path, text in texts.items() if named.search(text)]
    near.sort(key=lambda path: path.stem != f"test_{file.stem}")
    users = importers(root, [named])
    patterns = [naming(user) for user in users]
    wider = [naming(user) for user in importers(root, patterns)]
    far = [
        path
        for path, text in texts.items()
        if path not in near and any(pattern.search(text) for pattern in patterns)
    ]
    of_users = {f"test_{user.stem}" for user in users}
    far.sort(key=lambda path: (path.stem not in of_users, len(texts[path])))
    by_helpers = helped(root, tests, [named, *patterns, *wider], texts)
    by_helpers = [path for path in by_helpers if path not in near and path not in far[:FAR]]
    return [str(path.relative_to(root)) for path in [*near, *far[:FAR], *by_helpers[:FAR]]]


def importers(root: Path, named: Sequence[re.Pattern[str]]) -> list[Path]:
    """The package's modules that import one of these."""
    texts = {p: p.read_text(encoding="utf-8") for p in sorted((root / "fsdpkit").rglob("*.py"))}
    found = [path for path, text in texts.items() if any(one.search(text) for one in named)]
    return [path.relative_to(root) for path in found]


def helped(
    root: Path, tests: Sequence[str], named: Sequence[re.Pattern[str]], texts: Mapping[Path, str]
) -> list[Path]:
    """Of the files of tests those that use a helper which names one of these modules."""
    helpers = [
        naming(path.relative_to(root))
        for folder in tests
        for path in sorted((root / folder).rglob("*.py"))
        if path not in texts and any(one.search(path.read_text(encoding="utf-8")) for one in named)
    ]
    found = [path for path, text in texts.items() if any(one.search(text) for one in helpers)]
    return sorted(found, key=lambda path: len(texts[path]))


def naming(file: Path) -> re.Pattern[str]:
    """Where a text imports the module of `file`, or a name of it."""
    parts = list(file.with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    package, name = re.escape(".".join(parts[:-1])), parts[-1]
    listed = rf"\([^)]*\b{name}\b|[^\n(]*\b{name}\b"
    return re.compile(rf"\b{package}\.{name}\b|from {package} import ({listed})")


def is_noticed(mutant: Mutant, root: Path, pytest: Sequence[str], limit_s: float) -> str:
    """Run pytest so on `mutant` in the copy `root`, which is as before afterwards."""
    place = root / mutant.file
    before = place.read_text(encoding="utf-8")
    place.write_text(mutant.text, encoding="utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *pytest],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "time"
    finally:
        place.write_text(before, encoding="utf-8")
    if done.returncode == NOTHING_RAN:
        return "no test"
    return "NOT NOTICED" if done.returncode == PASSED else "noticed"


def copy_of_the_tree(target: Path) -> None:
    """The files of this checkout that git knows or would add, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, os.fsdecode(listed).split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parse.add_argument("--number", type=int, default=30, help="mutants, each in another file")
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--packages", nargs="*", default=[""], help="of fsdpkit/; else all")
    parse.add_argument("--tests", nargs="*", default=["tests"], help="folders of tests")
    parse.add_argument("--marks", default=QUICK, help="pytest's -m")
    parse.add_argument("--limit", type=float, default=180, help="seconds for the tests of a mutant")
    asked = parse.parse_args()
    choose = random.Random(asked.seed)
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        root = Path(name)
        copy_of_the_tree(root)
        folders = [root / "fsdpkit" / package for package in asked.packages]
        files = sorted({file for folder in folders for file in folder.rglob("*.py")})
        choose.shuffle(files)
        for file in files:
            if sum(counts.values()) == asked.number:
                break
            mutant = mutant_of(file.relative_to(root), root, choose)
            if mutant is None:
                continue
            tests = covering(mutant.file, root, asked.tests)
            found = "no test"
            if tests:
                found = is_noticed(mutant, root, ["-m", asked.marks, *tests], asked.limit)
            counts[found] = counts.get(found, 0) + 1
            print(f"{found:12} {mutant.file}:{mutant.line}  {mutant.change}", flush=True)
    noticed, tried = counts.get("noticed", 0) + counts.get("time", 0), sum(counts.values())
    print(f"{noticed} of {tried} noticed ({noticed / max(1, tried):.0%}): {counts}")


if __name__ == "__main__":
    main()
