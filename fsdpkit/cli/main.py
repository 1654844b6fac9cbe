"""The entry point: finds the command, turns errors into a message and an exit code."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from importlib import import_module
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import click

from fsdpkit import __version__
from fsdpkit.cli.groups import Verbs
from fsdpkit.cli.json_output import begin, kind_of, print_error
from fsdpkit.cli.terminal import ReaderGoneError, at_work, guard, let_go
from fsdpkit.errors import (
    ConfigError,
    FsdpkitError,
    NotFoundError,
    SubmissionInterrupted,
    UsageError,
)

SECTIONS = {
    "Run": {
        "init": "Write a first job file, and your account into your defaults.",
        "submit": "Submit a job: by default, T5 training on 2 nodes x 4 GPUs.",
        "resume": "Continue a run that ended, on other resources if asked.",
        "cancel": "End a run, saving a last checkpoint if asked.",
        "hold": "Get nodes once, and start one run after another on them.",
        "release": "Give back the nodes of a hold.",
    },
    "Look at runs": {
        "status": "Show the state of runs.",
        "watch": "Watch a run live.",
        "logs": "Print or follow the ranks' output, or only the errors.",
        "diagnose": "Say why a run failed, or why it does not start.",
        "report": "Write a run's report as one HTML file.",
        "usage": "Show what runs used of their GPU-hours, and what was wasted.",
        "compare": "Compare runs: settings and results.",
        "track": "Send a run's metrics to MLflow, W&B or TensorBoard.",
    },
    "Look inside a running job": {
        "shell": "Open a shell inside a running job, or run a command there.",
        "stacks": "Show the current stack of each rank of a running job.",
        "top": "Show GPU, memory, CPU and network of each node, live.",
    },
    "Before you queue": {
        "check": "Check this login node, or measure nodes before training.",
        "plan": "Predict whether a job fits GPU memory, before it queues.",
        "nodes": "Show nodes that failed a run and that new jobs avoid.",
        "jobs": "List jobs, or show one.",
        "sites": "List cluster profiles, or show one.",
        "templates": "List templates, or show one.",
    },
    "Many runs": {
        "sweep": "Try many settings of a job; optionally continue only the best.",
        "scale": "Measure how a job scales with nodes, for a proposal.",
    },
    "Data and checkpoints": {
        "data": "Prepare training data, or inspect it.",
        "checkpoint": "List, verify, export or save a run's checkpoints.",
        "generate": "Generate text with a trained T5, from arguments or a file.",
        "prune": "Show disk use of ended runs, and delete old checkpoints.",
    },
    "For administrators": {
        "site": "Draft or compare a cluster profile, or build pages.",
        "template": "Create, check and compare templates.",
        "publish": "Publish templates, profiles and jobs, signed.",
        "audit": "Count what a centre's runs used, how they ended, and why.",
    },
    "For your tools": {
        "completion": "Print the completion script for your shell.",
        "skill": "Print instructions for an assistant that uses fsdpkit.",
    },
}
"""Of `fsdpkit --help`: each command with its sentence, so that no command is imported for it."""

COMMANDS = {name: says for section in SECTIONS.values() for name, says in section.items()}

_ELSEWHERE = {
    "submit": (
        *("run", "launch", "start", "apply"),
        *("sbatch", "srun", "torchrun", "python", "accelerate", "deepspeed"),
    ),
    "resume": ("rerun", "restart", "continue", "requeue"),
    "status": ("ls", "list", "ps", "queue", "squeue", "sacct", "show", "info", "get", "history"),
    "watch": ("dashboard", "monitor", "ui"),
    "diagnose": ("describe", "inspect", "why", "debug"),
    "usage": ("seff", "reportseff", "efficiency", "jobstats", "sreport", "account", "energy"),
    "top": ("gpu", "gpus", "nvidia-smi", "htop"),
    "cancel": ("kill", "stop", "scancel"),
    "hold": ("salloc", "sinteractive", "interactive", "allocate"),
    "logs": ("tail", "cat", "output"),
    "shell": ("ssh", "attach", "exec"),
    "prune": ("rm", "clean", "delete"),
    "track": ("sync", "wandb", "mlflow"),
    "--version": ("version",),
    "--help": ("help",),
}
"""What other programs call the same."""


_HIDDEN = ("_remote",)
_DEPENDENCIES = ("cloudpickle", "jinja2", "msgspec", "psutil", "rich", "submitit", "tomli")
"""What commands need besides click, and a laptop need not have."""
_WORDS = "fsdpkit.words"
"""In click's context: the command and all that follows it, as typed."""


_OWN_TERMINAL = ("publish", "shell", "top", "watch")
"""Commands that draw all of it, or let others ask there: ssh-keygen for the passphrase of a key."""


