"""posthouse completion: the script that teaches a shell our commands."""

from __future__ import annotations

import click

from .option import pass_session
from .root import Command, main
from .session import Session


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@pass_session
def completion(session: Session, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(posthouse completion bash)"            in ~/.bashrc
    zsh:   eval "$(posthouse completion zsh)"             in ~/.zshrc
    fish:  posthouse completion fish | source             in ~/.config/fish/config.fish
    """
    from click.shell_completion import BashComplete, get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    maker = kind(main, {}, "posthouse", "_POSTHOUSE_COMPLETE")
    # Bash is asked for its version by click; the script itself does not depend on the answer.
    source = maker.source_template % maker.source_vars() if kind is BashComplete else maker.source()
    if session.json:
        session.emit({"shell": shell, "script": source})
    else:
        click.echo(source)
