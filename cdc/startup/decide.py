"""Start-up decision: compare the stored position with server, slot, publications and topics.

It is made before anything is created, acquired or fenced, and again as the owner of the slot. "Position" is the slot's
newest record on the progress topic. The first matching line decides. Nothing is skipped, dropped or refilled
automatically.

    found                                                                   decision
    version before 14; wal_level not logical; SQL_ASCII                     TR-231, TR-202, TR-214   exit 4
    standby with a slot that is synchronized from the primary               TR-232   exit 4, retried while running
    standby without the slot of a position, or before version 16            TR-232   exit 4, retried while running
    publication that leaves out an operation, before the first start        TR-233   exit 4
    publication of more than inserts, with source.publish = "insert"        TR-233   exit 4

    no position, or only the record from before the slot's creation, and
      no slot, topics never written to                                      first start: slot, then copy all tables
      no slot, topics written to                                            TR-425   exit 6
      slot of another plugin, database or type, two-phase, temporary        TR-208   exit 4
      slot lost                                                             TR-204   exit 6
      slot not known to be ours (or the progress topic is missing)          TR-423   exit 6
      slot of a first start interrupted before its first record             continue; read all tables in windows

    a position, and
      another system identifier                                             TR-403   exit 6
      same timeline, but the WAL ends before the position: a backup         TR-422   exit 6
      timeline without the position's timeline in its history               TR-421   exit 6
      newer timeline that lacks WAL of the topics                           TR-421   exit 6
      slot missing, or not fully synchronized when its standby was promoted TR-402   exit 6
      slot of another plugin, database or type, two-phase, temporary        TR-208   exit 4
      slot invalidated: WAL removed, idle for too long, or other reasons    TR-204   exit 6
      slot confirmed past the position                                      TR-401   exit 6
      publication missing, recreated, or created later than the slot        TR-404   exit 6
      publication that leaves out an operation                              TR-426   exit 6
      topic of the cut missing, shorter, truncated, other partition count   TR-424   parks the table, or exit 6
        ... of a table that is parked for it, and missing or empty          ... and create it again (`renew_topics`)
      topic settings that break a promise (`sinks.kafka.admin`, checked last)     TR-302   exit 5
      slot at or before the position                                        continue after the position
        newer timeline that has all WAL of the topics                       ... on that timeline
        tables added to the publication                                     ... and read them in windows
        tables removed from the publication                                 ... and leave their topics unchanged
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres import slot as slots
from tailrace.cdc.postgres.catalog import Server
from tailrace.cdc.postgres.publication import Publications
from tailrace.cdc.postgres.slot import Slot
from tailrace.cdc.postgres.timeline import Identity
from tailrace.cdc.startup.cut_topics import check_unused, lost_topics
from tailrace.cdc.startup.recovery import copy_anew
from tailrace.cdc.tables.position import new_origin
from tailrace.schemas.config.model import Publish
from tailrace.schemas.error_codes import REFILL
from tailrace.schemas.errors import SourceError, StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import PositionRecord
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.kafka.offsets import Bounds

EPOCH = 1

_ON_STANDBY = 160000
"""The first server version that supports logical decoding on a standby."""
_FAILOVER = 170000
"""The first server version that synchronizes slots to a standby."""
_OWN_SLOT_OF_STANDBY = (
    "slot will be created on a standby: if the standby is lost, the slot is lost, too. VACUUM on the primary"
    " invalidates the slot unless hot_standby_feedback is on and primary_slot_name is set."
)


@dataclass(frozen=True, slots=True)
class Found:
    """The facts for a start-up decision; `tables` are the captured ones by topic, `topics` existing ones.

    `owned`: no other process writes. Without it the slot may briefly be ahead of the position, because Kafka
    acknowledges a commit before it can be read. `brokers` is their number: of several, one may not know all topics yet.
    """

    slot_name: str
    publication_name: str
    bootstrap: str
    prefix: str
    owned: bool
    server: Server
    identity: Identity
    slot: Slot | None
    stored: PositionRecord | None
    publications: Publications | None
    tables: Mapping[str, str]
    topics: Mapping[str, Sequence[Bounds]]
    brokers: int
    publish: Publish = "all"


@dataclass(frozen=True, slots=True)
class Start:
    """Continue from `origin`; if None, the slot must be created or acquired. `notes` are for the log.

    `lost` has the error of each table whose topic has lost records.
    """

    origin: PositionRecord | None
    notes: tuple[str, ...] = ()
    lost: Mapping[str, StateError] = field(default_factory=dict)


def decide(found: Found) -> Start:
    """Return the record to continue from. SourceError or StateError if a person must decide."""
    found.server.check()
    if found.server.in_recovery:
        _check_standby(found)
    hint = copy_anew(found.prefix, found.slot_name if found.slot else None)
    if found.stored is None or not found.stored.is_begun:
        return _begin(found, hint)
    return _go_on(found, found.stored, hint)


def _begin(found: Found, hint: str) -> Start:
    stored, slot, now = found.stored, found.slot, found.identity
    if slot is None:
        if stored is None:
            check_unused(Topics(found.prefix), found.tables, found.topics, found.bootstrap)
        if found.publications is not None:
            publication.check_publishes(found.publications, found.publish, begun=False, hint=hint)
        return Start(None, (_OWN_SLOT_OF_STANDBY,) if found.server.in_recovery else ())
    slot.check(found.server.database)
    slot.check_not_lost(slot.confirmed_flush_lsn, now.lsn, REFILL)
    if not found.owned:
        return Start(None)
    # our slot was created after this record, and nothing has been confirmed to it since
    if (
        stored is None
        or stored.here.system_identifier != now.system_identifier
        or slot.confirmed_flush_lsn < stored.here.flushed_lsn
    ):
        raise _unknown(found, slot)
    publications = publication.check_same(
        found.publications, found.publication_name, (stored.publication_oid, stored.nokey_oid), REFILL
    )
    publication.check_publishes(publications, found.publish, begun=True, hint=hint)
    origin = new_origin(
        EPOCH,
        slot.confirmed_flush_lsn,
        now.system_identifier,
        now.timeline,
        publications.oids,
        found.tables.values(),
    )
    return Start(origin, ("first start interrupted before its first record: all tables are read in windows",))


def _go_on(found: Found, stored: PositionRecord, hint: str) -> Start:
    here, slot, now = stored.here, found.slot, found.identity
    now.check(stored, REFILL)
    if slot is None or slot.is_half_synced:
        raise slots.missing(found.slot_name, here.flushed_lsn, now.lsn, _why_missing(found, here.timeline), REFILL)
    slot.check(found.server.database)
    slot.check_not_lost(here.flushed_lsn, now.lsn, REFILL)
    if found.owned:
        slot.check_not_ahead(here.flushed_lsn, REFILL)
    publications = publication.check_same(
        found.publications, found.publication_name, (stored.publication_oid, stored.nokey_oid), REFILL
    )
    publication.check_publishes(publications, found.publish, begun=True, hint=hint)
    lost = lost_topics(here, Topics(found.prefix), found.tables, found.topics, found.bootstrap, hint)
    notes = []
    if promoted := now.promoted(here.timeline):
        notes.append(f"{promoted} It has all changes that are on the topics.")
    if found.server.version >= _FAILOVER and not slot.failover and not found.server.in_recovery:
        notes.append(
            "slot without failover: a promoted standby will not have it; on a replication connection:"
            f' ALTER_REPLICATION_SLOT "{slot.name}" (FAILOVER true)'
        )
    return Start(replace(stored, here=replace(here, timeline=now.timeline)), tuple(notes), lost)


def _why_missing(found: Found, timeline: int) -> str:
    promoted = found.identity.promoted(timeline)
    if not promoted:
        return ""
    if found.server.version < _FAILOVER:
        return f"{promoted} Before PostgreSQL 17 a standby has none of its primary's logical slots. "
    return (
        f"{promoted} A standby has its primary's failover slots only with sync_replication_slots and"
        " hot_standby_feedback on, primary_slot_name set, and dbname in primary_conninfo. "
    )


def _check_standby(found: Found) -> None:
    """Raise SourceError (TR-232) unless the standby has its own slot or can create one at a first start."""
    if found.slot is not None:
        if not found.slot.synced:
            return
        state = "is synchronized from the primary; it can be read after the server is promoted"
    elif found.stored is not None and found.stored.is_begun:
        state = "does not exist on it; if it exists on the primary, it can be read there"
    elif found.server.version < _ON_STANDBY:
        state = "cannot be created on it: before PostgreSQL 16, a standby has no logical decoding"
    else:
        return
    raise SourceError(
        "TR-232",
        "the server is a standby",
        detail=f'Slot "{found.slot_name}" {state}.',
        hint="Let source.dsn connect to the primary: host=a,b target_session_attrs=read-write",
    )


def _unknown(found: Found, slot: Slot) -> StateError:
    topics = Topics(found.prefix)
    written = sum(1 for topic in found.tables if any(bounds.end for bounds in found.topics.get(topic, ())))
    return StateError(
        "TR-423",
        f'slot "{slot.name}" exists, but topic "{topics.progress}" has no position for it',
        detail=f"The slot is confirmed up to {format_lsn(slot.confirmed_flush_lsn)}; {written} of {len(found.tables)}"
        " topics of its tables have been written to. Either the progress topic was deleted, or the slot belongs to"
        " a pipeline with another kafka.prefix, which would lose the changes that this pipeline reads.",
        hint=copy_anew(found.prefix, slot.name)
        if written
        else f'slot = "{slot.name}_2"  # under [source]: a slot of its own; then: tailrace run',
    )
