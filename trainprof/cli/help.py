"""--help pages: usage, what the verb does, examples, then the options in groups."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

_OPTIONS: Final = "Options"
_MOST_CELLS: Final = 26  # of an option with its value


class _HelpPage:
    """Shows the epilog, a command a line, as examples, and options under their panel's name."""

    epilog: str | None

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        super().format_help_text(ctx, formatter)  # type: ignore[misc]
        with formatter.section("Examples"):
            for example in (self.epilog or "").splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            record = parameter.get_help_record(ctx)
            if record is not None:
                panel = getattr(parameter, "rich_help_panel", None) or _OPTIONS
                if parameter.param_type_name == "argument":
                    panel, record = "Arguments", (parameter.metavar, record[1])
                groups.setdefault(panel, []).append(record)
        last = groups.pop(_OPTIONS, [])  # --help stands there
        for heading, records in [*groups.items(), (_OPTIONS, last)]:
            with formatter.section(heading):
                formatter.write_dl(records, col_max=_MOST_CELLS)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Shown by `format_help_text`."""


class VerbHelp(_HelpPage, TyperCommand):
    """A verb's page."""


class ProgramHelp(_HelpPage, TyperGroup):
    """The page of trainprof itself: the verbs, then its options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)
