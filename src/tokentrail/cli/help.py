"""`--help` that can be read in any terminal: options under the headings of their panels, no name cut off."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Command(TyperCommand):
    """A command whose help groups options by `rich_help_panel`, in the order in which they are declared."""

    # The types of `ctx` and `formatter` come from click, which newer typer holds inside itself.
    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panel = getattr(parameter, "rich_help_panel", None) or kind
            sections.setdefault(panel, []).append(record)
        for panel in sorted(sections, key=lambda name: {"Arguments": 0, "Options": 2}.get(name, 1)):
            with formatter.section(panel):
                formatter.write_dl(sections[panel])
