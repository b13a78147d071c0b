"""Command lines that cannot be read: with `--json` they end with a document too."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from jobs.commands.options import print_document

_WORDS = "jobs.words"


class JobsGroup(TyperGroup):
    """Prints the document of a refusal before Typer says what is wrong, and exits with 2."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words: what a command makes of them is lost when it refuses them."""
        ctx.meta[_WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Errors of usage, by what only they have: Typer keeps their class to itself.
            said = getattr(error, "format_message", None)
            if said is not None and "--json" in ctx.meta[_WORDS]:
                from jobs.output.documents import refused_document

                print_document(refused_document("usage", said()))
            raise
