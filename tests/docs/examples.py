"""`python -m tests.docs.examples`: puts a real diagnosis on each page of `docs/failures/`.

What stands there is what `fsdpkit diagnose` says of a captured failure (tests/reporting/captures),
the one that is named like the cause. So is what README.md and docs/index.md show.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from docs.making import failures
from fsdpkit.cli.diagnose import lines_of
from tests.packaging.installation import ROOT
from tests.reporting.captures import Capture, all_captures, diagnosis_of

COMMAND = "python -m tests.docs.examples"
BEGIN = f"<!-- made by {COMMAND}: do not edit -->"
END = f"<!-- end of what {COMMAND} made -->"

_ALSO = ("README.md", "docs/index.md")
_SHOWN = re.compile(r"```text\n\$ fsdpkit diagnose (\S+)\n.*?```", re.DOTALL)
_PLACE = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
_HOW = {
    "produced": "From a Slurm cluster of three nodes.",
    "log": "A rank printed the words of a public log:\n<{source}>",
}


def block(capture: Capture) -> str:
    """The part of a page that shows it."""
    how = _HOW[capture.description["how"]].format(source=capture.description.get("source"))
    return f"{BEGIN}\n\n## For example\n\n{shown(capture)}\n\n{how}\n\n{END}"


def shown(capture: Capture) -> str:
    told = lines_of(diagnosis_of(capture), capture.dir)
    return "\n".join(["```text", f"$ fsdpkit diagnose {run_of(capture)}", *told, "```"])


def run_of(capture: Capture) -> str:
    return str(json.loads((capture.dir / "run.json").read_text(encoding="utf-8"))["id"])


def files() -> dict[Path, str]:
    """The text of each page with its example, by its path below the repository; those alone whose
    cause has a capture."""
    captures = {capture.dir.name: capture for capture in all_captures()}
    made = {}
    for path, cause in failures.pages().items():
        if cause.name in captures:
            text = (ROOT / path).read_text(encoding="utf-8")
            part = block(captures[cause.name])
            made[path] = (
                _PLACE.sub(lambda _, part=part: part, text)  # type: ignore[misc]
                if _PLACE.search(text)
                else f"{text.rstrip()}\n\n{part}\n"
            )
    by_run = {run_of(capture): capture for capture in captures.values()}
    for name in _ALSO:
        text = (ROOT / name).read_text(encoding="utf-8")
        made[Path(name)] = _SHOWN.sub(lambda found: shown(by_run[found[1]]), text)
    return made


def main() -> None:
    for path, text in files().items():
        (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
