"""How to start: the stored position held against the server, the slot, the publications and the topics.

Asked before anything is made, owned or fenced, and again as the owner of the slot. "Position" is the newest record of
the slot on the progress topic; the first line that fits decides. Nothing is skipped, dropped or filled anew by itself.

    found                                                                   decision
    version before 14; wal_level not logical; SQL_ASCII                     TR-231, TR-202, TR-214   exit 4
    a standby whose slot is kept in step with the primary's                 TR-232   exit 4, in mid-run tried again
    a standby without the slot of a position, or before version 16          TR-232   exit 4, in mid-run tried again
    publication that leaves out a kind of change, before the first start    TR-233   exit 4
    publication of more than inserts, with source.publish = "insert"        TR-233   exit 4

    no position, or only the record from before the slot was made, and
      no slot, topics never written to                                      first start: slot, then a copy of all
      no slot, topics written to                                            TR-425   exit 6
      slot of another plugin, database or type, two-phase, temporary        TR-208   exit 4
      slot lost                                                             TR-204   exit 6
      slot that nothing shows to be ours (or the progress topic is gone)    TR-423   exit 6
      slot of a first start that was cut short before its first record      go on; all tables are read in windows

    a position, and
      another system identifier                                             TR-403   exit 6
      the same timeline, but WAL that ends before the position: a backup    TR-422   exit 6
      a timeline that the position's is not in the history of               TR-421   exit 6
      a newer timeline, which lacks WAL that is on the topics               TR-421   exit 6
      slot missing, or half synchronized when its standby was promoted      TR-402   exit 6
      slot of another plugin, database or type, two-phase, temporary        TR-208   exit 4
      slot invalidated: WAL removed, idle for too long, or other reasons    TR-204   exit 6
      slot confirmed beyond the position                                    TR-401   exit 6
      publication gone, made again, or made later                           TR-404   exit 6
      publication that leaves out a kind of change                          TR-426   exit 6
      topic of the cut gone, shorter, cut off, or with other partitions     TR-424   exit 6
      topic settings that break a promise (`sinks.kafka.admin`, after the rest)   TR-302   exit 5
      slot at or behind the position                                        go on behind the position
        newer timeline that has all of the topics                           ... on it
        tables added to the publication                                     ... and read them in windows
        tables taken out of it                                              ... and leave their topics as they are
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres import slot as slots
from tailrace.cdc.postgres.catalog import Server
from tailrace.cdc.postgres.publication import Publications
from tailrace.cdc.postgres.slot import Slot
from tailrace.cdc.postgres.timeline import Identity
from tailrace.cdc.startup.cut_topics import check_cut, check_unused
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
"""The first version that decodes on a standby."""
_FAILOVER = 170000
"""The first version that carries slots over to a standby."""
_OWN_SLOT_OF_STANDBY = (
    "the server is a standby, and the slot will be its own: if the standby is lost, so is the slot. The primary's"
    " vacuum invalidates it unless hot_standby_feedback is on and primary_slot_name is set."
)


@dataclass(frozen=True, slots=True)
class Found:
    """All that a start is decided by. `tables` are the captured ones by their topic, `topics` those that exist.

    `owned`: nobody else writes. Until then the slot may be ahead of the position for a moment, since the answer to a
    commit comes before it can be read. `brokers`: of several, one may not know of all topics yet.
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
    """Go on from `origin`; None: the slot is to be made, or owned first. `notes` are for the log."""

    origin: PositionRecord | None
    notes: tuple[str, ...] = ()


def decide(found: Found) -> Start:
    """Say where to go on from. SourceError or StateError where a person must decide."""
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
    # ours was made after this record, and nobody has confirmed anything to it since
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
    return Start(origin, ("the first start was cut short before its first record: all tables are read in windows",))


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
    check_cut(here, Topics(found.prefix), found.tables, found.topics, hint)
    notes = []
    if promoted := now.promoted(here.timeline):
        notes.append(f"{promoted} It has all that the topics hold.")
    if found.server.version >= _FAILOVER and not slot.failover and not found.server.in_recovery:
        notes.append(
            "the slot is no failover slot, so a promoted standby will not have it; on a replication connection:"
            f' ALTER_REPLICATION_SLOT "{slot.name}" (FAILOVER true)'
        )
    return Start(replace(stored, here=replace(here, timeline=now.timeline)), tuple(notes))


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
    """Go on from a standby's own slot only, or make one where there never was a slot."""
    if found.slot is not None:
        if not found.slot.synced:
            return
        state = "is kept in step with the primary's; it can be read from once the server is promoted"
    elif found.stored is not None and found.stored.is_begun:
        state = "is not there; if it is the primary's, it can be read from there"
    elif found.server.version < _ON_STANDBY:
        state = "cannot be made on it: before PostgreSQL 16 a standby does not decode"
    else:
        return
    raise SourceError(
        "TR-232",
        "the server is a standby",
        detail=f'Slot "{found.slot_name}" {state}.',
        hint="Let source.dsn find the primary: host=a,b target_session_attrs=read-write",
    )


def _unknown(found: Found, slot: Slot) -> StateError:
    topics = Topics(found.prefix)
    written = sum(1 for topic in found.tables if any(bounds.end for bounds in found.topics.get(topic, ())))
    return StateError(
        "TR-423",
        f'slot "{slot.name}" is there, but no position of it is on topic "{topics.progress}"',
        detail=f"The slot is confirmed up to {format_lsn(slot.confirmed_flush_lsn)}; {written} of {len(found.tables)}"
        " topics of its tables have been written to. Either the progress topic was deleted, or the slot is somebody"
        " else's: another pipeline with another kafka.prefix would lose what we take from it.",
        hint='slot = "tailrace_2"  # under [source]; or, if nobody else needs it:\n       '
        + copy_anew(found.prefix, slot.name),
    )
