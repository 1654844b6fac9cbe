"""What a stranger keeps and a colleague is asked to look at: jobs, a sweep, runs, a template, a
site profile, a work tree. In each place that could run or leak there is a canary.

A canary that is touched leaves a file in `marks`, whose name says which it was. A server that
belongs to the stranger leaves one, too, if anybody speaks to it.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from fsdpkit.runs.checkpoints import CHECKSUMS, DESCRIPTION, METADATA, Description, checksum_lines
from fsdpkit.runs.checkpoints import sha256_of as sha256_of_file
from tests.conftest import ROOT, Completed
from tests.slurm_cluster.users import opening_script

VICTIM, STRANGER = 61011, 61012
TOKENS = {
    "MLFLOW_TRACKING_TOKEN": "victims-mlflow-token",
    "WANDB_API_KEY": "f" * 40,
    "HF_TOKEN": "victims-hf-token",
}
"""In the environment of whoever looks."""
PASSWORDS = {"MLFLOW_TRACKING_USERNAME": "victim", "MLFLOW_TRACKING_PASSWORD": "victims-password"}

MODULES = (
    *("json", "queue", "random", "typing_extensions", "tomllib", "site", "sitecustomize"),
    *("usercustomize", "click", "msgspec", "jinja2", "rich", "submitit", "cloudpickle", "psutil"),
    *("torch", "numpy", "mlflow", "wandb", "transformers", "tokenizers", "safetensors", "helper"),
)
"""Names that fsdpkit or what it uses imports, and one that only the stranger's script does."""
PROGRAMS = (
    *("git", "ssh", "ssh-keygen", "squeue", "sacct", "sbatch", "scontrol", "sinfo", "sacctmgr"),
    *("nvidia-smi", "python", "python3", "bash", "sh", "conda", "module", "apptainer", "less"),
    *("shellcheck", "node", "tar", "xdg-open", "torchrun"),
)


@dataclass(frozen=True)
class Places:
    """Where everything lies: `sam` is the stranger's home, `alex` the home of whoever looks."""

    top: Path
    runs: dict[str, Path] = field(default_factory=dict)
    """The stranger's: `run` as it was made, `bad` as its owner spoiled it."""

    @property
    def sam(self) -> Path:
        return self.top / "sam"

    @property
    def alex(self) -> Path:
        return self.top / "alex"

    @property
    def marks(self) -> Path:
        return self.top / "marks"

    def marks_now(self) -> list[str]:
        """Which canaries were touched since this was last asked."""
        found = sorted(self.marks.iterdir())
        for mark in found:
            mark.unlink()
        return sorted({mark.name.rpartition(".")[0] for mark in found})

    def word(self, text: str) -> str:
        """A word of a command line, in which `{sam}` and `{alex}` are their homes."""
        return text.format(sam=self.sam, alex=self.alex, **self.runs)

    # ---- Canaries

    def shell(self, name: str) -> str:
        return f"#!/bin/sh\n: > {self.marks}/{name}.$$\nexit 1\n"

    def python(self, name: str) -> str:
        return f"import os\nopen(f'{self.marks}/{name}.{{os.getpid()}}', 'w').close()\n"

    def pickled(self, name: str) -> bytes:
        return pickle.dumps(_Opens(f"{self.marks}/{name}.0"))

    def variables(self, name: str) -> dict[str, str]:
        """The dynamic loader itself leaves the mark, in whatever program is started with these."""
        return {"LD_DEBUG": "statistics", "LD_DEBUG_OUTPUT": f"{self.marks}/{name}"}


