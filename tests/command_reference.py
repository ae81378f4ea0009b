"""The page of all commands, written from the commands themselves: `docs/commands.md`."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from seer.cli.app import command as whole

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"

HEAD = """# Commands

Every command with its options, as `seer COMMAND --help` tells them. Results go to standard output;
notes and warnings go to standard error. This page is written by `python tests/documents.py`, and a
test compares it with the commands.
"""


def leaves(command: Any = None, name: str = "seer") -> Iterator[tuple[str, Any]]:
    """(full name, command) of every command that does something."""
    command = command or whole()
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for word, child in children.items():
        yield from leaves(child, f"{name} {word}")


def example(command: Any) -> str:
    """The example in the help of a command, or nothing."""
    text = " ".join((command.help or "").split())
    return text.partition("Example: ")[2].strip()


def reference() -> str:
    """The text of the page."""
    parts = [HEAD]
    for name, command in leaves():
        parts.append(f"## {name}\n\n{_description(command)}\n")
        parts.append(f"```\n{example(command)}\n```\n")
        parts.append("\n".join(_rows(command)) + "\n")
    parts.append(f"## Exit codes\n\n{whole().epilog}\n")
    return "\n".join(parts)


def options(command: Any) -> list[Any]:
    """The parameters of a command that a user can give, without `--help`."""
    return [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]


def _description(command: Any) -> str:
    text = (command.help or "").partition("Example:")[0]
    paragraphs = [" ".join(p.split()) for p in text.split("\n\n")]
    return "\n\n".join(p for p in paragraphs if p)


def _rows(command: Any) -> Iterator[str]:
    yield "| argument or option | meaning | default |"
    yield "|---|---|---|"
    for parameter in options(command):
        names = ", ".join(parameter.opts)
        if parameter.param_type_name == "argument":
            names = parameter.metavar or parameter.name.upper()
        takes = _takes(parameter)
        shown = f"`{names}{' ' + takes if takes else ''}`".replace("|", "\\|")
        yield f"| {shown} | {parameter.help or ''} | {_default(parameter)} |"


def _takes(parameter: Any) -> str:
    """What an option is followed by; only public attributes, which versions of typer share."""
    if parameter.param_type_name == "argument" or getattr(parameter, "is_flag", False):
        return ""
    if isinstance(parameter.default, Enum):
        return "|".join(str(choice.value) for choice in type(parameter.default))
    return str(parameter.metavar or parameter.name.rstrip("_").upper())


def _default(parameter: Any) -> str:
    value = getattr(parameter.default, "value", parameter.default)
    if parameter.required or getattr(parameter, "is_flag", False) or not value:
        return "required" if parameter.required else ""
    return f"{value:,}" if isinstance(value, int) else str(value)
