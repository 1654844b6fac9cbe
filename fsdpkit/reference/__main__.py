"""`python -m fsdpkit.reference`: writes `docs/reference/`, and what is made in `docs/failures/`."""

from __future__ import annotations

from pathlib import Path

from fsdpkit.config import assets
from fsdpkit.config.schema import SCHEMAS
from fsdpkit.reference import (
    commands,
    exit_statuses,
    failures,
    json_shapes,
    keys,
    markdown,
    python_names,
    run_files,
    variables,
)
from fsdpkit.sweeps.file import SweepFile

_JOB = "With `--set KEY=VALUE`, or in the file, where a dot is a table: `[resources]`, `nodes = 2`."
_SITE = "How to write one: [profiles](../profiles.md). `NAME` is yours to choose."
_TEMPLATE = (
    "`template.toml` of a template's folder. How to write one: [templates](../templates.md)."
)
_SWEEP = "A sweep's file. How to write one: [sweeps](../sweeps.md)."


def files() -> dict[Path, str]:
    """The text of every page that is made, in whole or in part, by its path below the repository.
    Raises OSError where a page that is partly written by hand cannot be read."""
    reference = Path("docs/reference")
    made = {
        reference / "commands.md": commands.page(),
        reference / "exit-statuses.md": exit_statuses.page(),
        reference / "job-keys.md": keys.page("Keys of a job", _JOB, SCHEMAS["job"]),
        reference / "profile-keys.md": keys.page("Keys of a profile", _SITE, SCHEMAS["site"]),
        reference / "template-keys.md": keys.page(
            "Keys of a template", _TEMPLATE, SCHEMAS["template"]
        ),
        reference / "sweep-keys.md": keys.page("Keys of a sweep", _SWEEP, SweepFile),
        reference / "environment.md": variables.page(),
        reference / "run-files.md": run_files.page(),
        reference / "json.md": json_shapes.page(),
        reference / "python.md": python_names.page(),
    }
    titles = {}
    for path, cause in failures.pages().items():
        text = _text(path, failures.new_page(cause))
        titles[path] = text.partition("\n")[0].removeprefix("# ")
        made[path] = markdown.with_block(text, failures.block(cause))
    index = Path("docs/failures/index.md")
    overview = failures.overview(titles)
    made[index] = markdown.with_block(_text(index, "# When it fails\n"), overview)
    return made


def _text(path: Path, otherwise: str) -> str:
    whole = assets.packaged_dir() / path
    return whole.read_text(encoding="utf-8") if whole.exists() else otherwise


def main() -> None:
    for path, text in files().items():
        whole = assets.packaged_dir() / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
