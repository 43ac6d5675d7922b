"""`refold completion`: completion of commands and options by the shell."""

from typing import Annotated

import typer
from typer._completion_shared import get_completion_script

from refold.core.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


def print_completion(shell: Annotated[str, "SHELL", f"One of {', '.join(SHELLS)}."]) -> None:
    """Print the completion script of a shell. Load it with `eval "$(refold completion bash)"` in ~/.bashrc.

    For zsh, add `eval "$(refold completion zsh)"` to ~/.zshrc, after compinit. For fish, write the script to
    ~/.config/fish/completions/refold.fish.
    """
    if shell not in SHELLS:
        raise UsageError(f"there is no completion for {shell}", hint=f"refold completion {' | '.join(SHELLS)}")
    typer.echo(get_completion_script(prog_name="refold", complete_var="_REFOLD_COMPLETE", shell=shell))
