"""Base classes of all commands and groups; usage errors in the form of all other errors."""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from tailrace.schemas.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
_HELP = ["-h", "--help"]


class Command(TyperCommand):
    """A command whose help names arguments by metavar: `VIEW...`, not `{VIEW...}... <list[str]>`."""

    def get_help_option_names(self, ctx: Any) -> list[str]:
        return list(ctx.help_option_names)  # Typer's own method returns them in the order of a set

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_version(super().get_params(ctx), ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _about(ctx):
            return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        names = [name if needed else f"[{name}]" for name, needed, _ in _arguments(self, ctx)]
        return [self.options_metavar or "", *names]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, text) for name, _, text in _arguments(self, ctx)]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        _options(self, ctx, formatter)


class Group(TyperGroup):
    """A group of commands."""

    def get_help_option_names(self, ctx: Any) -> list[str]:
        return list(ctx.help_option_names)

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_version(super().get_params(ctx), ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _about(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is named first. Raises UsageError TR-001 if it does not exist."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            close = _close(name, self.list_commands(ctx))
            raise _error(
                "TR-001",
                f'unknown command "{ctx.command_path} {name}"',
                ctx,
                f"{ctx.command_path} {close}" * bool(close),
            )
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _options(self, ctx, formatter)
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        # print the whole first sentence; Typer truncates it
        rows = [(name, " ".join((command.help or "").split("\n\n")[0].split())) for name, command in commands]
        with formatter.section("Commands"):
            formatter.write_dl([(name, re.split(r"(?<=[^.]\.) ", text)[0]) for name, text in rows])


COMMANDS: Final = {
    "init": "init",
    "check": "check",
    "run": "run",
    "status": "inspect",
    "tail": "inspect",
    "verify": "verify",
    "wait": "inspect",
    "explain": "explain",
    "version": "version",
    "snapshot": "snapshot",
    "table": "table",
    "slot": "slot",
    "views": "views",
    "dev": "dev",
    "config": "config",
}
"""The commands of `tailrace`, in the order of its help, and their modules, with a function of that name or `app`."""


class _Commands(Mapping[str, Any]):
    """The commands of `tailrace`, each built when it is first used: to build all is a tenth of a start of `run`."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            module = import_module(f"tailrace.cdc.cli.{COMMANDS[name]}")
            parent = App(add_completion=False)
            if hasattr(module, "app"):
                parent.add_typer(module.app, name=name)
            else:
                parent.command()(getattr(module, name))
            self._built[name] = typer.main.get_group(parent).commands[name]
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class RootGroup(Group):
    """The command `tailrace` itself."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]  # only read

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


def _with_version(params: list[Any], ctx: Any) -> list[Any]:
    """Add the root's --version to a command's parameters; its help does not show it again."""
    root = ctx.find_root().command.params
    return [*params, *(param for param in root if "--version" in param.opts and param not in params)]


@contextmanager
def _about(ctx: Any) -> Iterator[None]:
    """Set the command of a usage error that lacks it, such as the one for a missing value."""
    try:
        yield
    except TyperException as error:
        if getattr(error, "ctx", ctx) is None:
            error.ctx = ctx  # type: ignore[attr-defined]
        raise


def _arguments(command: Any, ctx: Any) -> Iterator[tuple[str, bool, str]]:
    """Yield name, whether it is required, and help of each argument."""
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx) if param.param_type_name == "argument" else None
        if record is not None:
            yield param.metavar or param.name.upper(), param.required, record[1].replace("[required]", "").rstrip()


def _options(command: Any, ctx: Any, formatter: Any) -> None:
    shown = [*command.params, command.get_help_option(ctx)]
    records = [param.get_help_record(ctx) for param in shown if param.param_type_name == "option"]
    with formatter.section("Options"):
        formatter.write_dl([record for record in records if record is not None])


class App(typer.Typer):
    """A group whose commands are `Command`s and that accepts -h and --help."""

    def __init__(self, *, group: type[Group] = Group, **settings: Any) -> None:
        super().__init__(
            cls=group,
            no_args_is_help=True,
            context_settings={"help_option_names": _HELP, "max_content_width": 100},
            rich_markup_mode=None,  # importing rich takes longer than the rest of --help
            **settings,
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """Add a command; `settings` are those of Typer."""
        context = {"help_option_names": _HELP, "max_content_width": 100}
        return super().command(name, cls=Command, context_settings=context, **settings)


def usage_error(error: TyperException) -> UsageError:
    """Convert a Typer error to a UsageError with the usage line and the nearest known name."""
    kind, ctx = type(error).__name__, getattr(error, "ctx", None)
    words = error.format_message().removeprefix("Invalid value: ").rstrip(".").replace("'", '"')
    words = f"{words[:1].lower()}{words[1:]}"
    option = getattr(error, "option_name", "")
    if kind == "MissingParameter":
        return _error("TR-003", words, ctx)
    if kind == "NoSuchOption" and ctx is not None:
        known = [name for param in ctx.command.get_params(ctx) for name in param.opts if name.startswith("--")]
        moved = _after_the_command(option, ctx)
        return _error("TR-002", f'unknown option "{option}"', ctx, _close(option, known), moved)
    return _error("TR-004", words, ctx)


def _after_the_command(option: str, ctx: Any) -> str:
    """Return the command line with an option of all commands moved from the group to the command, if it was that."""
    given = sys.argv[1:]
    at = next((n for n, word in enumerate(given) if word.partition("=")[0] == option), None)
    if option != "--config" or at is None or not hasattr(ctx.command, "commands"):
        return ""
    end = at + (1 if "=" in given[at] else 2)
    command = [*given[:at], *given[end:]] or ["COMMAND"]
    return shlex.join(["tailrace", *command, *given[at:end]])


def _error(code: str, words: str, ctx: Any, meant: str = "", paste: str = "") -> UsageError:
    path = ctx.command_path if ctx is not None else "tailrace"
    usage = " ".join(ctx.get_usage().split()) if ctx is not None else "Usage: tailrace [OPTIONS] COMMAND [ARGS]..."
    asked = paste or f"{path} --help"
    return UsageError(code, words, detail=usage, hint=f'Did you mean "{meant}"? {asked}' if meant else asked)


def _close(given: str, known: list[str]) -> str:
    close = difflib.get_close_matches(given, known, n=1)
    return close[0] if close else ""
