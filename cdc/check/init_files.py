"""The files that `tailrace init` writes: a commented tailrace.toml, and the SQL for the role and the publications."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tailrace.cdc.check.proposal import Proposal
from tailrace.schemas.errors import ConfigError


def write_files(proposal: Proposal, configuration: Path, sql: Path) -> None:
    """Write both files. ConfigError (TR-141), and nothing is written, if one of them exists or cannot be written."""
    for each in (configuration, sql):
        if each.exists() or each.is_symlink():
            raise ConfigError(
                "TR-141",
                f'file "{each}" exists already',
                detail="`tailrace init` overwrites nothing.",
                hint=f"tailrace init --output {configuration.stem}-2.toml --dsn ...",
            )
    try:
        for path, text in ((configuration, configuration_text(proposal, sql)), (sql, sql_text(proposal))):
            # "x": a file that was created since is not overwritten either
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ConfigError(
            "TR-141",
            f'file "{error.filename}" cannot be written',
            detail=f"{error.strerror}.",
            hint=f"ls -ld {configuration.absolute().parent}",
        ) from None


def configuration_text(proposal: Proposal, sql: Path) -> str:
    """Return the text of tailrace.toml; it has no secret."""
    keyless = f"# Tables without a key, whose topics are logs of inserts: {', '.join(proposal.keyless)}\n"
    known = f"{proposal.brokers} found" if proposal.brokers is not None else "Kafka did not answer: the default"
    return f"""\
# Written by `tailrace init`. Before the first start: run {sql.name}, then `tailrace check`.
# Every key and its default: tailrace config show. ${{VAR}} is expanded in strings.

[source]
# The password is taken from PGPASSWORD, from ~/.pgpass, or with the whole string from the file dsn_file.
dsn = {_text(proposal.dsn)}
slot = {_text(proposal.slot)}           # created at the first start, never dropped automatically
publication = {_text(proposal.publication)}    # created by {sql.name}
tables = {_list(proposal.tables)}       # "!public.audit_*" excludes
{keyless if proposal.keyless else ""}\
# exclude = ["public.customers.password"]    # columns to leave out; mask and hash hide their values

[kafka]
bootstrap = {_text(proposal.bootstrap)}
prefix = {_text(proposal.prefix)}         # topics are {proposal.prefix}.public.orders, ...
partitions = 4              # of the topic of a new table
replication_factor = {proposal.replication_factor}      # brokers: {known}
# [kafka.options]           # librdkafka's options
# "security.protocol" = "SASL_SSL"

# [warehouse]               # views as Iceberg tables
# uri = "jdbc:postgresql://localhost/iceberg"
# location = "s3://bucket/warehouse"

# [views.orders]
# table = "public.orders"
"""


def sql_text(proposal: Proposal) -> str:
    """Return the statements, one a line, for the owner of the tables."""
    head = [
        "-- Written by `tailrace init`: the least rights, and the publications. Run it as the owner of the tables:",
        "--   psql -f FILE DATABASE",
        f"-- Then set a password: \\password {proposal.role}",
    ]
    server = ["", "-- Settings of the server, as a superuser:", *proposal.server] if proposal.server else []
    return "\n".join([*head, *server, "", "-- Role and publications:", *proposal.statements, ""])


def _text(value: str) -> str:
    """Return a TOML string: JSON's form is one, without the surrogate pairs of ASCII; a dollar sign is doubled."""
    return json.dumps(value.replace("$", "$$"), ensure_ascii=False)


def _list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"
