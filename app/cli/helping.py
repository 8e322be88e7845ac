"""Layout of `--help`: commands grouped by purpose, whole sentences at 80 columns, and no names of Python types."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from typer.core import TyperGroup

from app.formats import first_clause
from app.streams import spelled

SECTIONS: Final = {
    "Run": ("run", "trace", "retry", "cancel", "kinds", "targets", "predict"),
    "Look": ("list", "show", "result", "logs", "metrics", "resources", "events", "artifacts", "compare", "trends"),
    "Label and remove": ("edit", "delete"),
    "Share": ("export", "junit", "page", "badge", "figures"),
    "Verify": ("check-environment", "check-checkpoints", "verify"),
    "Keep": ("usage", "retention", "orphans", "clean", "backup", "restore", "copy-database", "acquire"),
    "Serve": ("serve", "worker", "status", "migrate", "audit", "deliveries", "redeliver"),
}
"""Every command once, in the order of the help."""
SPOKEN: Final = {"str": "TEXT", "int": "NUMBER", "float": "NUMBER", "int range": "NUMBER", "float range": "NUMBER"}


class Group(TyperGroup):
    """The command group with its own help layout; the library has no public names for its context and formatter."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command whose help names the values to write instead of the type they are parsed as."""
        command: Any = super().get_command(ctx, cmd_name)
        # The library has no option for this; an attribute of the object takes precedence over the method of its class.
        for param in [] if command is None else command.params:
            vars(param)["display_type"] = partial(spoken, param, param.display_type)
        if command is not None:
            vars(command)["get_help"] = partial(_spelled, partial(type(command).get_help, command))
        return command

    def get_help(self, ctx: Any) -> str:
        """Return the overview in characters that standard output can encode."""
        return _spelled(super().get_help, ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands section by section."""
        widest = max(len(name) for name in self.list_commands(ctx))
        limit = formatter.width - 4 - widest
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), self._told(ctx, name, limit)) for name in names])

    def _told(self, ctx: Any, name: str, limit: int) -> str:
        command = self.get_command(ctx, name)
        return brief(command.help or "", limit) if command is not None else ""


def _spelled(help_of: Callable[[Any], str], ctx: Any) -> str:
    # The library would write UTF-8 to an output that is declared as ASCII.
    return spelled(help_of(ctx), sys.stdout.encoding or "utf-8")


def spoken(param: Any, original: Any, ctx: Any) -> str:
    """Return the placeholder for a value in the help: `TEXT`, `a|b`, or nothing if the name is clear already."""
    if param.metavar is not None:
        return ""
    word = str(original(ctx)).removeprefix("<").removesuffix(">").removeprefix("list[").removesuffix("]")
    return SPOKEN.get(word, word if "|" in word else word.upper())


def brief(text: str, limit: int) -> str:
    """Return as much of a command's first sentence as fits into `limit` characters and makes sense without the rest."""
    words = first_clause(text)
    while len(words) > limit and "," in words:
        words = words.rpartition(",")[0]
    return words