class _Opens:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def run_as(
    places: Places,
    user: int,
    words: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120,
) -> Completed:
    """`fsdpkit WORDS` as an ordinary user without a terminal, by the program that users start: with
    `python -m` Python itself would look into the working directory. The machine's shellcheck takes
    twenty seconds for what a stand-in says here: whether it would read a `.shellcheckrc`."""
    home = places.alex if user == VICTIM else places.sam
    environ = {
        "PATH": f"{places.top / 'tools'}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(home),
        "LOGNAME": home.name,
        "USER": home.name,
        "LC_ALL": "C.UTF-8",
        "TMPDIR": str(home / "tmp"),
        "FSDPKIT_RUNS": str(home / "runs"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **(env or {}),
    }
    program = Path(sys.executable).with_name("fsdpkit")
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
    argv = [*_entering(places.top), *become, str(program), *words]
    return subprocess.run(
        argv,
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )


def end_what_goes_on(places: Places) -> None:
    """The victim's processes here: what a command started that should only have looked."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == VICTIM and process.environ()["HOME"] == str(places.alex):
                process.kill()


def _entering(top: Path) -> list[str]:
    """The words that open this Python and the checkout to anybody, where they are closed."""
    script = opening_script(top, top / "stage")
    if "mount" not in script:
        return []
    return ["unshare", "--mount", "sh", "-ec", f'{script}exec "$@"', "sh"]


# ---- The stranger's server


@contextlib.contextmanager
def listening(places: Places) -> Iterator[str]:
    """The address of a server that leaves a mark when it is spoken to, and another for a secret."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            said = f"{self.path} {self.headers}".encode() + body
            secret = any(each.encode() in said for each in (*TOKENS.values(), "Basic "))
            name = "server-given-a-secret" if secret else "server-spoken-to"
            (places.marks / f"{name}.0").touch()
            self.send_response(403)
            self.end_headers()

        do_POST = do_PUT = do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# ---- What the stranger wrote


def make(places: Places, server: str, own: str) -> None:
    """Everything but the runs, which the stranger makes with fsdpkit. own: address of the server
    that the victim uses."""
    places.top.chmod(0o755)
    places.marks.mkdir()
    places.marks.chmod(0o1777)
    (places.top / "stage").mkdir()
    (places.top / "tools").mkdir()
    asked = f"case $1 in --norc) echo '[]' ;; *) : > {places.marks}/shellcheckrc.$$ ;; esac"
    _write(places.top / "tools" / "shellcheck", f"#!/bin/sh\n{asked}\n", 0o755)
    for home in (places.sam, places.alex):
        (home / "tmp").mkdir(parents=True)
    _write_programs(places)
    _write_jobs(places, server)
    _write_sweeps(places)
    _write_templates(places)
    _write_asked_for(places)
    _write_work_tree(places, places.sam / "tree", server)
    _write_victim(places, own)
    give(places.sam, STRANGER)
    give(places.alex, VICTIM)
    (places.sam / "tree").chmod(0o1777)


def give(top: Path, user: int) -> None:
    for path in (top, *top.rglob("*")):
        os.lchown(path, user, user)
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o044 | (0o111 if path.is_dir() else 0))


