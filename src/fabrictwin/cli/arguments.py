"""What several commands share: arguments, and the help of those that hold commands."""

from __future__ import annotations

from typing import Any, cast

import typer
from typer.core import TyperGroup

# for commands that read it once, and for those that keep something beside it or read it again
CLUSTER: Any = typer.Argument(
    ..., metavar="SPEC", help="A spec file, or a file that holds only a cluster; - reads it from stdin."
)
CLUSTER_FILE: Any = typer.Argument(..., metavar="SPEC", help="A spec file, or a file that holds only a cluster.")


class Group(TyperGroup):
    """A command that holds commands; its help has the first sentence of each whole."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Instead of Typer's, which cuts at 45 columns."""
        commands = [(name, cast(Any, self.get_command(ctx, name))) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=200)) for name, command in commands])
