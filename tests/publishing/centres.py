"""A centre's folder, people with SSH keys, and `fsdpkit` as they type it, in this process."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from fsdpkit.cli.main import fsdpkit
from fsdpkit.config.published import centre as published
from fsdpkit.errors import FsdpkitError

ALEX, KIM = "alex@centre.example", "kim@centre.example"
TEMPLATE = """schema = "fsdpkit.template/1"
name = "small"
version = "{version}"
description = "For tests."
"""
SCRIPT = """{{{{ site.shebang | note }}}}
# says {said}
{{% for line in origins %}}
#   {{{{ line | note }}}}
{{% endfor %}}
{{% for d in directives %}}
{{% if d.value is none %}}
#SBATCH --{{{{ d.name | sb }}}}
{{% else %}}
#SBATCH --{{{{ d.name | sb }}}}={{{{ d.value | sb }}}}
{{% endif %}}
{{% endfor %}}
FSDPKIT_RUN_DIR={{{{ run.dir | sh }}}}
FSDPKIT_PROGRAM=({{{{ job.entry | sh }}}})
{{% include "end.j2" %}}
"""
END = """echo "$FSDPKIT_RUN_DIR"
srun "${FSDPKIT_PROGRAM[@]}"
status=$?
exit "$status"
"""
JOB = """schema = "fsdpkit.job/1"
name = "mine"
entry = "train.py"
template = "{template}"
[resources]
nodes = 1
gpus = 1
time = "01:00:00"
"""
SITE = 'schema = "fsdpkit.site/1"\ntitle = "{title}"\n'


@dataclass(frozen=True)
class Said:
    """What a command printed, and the exit status that `main` would end with."""

    status: int
    out: str
    err: str


def typed(*words: str | Path) -> Said:
    published._verified.clear()  # as a process of its own would have none
    result = CliRunner().invoke(fsdpkit, [str(word) for word in words], standalone_mode=False)
    if isinstance(result.exception, FsdpkitError):
        return Said(result.exception.exit_code, result.stdout, f"{result.exception}")
    if result.exception is not None:
        raise result.exception
    return Said(result.return_value or 0, result.stdout, result.stderr)


def make_key(path: Path) -> Path:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return path


def line_of(key: Path, name: str, options: str = 'namespaces="fsdpkit"') -> str:
    """A line of allowed_signers."""
    return f"{name} {options} {key.with_name(key.name + '.pub').read_text().strip()}\n"


@dataclass
class Centre:
    """A folder to publish to, whose users this process then plays, and a place to draft in."""

    dir: Path
    drafts: Path
    alex: Path
    kim: Path

    @classmethod
    def made(cls, top: Path, keys: Path) -> Centre:
        centre = cls(top / "centre", top / "drafts", keys / "alex", keys / "kim")
        centre.dir.mkdir()
        centre.drafts.mkdir()
        centre.allow(line_of(centre.alex, ALEX) + line_of(centre.kim, KIM))
        return centre

    def allow(self, text: str) -> None:
        (self.dir / "allowed_signers").write_text(text)

    def template(self, version: str = "1.0.0", said: str = "hello") -> Path:
        folder = self.drafts / "small"
        folder.mkdir(exist_ok=True)
        (folder / "template.toml").write_text(TEMPLATE.format(version=version))
        (folder / "job.sbatch.j2").write_text(SCRIPT.format(said=said))
        (folder / "end.j2").write_text(END)
        (folder / "README.md").write_text(f"# small\n\nSays {said}.\n")
        return folder

    def job(self, template: str = "small", script: str = "print(1)\n") -> Path:
        (self.drafts / "train.py").write_text(script)
        path = self.drafts / "mine.toml"
        path.write_text(JOB.format(template=template))
        return path

    def profile(self, title: str = "One", text: str = "") -> Path:
        path = self.drafts / "cluster.toml"
        path.write_text(SITE.format(title=title) + text)
        return path

    def publish(self, source: Path, *words: str, key: Path | None = None) -> Said:
        done = self.try_to_publish(source, *words, key=key)
        assert done.status == 0, done.err
        return done

    def try_to_publish(self, *words: str | Path, key: Path | None = None) -> Said:
        return typed("publish", *words, "--to", self.dir, "--key", key or self.alex)

    def publish_version(self, version: str, *words: str) -> Said:
        """A template that says its version."""
        return self.publish(self.template(version, f"v{version}"), *words)

    @property
    def index(self) -> Path:
        return self.dir / "published" / "index"

    def version(self, name: str = "small", version: str = "1.0.0", kind: str = "template") -> Path:
        return self.dir / "published" / kind / name / version


def submit(template: str = "small", *words: str | Path) -> Said:
    """A dry run of a job of the person's own."""
    path = Path("own.toml")
    if not path.exists():
        path.write_text(JOB.format(template="small"))
        Path("train.py").touch()
    return typed(
        *("submit", path, "--cluster", "generic", "--dry-run", "--set", f"template={template}"),
        *words,
    )


def says(done: Said) -> str:
    """What the script of `Centre.template` says."""
    assert done.status == 0, done.err
    (line,) = (line for line in done.out.splitlines() if line.startswith("# says "))
    return line.removeprefix("# says ")


def state_files() -> list[Path]:
    return sorted(Path(os.environ["FSDPKIT_STATE_DIR"], "centres").glob("*"))