class _Commands(Verbs):
    """`new` is `command` in `fsdpkit.cli.new`, which is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS and cmd_name not in _HIDDEN:
            return None
        command = import_module(f"fsdpkit.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def instead_of(self, word: str, ctx: click.Context) -> str:
        here = (ours for ours, theirs in _ELSEWHERE.items() if word in theirs)
        known = f" Here it is {ours!r}." if (ours := next(here, None)) else ""
        return known or super().instead_of(word, ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), says) for name, says in commands.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = self.make_parser(ctx).parse_args(list(args))[1]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        words: list[str] = ctx.meta[_WORDS]
        for before, word in pairwise(["", *takewhile(lambda word: word != "--", words)]):
            if not word or re.fullmatch("--[a-z-]+=", word):
                empty = word[:-1] or (before if before.startswith("-") else "An argument")
                ctx.fail(f"{empty} is empty, as a shell variable that is not set.")
        if words and not words[0].startswith("_") and (host := _host(ctx)) is not None:
            name, command, rest = self.resolve_command(ctx, words)
            from fsdpkit.remote.commands import HERE, run_there

            if command is not None and name not in HERE:
                # Wrong usage is reported here, before ssh asks for a password.
                with command.make_context(name, list(rest), parent=ctx) as read:
                    return run_there(host, words, read.params)
        if not words or words[0] in _OWN_TERMINAL:
            return super().invoke(ctx)
        with at_work(f"fsdpkit {words[0]} is at work"):
            return super().invoke(ctx)


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"fsdpkit, version {__version__}{_commit()}")
        ctx.exit()


def _commit() -> str:
    """` (commit …)`: of a checkout the newest, else as it was built (hatch_build.py)."""
    here = Path(__file__).resolve().parents[1]
    git = here.parent / ".git"
    with contextlib.suppress(OSError):
        head = (git / "HEAD").read_text("ascii").strip() if git.is_dir() else ""
        name = head.removeprefix("ref: ")
        commit = here / "commit.txt" if not head else git / name
        told = head if head and name == head else commit.read_text("ascii").strip()
        if re.fullmatch("[0-9a-f]{40}(-dirty)?", told):
            return f" (commit {told[:12]}{told[40:]})"
    return ""


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--host", metavar="LOGIN", help="Run the command on this login node, over ssh.")
@click.option("--no-host", is_flag=True, help="Run it here, ignoring the default host.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and its commit, then exit.",
)
def fsdpkit(host: str | None, no_host: bool) -> None:
    """Multi-node PyTorch FSDP runs on Slurm.

    \b
      fsdpkit submit --nodes 2 --gpus 4
      fsdpkit status
      fsdpkit --host LOGIN submit train.py      # from a laptop

    Exit status: 0 done, 2 wrong usage, 65 a file or template is wrong, 66 not found, 69 the
    scheduler or the login node refused or did not answer, 74 a directory cannot be read or
    written, 78 a check failed; `--wait` exits with the job's own status.
    """


def _host(ctx: click.Context) -> Any:
    """The login node that runs the command; None: this machine does."""
    given, here = ctx.params["host"], ctx.params["no_host"]
    if here and given is not None:
        raise click.UsageError("--host and --no-host: choose one.")
    from fsdpkit.remote.hosts import chosen_host

    return None if here else chosen_host(given)


def _without(error: ModuleNotFoundError) -> str | None:
    """What to do where a module is not installed that a command needs; None for other modules."""
    name = (error.name or "").partition(".")[0]
    if name == "torch":
        return (
            f"this command needs torch, which is not installed in {sys.prefix}: "
            "pip install 'fsdpkit[torch]' there, or run it where jobs run"
        )
    if name in _DEPENDENCIES:
        return (
            f"module {name} is not installed here: install fsdpkit with its dependencies, or "
            "run the command on a login node that has it (--host LOGIN)"
        )
    return None


def main() -> None:
    """Run, and exit. Errors of ours end with their own code and one message on standard error."""
    gc.set_threshold(50_000)  # looking for garbage while 260 modules load takes 3% of a dry run
    guard()
    begin()
    try:
        status = fsdpkit(prog_name="fsdpkit", standalone_mode=False)
    except click.ClickException as error:
        from fsdpkit.cli.misnamed import what_follows

        error.show()
        more = what_follows(error, fsdpkit, sys.argv[1:])
        click.echo(more.lstrip("\n"), err=True, nl=bool(more))
        status = error.exit_code
        print_error("usage", error.format_message() + more, status)
    except (click.Abort, KeyboardInterrupt) as error:
        cause = error.__cause__  # click's Abort has the KeyboardInterrupt as its cause
        told = str(cause) if isinstance(cause, SubmissionInterrupted) else "interrupted"
        status = _failed("interrupted", told, 130)
    except (UsageError, ConfigError, NotFoundError) as error:
        from fsdpkit.cli.misnamed import hints

        told = str(error) + hints(sys.argv[1:], str(error))
        status = _failed(kind_of(error), told, error.exit_code)
    except FsdpkitError as error:
        status = _failed(kind_of(error), str(error), error.exit_code)
    except ModuleNotFoundError as error:
        message = _without(error)
        if message is None:
            raise
        status = _failed("missing_dependency", message, 69)
    except ReaderGoneError:
        let_go()
        status = 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        told = f"{where}{error.strerror or error}"
        if isinstance(error, FileNotFoundError) and not where:  # os.getcwd names no path
            told = "the current directory does not exist any more: change to another one"
        status = _failed("storage", told, 74)
    sys.exit(status if isinstance(status, int) else 0)


def _failed(kind: str, message: str, status: int) -> int:
    click.echo(f"fsdpkit: {message}", err=True)
    print_error(kind, message, status)
    return status