def _write(path: Path, content: str | bytes, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def _write_programs(places: Places) -> None:
    """Interpreters, scripts, a package, and directories that variables may name."""
    sam = places.sam
    for name in ("venv", "conda"):
        for program in ("python", "torchrun", "train-command"):
            canary = places.shell(f"{name}-{program}")
            _write(sam / name / "bin" / program, canary, 0o755)
    _write(sam / "venv" / "pyvenv.cfg", "home = /usr/bin\n")
    _write(sam / "conda" / "conda-meta" / "torch-2.0-0.json", "{}")
    _write(sam / "train.py", f"import helper\n{places.python('entry')}print('step 1 loss 2.5')\n")
    trainer = "def train_step(*a): ...\ndef build(*a): ...\ndef main(): ...\n"
    _write(sam / "trainer.py", f"import helper\n{places.python('entry-of-plan')}{trainer}")
    _write(sam / "helper.py", places.python("module-beside"))
    _write(sam / "package" / "__init__.py", places.python("package"))
    _write(sam / "package" / "train.py", places.python("package-train"))
    _write(sam / "lib" / "sitecustomize.py", places.python("sitecustomize"))
    _write(sam / "bash_env.sh", places.shell("bash-env"))
    for step in ("before", "each_node", "after"):
        _write(sam / "steps" / step, f"{places.shell(f'step-{step}')}".replace("exit 1", "exit 0"))
        (sam / "steps" / step).chmod(0o755)
    _write(sam / "notify", places.shell("notify").replace("exit 1", "exit 0"), 0o755)
    for program in PROGRAMS:
        _write(sam / "bin" / program, places.shell(f"path-{program}"), 0o755)


JOB = """schema = "fsdpkit.job/1"
name = "{name}"
entry = "{entry}"
{keys}
[resources]
nodes = 1
gpus = 1
time = "00:10:00"

[files]
group = false
"""


def _write_jobs(places: Places, server: str) -> None:
    sam = places.sam
    environment = {
        "venv": {"venv": f"{sam}/venv"},
        "conda": {"conda": f"{sam}/conda"},
        "container": {"container": f"{sam}/image.sif"},
        "variables": {
            "variables": {
                "PYTHONPATH": f"{sam}/lib",
                "BASH_ENV": f"{sam}/bash_env.sh",
                **places.variables("job-variables"),
            },
            "prepend": {"PATH": f"{sam}/bin"},
        },
    }
    for name, table in environment.items():
        tables = {"environment": table}
        _write_job(sam / f"{name}.toml", f"{sam}/train.py", tables)
    steps = {step: f"{sam}/steps/{step}" for step in ("before", "each_node", "after")}
    full = {
        "steps": steps,
        "notify": {"command": [f"{sam}/notify"]},
        "launch": {"warm": "off", "preload": ["helper"]},
        "retry": {"on_crash": "stop"},
        "track": {"to": ["mlflow"], "uri": server},
    }
    _write_job(sam / "full.toml", f"{sam}/train.py", full)
    _write_job(sam / "quiet.toml", f"{sam}/quiet.py", {"launch": {"warm": "off"}})
    _write(sam / "quiet.py", "print('step 1 loss 2.5')\n")
    module = {"environment": {"venv": f"{sam}/venv", "variables": {"PYTHONPATH": str(sam)}}}
    _write_job(sam / "module.toml", "-m package.train", module)
    command = {"environment": {"venv": f"{sam}/venv"}}
    _write_job(sam / "command.toml", "train-command", command)
    _write_job(sam / "trainer.toml", f"{sam}/trainer.py", {"training": {"steps": 5}})
    for key, value in (("template", f"{sam}/template"), ("template", f"{sam}/jinja")):
        name = Path(value).name
        _write_job(sam / f"by-{name}.toml", f"{sam}/train.py", {}, f'{key} = "{value}"')
    _write(sam / "image.sif", places.shell("container"), 0o755)


def _write_job(path: Path, entry: str, tables: Mapping[str, Any], keys: str = "") -> None:
    text = JOB.format(name=path.stem, entry=entry, keys=keys)
    _write(path, text + "".join(_table(name, table) for name, table in tables.items()))


def _table(name: str, table: Mapping[str, Any]) -> str:
    """In JSON's spelling of values, which TOML's is for strings, numbers and lists of them."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    nested = {key: value for key, value in table.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in plain.items()]
    inner = "".join(_table(f"{name}.{key}", value) for key, value in nested.items())
    return f"\n[{name}]\n{''.join(lines)}{inner}"


def _write_sweeps(places: Places) -> None:
    """One whose job is the victim's own, so that only the sweep is a stranger's; one to be made."""
    sam = places.sam
    text = 'schema = "fsdpkit.sweep/1"\nname = "{}"\njob = "{}"\nsampler = "{}"\n{}[parameters]\n'
    tried = {"PYTHONPATH": f"{sam}/lib", **places.variables("sweep-variables")}
    lines = [f"environment.variables.{k} = [{json.dumps(v)}]\n" for k, v in tried.items()]
    ours = text.format("sweep", places.alex / "own.toml", "grid", "")
    _write(sam / "sweep.toml", ours + "".join(lines))
    sams = text.format("sams", sam / "quiet.toml", "random", "trials = 2\n")
    _write(sam / "sams.toml", f"{sams}args.lr = {{ uniform = [0.1, 0.9] }}\n")


def _write_templates(places: Places) -> None:
    """A good one that would leave a mark, one that reaches for Python, one with a link."""
    sam = places.sam
    packaged = ROOT / "templates" / "torchrun"
    for name, line in {
        "template": f": > {places.marks}/template.$$",
        "linked": "true",
        "jinja": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    }.items():
        shutil.copytree(packaged, sam / name, ignore=shutil.ignore_patterns("golden"))
        manifest = sam / name / "template.toml"
        manifest.write_text(manifest.read_text().replace('"torchrun"', f'"{name}"', 1))
        part = sam / name / "job.sbatch.j2"
        part.write_text(
            part.read_text().replace("set -euo pipefail\n", f"set -euo pipefail\n{line}\n", 1)
        )
    (sam / "linked" / "golden").symlink_to(places.alex / "precious")


def _write_asked_for(places: Places) -> None:
    """A site profile, data, a model, an old script, a centre."""
    sam = places.sam
    local = (ROOT / "site" / "profiles" / "local.toml").read_text()
    profile = f'\n[account]\nfind = ": > {places.marks}/account-find.0"\n[environment]\n'
    profile += f"variables = {{ BASH_ENV = '{sam}/bash_env.sh' }}\n"
    _write(sam / "site.toml", local + profile)
    touches = f": > {places.marks}/old-script.$$"
    _write(
        sam / "old.sbatch",
        f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=1\n#SBATCH --time=10:00\n"
        f'export X="$({touches})"\neval "{touches}"\nsource {sam}/venv/bin/activate\n{touches}\n'
        f"cat <<EOF\n$({touches})\nEOF\nsrun torchrun --nproc_per_node=1 {sam}/train.py\n",
        0o755,
    )
    _write(sam / "pairs.jsonl", '{"source": "a", "target": "b"}\n')
    _write(sam / "model.py", places.python("model") + "def model(): ...\n")
    _write(sam / "data" / "data.json", "{}")
    for name in ("tokenizer.json", "tokenizer.model", "config.json", "pytorch_model.bin"):
        _write(sam / "model" / name, places.pickled("model-file"))
    _write(sam / "weights.pt", places.pickled("weights"))
    for room in ("audit", "templates", "jobs", "site/profiles"):
        (sam / "centre" / room).mkdir(parents=True)
    shutil.copytree(sam / "template", sam / "centre" / "templates" / "template")
    shutil.copy(sam / "venv.toml", sam / "centre" / "jobs" / "venv.toml")


def _write_work_tree(places: Places, tree: Path, server: str) -> None:
    """The directory that all commands are typed in: names that shadow ours, programs, settings of
    other programs, and a git repository whose configuration names programs."""
    for module in MODULES:
        _write(tree / f"{module}.py", places.python(f"here-{module}"))
    _write(tree / "fsdpkit" / "__init__.py", places.python("here-fsdpkit"))
    for program in PROGRAMS:
        _write(tree / program, places.shell(f"here-{program}"), 0o755)
    for name in ("venv", ".venv", "env"):
        shutil.copytree(places.sam / "venv", tree / name)
    _write(tree / "train.py", places.python("here-entry"))
    for name in ("job.toml", "defaults.toml", "jobs/t5.toml"):
        shutil.copy(places.sam / "venv.toml", _write(tree / name, ""))
    _write(tree / "hosts.toml", 'default = "sams-host"\n')
    _write(tree / "site" / "profiles" / "local.toml", "title = 1\n")
    _write(tree / "wandb" / "settings", f"[default]\nbase_url = {server}\n")
    _write(tree / "setup.py", places.python("here-setup"))
    backend = "[build-system]\nrequires = []\nbuild-backend = 'helper'\nbackend-path = ['.']\n"
    _write(tree / "pyproject.toml", backend)
    _write_repository(places, tree)


def _write_repository(places: Places, tree: Path) -> None:
    def git(*words: str) -> None:
        clean = {"PATH": "/usr/bin:/bin", "HOME": str(places.sam), "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", *words], cwd=tree, env=clean, check=True, capture_output=True)

    who = ("-c", "user.name=sam", "-c", "user.email=sam@example.org")
    git("init", "--quiet")
    git("add", "--all")
    git(*who, "commit", "--quiet", "-m", "all")
    canary = _write(places.sam / "git-canary", places.shell("git"), 0o755)
    for key in (
        *("core.fsmonitor", "core.pager", "core.editor", "core.sshCommand", "core.askPass"),
        *("core.alternateRefsCommand", "diff.external", "diff.all.textconv", "diff.all.command"),
        *("filter.all.clean", "filter.all.smudge", "filter.all.process", "gpg.program"),
        *("gpg.ssh.program", "credential.helper", "pager.diff", "pager.log", "alias.status"),
        *("uploadpack.packObjectsHook", "sequence.editor", "interactive.diffFilter"),
    ):
        git("config", key, str(canary))
    git("config", "core.hooksPath", str(tree / "hooks"))
    git("config", "log.showSignature", "true")
    git("config", "filter.all.required", "true")
    for hook in ("post-index-change", "reference-transaction", "fsmonitor-watchman"):
        _write(tree / "hooks" / hook, places.shell(f"git-hook-{hook}"), 0o755)
    _write(tree / ".gitattributes", "* filter=all diff=all\n")
    _write(tree / "train.py", (tree / "train.py").read_text() + "\n# changed\n")


def _write_victim(places: Places, own: str) -> None:
    """A job of the victim's own, files that must stay as they are, and git told to look at the
    work trees of others, as people do who share a directory."""
    alex = places.alex
    _write(alex / "own.py", "print('step 1 loss 2.5')\n")
    _write_job(alex / "own.toml", f"{alex}/own.py", {"launch": {"warm": "off"}})
    _write(alex / ".gitconfig", "[safe]\n\tdirectory = *\n")
    _write(alex / ".netrc", "machine 127.0.0.1 login victim password netrc\n", 0o600)
    _write(alex / ".bashrc", "# mine\n")
    _write(alex / ".config" / "wandb" / "settings", f"[default]\nbase_url = {own}\n")
    for name in ("notes.txt", "step-1/notes.txt"):
        _write(alex / "precious" / name, "mine\n")
    (alex / "runs").mkdir()
    (alex / "out").mkdir()


# ---- The stranger's runs


def make_runs(places: Places, server: str) -> list[str]:
    """Submitted by the stranger. Returns the canaries that this touched, which are theirs to touch:
    it shows that they are alive."""

    def submit(*words: str) -> str:
        done = run_as(places, STRANGER, words, cwd=places.sam)
        assert done.returncode == 0, done.stderr
        return done.stdout

    submit("sweep", "start", "sams.toml", "--cluster", "local")
    submit("scale", "start", "quiet.toml", "--nodes", "1,2", "--gpus", "1", "--cluster", "local")
    said = submit("submit", "full.toml", "--cluster", "local", "--wait")
    found = re.search(r"full-\d{8}-\d{6}-[0-9a-f]{4}", said)
    assert found, said
    run = places.sam / "runs" / found[0]
    while re.search("PENDING|RUNNING", submit("status", "--all")):
        time.sleep(1)
    submit("submit", "venv.toml", "--cluster", "local", "--dry-run")
    places.runs.update(run=run, bad=_spoiled(places, run, server))
    give(places.sam / "runs", STRANGER)
    shared = [places.runs["bad"], places.sam / "runs" / "sweeps"]
    for path in [each for top in shared for each in (top, *top.rglob("*"))]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o022)
    (places.sam / "runs").chmod(0o1777)  # so that nothing is refused only because it cannot write
    with open(places.runs["bad"] / "call.pkl", "rb") as file:
        pickle.load(file)
    return places.marks_now()


def _spoiled(places: Places, run: Path, server: str) -> Path:
    """A copy of the run, as its owner could have it: canaries in every file that could be loaded,
    settings that name the owner's server, links to the victim's files."""
    bad = run.with_name(f"{run.name[:-4]}0bad")
    shutil.copytree(run, bad, symlinks=True)
    for name in ("run.json", "job.json"):
        (bad / name).write_text((bad / name).read_text().replace(run.name, bad.name))
    for pickled in bad.rglob("*.pkl"):
        pickled.unlink()
        pickled.write_bytes(places.pickled("submission-pickle"))
    attempt = bad / "attempt-0"
    _write(bad / "call.pkl", places.pickled("call"))
    _write(attempt / "result-0.pkl", places.pickled("result"))
    _write(bad / "debug" / "attempt-0" / "flight-0" / "rank-0", places.pickled("flight"))
    _write(bad / "wandb" / "settings", f"[default]\nbase_url = {server}\n")
    _write(bad / "metrics.jsonl", '{"step": 1, "loss": 2.0, "time_s": 1700000000.0}\n')
    _write_checkpoint(places, bad / "checkpoints" / "step-10")
    for name in ("step-1", "step-2"):
        (bad / "checkpoints" / name).symlink_to(places.alex / "precious" / "step-1")
    for name in ("export", "tensorboard"):
        (bad / name).symlink_to(places.alex / "precious")
    _change_job(places, bad / "job.json", server)
    return bad


def _change_job(places: Places, path: Path, server: str) -> None:
    job = json.loads(path.read_text())
    job["environment"] = {
        "venv": f"{places.sam}/venv",
        "variables": places.variables("run-variables"),
    }
    job["track"] = {"to": ["mlflow", "wandb"], "uri": server}
    path.write_text(json.dumps(job))


def _write_checkpoint(places: Places, path: Path) -> None:
    """A whole one, by its own account."""
    tensors = {METADATA: "checkpoint-index", "__0_0.distcp": "checkpoint-tensors"}
    for name, canary in tensors.items():
        _write(path / name, places.pickled(canary))
    sizes = {name: (path / name).stat().st_size for name in tensors}
    told = Description(
        step=10,
        saved_at="2026-01-01T00:00:00+00:00",
        world_size=1,
        optimizer="AdamW",
        versions={"fsdpkit": "1"},
        progress={},
        files=sizes,
    )
    (path / DESCRIPTION).write_text(told.to_json())
    sums = {name: sha256_of_file(path / name) for name in (DESCRIPTION, *tensors)}
    (path / CHECKSUMS).write_text(checksum_lines(sums))
