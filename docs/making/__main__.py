"""`python -m docs.making`: writes what is made in `docs/failures/`, a page for each cause."""

from __future__ import annotations

from pathlib import Path

from docs.making import failures, markdown
from fsdpkit.config import assets


def files() -> dict[Path, str]:
    """The text of every page, by its path below the repository. Raises OSError where one that is
    partly written by hand cannot be read."""
    made, titles = {}, {}
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
