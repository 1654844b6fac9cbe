"""Commands with verbs of their own: each in a module that is imported when it is asked for, or all
in one, the first of them unnamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click


class Verbs(click.Group):
    """A group whose verb `new` is `command` in `fsdpkit.cli.<module>_new`, or in `fsdpkit.cli.new`.

    verbs: each with its sentence for the group's `--help`, which so needs no verb's module.
    hidden: verbs that `--help` does not name. elsewhere: what other programs call a verb.
    """

    def __init__(
        self,
        *args: Any,
        verbs: Mapping[str, str],
        module: str = "",
        hidden: Sequence[str] = (),
        elsewhere: Mapping[str, Sequence[str]] | None = None,
        **about: Any,
    ) -> None:
        super().__init__(*args, **about)
        self._prefix = f"{module}_" if module else ""
        self._verbs, self._known = verbs, (*verbs, *hidden)
        self._elsewhere = elsewhere or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._known:
            return None
        command = import_module(f"fsdpkit.cli.{self._prefix}{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._known and not args[0].startswith("-"):
            from fsdpkit.config.spelling import nearest

            here = (ours for ours, theirs in self._elsewhere.items() if args[0] in theirs)
            known = f" Here it is {ours!r}." if (ours := next(here, None)) else ""
            ctx.fail(f"There is no command {args[0]!r}.{known or nearest(args[0], self._verbs)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._verbs.items()))


START = "start"


class FirstWordOrCommand(click.Group):
    """A group whose command `start` need not be named: its first word is none of the others."""

    def __init__(self, *args: Any, first: str, **about: Any) -> None:
        super().__init__(*args, **about)
        self.first = first

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            if len(args) > 1 and not any(word.startswith("-") for word in args[:2]):
                verbs = ", ".join(self.list_commands(ctx))  # what starts one takes a single name
                ctx.fail(
                    f"There is no command {args[0]!r}. Commands: {verbs}; or {self.first} alone."
                )
            args = [START, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in self.commands if name != START]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [f"{self.first} [OPTIONS] | COMMAND NAME [OPTIONS]"]
