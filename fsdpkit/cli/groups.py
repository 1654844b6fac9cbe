"""Commands with verbs of their own, the first of them perhaps unnamed."""

from __future__ import annotations

from typing import Any

import click


class Verbs(click.Group):
    """A group that lists its verbs in their order, and names the one next to a mistyped word."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def instead_of(self, word: str, ctx: click.Context) -> str:
        """What to say of a word that is no verb, with a space before it."""
        from fsdpkit.config.spelling import nearest

        return nearest(word, self.list_commands(ctx))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"There is no command {args[0]!r}.{self.instead_of(args[0], ctx)}")
        return super().resolve_command(ctx, args)


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
