"""`fsdpkit completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print the completion script of SHELL.

    \b
      eval "$(fsdpkit completion bash)"                 in ~/.bashrc
      eval "$(fsdpkit completion zsh)"                  in ~/.zshrc
      fsdpkit completion fish > ~/.config/fish/completions/fsdpkit.fish
    """
    from fsdpkit.cli.main import fsdpkit

    kind = get_completion_class(shell)
    assert kind is not None  # the three names above are click's own
    click.echo(kind(fsdpkit, {}, "fsdpkit", "_FSDPKIT_COMPLETE").source())
    return 0
