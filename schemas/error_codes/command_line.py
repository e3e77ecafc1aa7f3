"""TR-0xx and TR-8xx: the command line and the process itself."""

from __future__ import annotations

from typing import Final

from tailrace.schemas.error_codes.entry import ErrorCode
from tailrace.schemas.errors import DeadlineError, UsageError

CODES: Final = (
    ErrorCode(
        "TR-001",
        UsageError,
        "There is no command of this name",
        cause="The first word after `tailrace`, or after a group of commands, is not a command.",
        remedy="Run `tailrace --help`, or the help of the group, which lists its commands. The hint names the nearest.",
    ),
    ErrorCode(
        "TR-002",
        UsageError,
        "The command has no option of this name",
        cause="An option was misspelled, or belongs to another command.",
        remedy="Run the command with `--help`. The hint names the nearest option.",
    ),
    ErrorCode(
        "TR-003",
        UsageError,
        "An argument or an option that the command needs is missing",
        cause="The command was run without an argument or an option that has no default.",
        remedy="Run the command with `--help`; DETAIL shows its usage.",
    ),
    ErrorCode(
        "TR-004",
        UsageError,
        "A value or a combination of arguments cannot be used",
        cause="A value has the wrong form or is out of range, or arguments are given that exclude one another.",
        remedy="Run the command with `--help`; the message names the value.",
    ),
    ErrorCode(
        "TR-005",
        UsageError,
        "There is no error code of this name",
        cause="The argument of `tailrace explain` is not a registered code.",
        remedy="Run `tailrace explain`, which lists all codes. The hint names the nearest.",
    ),
    ErrorCode(
        "TR-006",
        UsageError,
        "Standard output cannot be written",
        cause="The file or device that the command's output goes to is full or broken.",
        remedy="Send the output elsewhere, or make room, and run the command again.",
    ),
    ErrorCode(
        "TR-800",
        DeadlineError,
        "The daemon did not stop in time",
        cause="After SIGTERM or SIGINT the daemon did not end its current Kafka transaction within the time limit, for"
        " example because a broker does not answer. The process has ended itself; nothing is lost or sent twice.",
        remedy="Start it again with `tailrace run`.",
    ),
)
