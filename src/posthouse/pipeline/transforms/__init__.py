"""Transforms: from events to the books, as functions DataFrame → DataFrame. No input or output in here.

The incremental method. A batch is any set of new events whose offsets lie behind all that came before of
their node. What is unfinished is carried as *events*, so that there is one way to compute a row:

    batch = advance(events, carried, recalled, before, answered, keep)
      .messages   one row a message;  part = 'open' (replace the whole part) or a date (append)
      .attempts   one row a lease;    part as its message's
      .anomalies  findings;           part 'open' (replace) or a date (append)
      .partials   additive pieces of all gold tables in one long table; part 'open' (replace) or another (append)
      .carried    the next batch's ``carried``, of all that went into this one

    events      columns of the contract (``journal.schema``), each (node, offset) once
    carried     None in the first batch
    before      the last finished generation of each message that these events tell of (``told``) and of which no later
                one is open (``carried_keys``; in either ``key`` is the column of that name), with where they post the
                next one (``next_post``, an offset or null) and whether they redrive it (``revived``). It comes out
                again where more is told of it, and takes the place of the old one; its outcome stays. What is not
                found and not posted is an orphan, and stays in the open set. Rows of what was only refused (those
                without ``posted_at``) are not given: they are withdrawn, and come again.
    recalled    all events of the last generation of those that are redriven: their finished rows are replaced by
                unfinished ones, and their attempts come again.
    causes(events)  what new posts answer: where finished rows of `messages` have the same ``cause_key``, give them as
                ``answered`` (only answered_twice looks at them).
    keep        called with the frames that several others are made of, so that a job can persist them; by several
                threads.
    asleep      where much is open and a batch concerns little of it, ``asleep`` tells which mailboxes that is: only
                their share of ``carried`` goes in. The rest of it stays where it is stored, and what the tables have
                of the other mailboxes in their part `open` is copied.

Events that arrive behind later ones of their node (a late segment) change what is around them: give all events of
that node again to ``advance`` with nothing carried, and replace the node's rows. The result is the same, row for
row, however the events are cut into batches; tests hold it.

How it is quick: nearly all messages are plain (posted, at most one lease, finished), and one aggregate makes their
rows (``life``); windows over single events are only for the others (``step``). All that concerns one mailbox lies in
one partition, so that lanes, waits and rows meet without being moved again. Mailboxes, desks, lanes and messages are
numbers wherever rows are sorted, grouped and joined (``told``); names come back at the end.

Gold tables are functions of the summed partials: ``books``, ``latency``, ``depth``, ``availability``, ``deadletters``,
``outages``, from all of them, of some days, or from a day or an hour on. ``check_books`` names the windows whose sum
does not close. `journal_gap`, `clock_back` and `chain_broken` are found where files are read.

How the definitions are read where they leave room:
- `duplicate` and `refused` never change the outcome of a message that was posted; the books count them as events, by
  their hour.
- A message is closed when its last life finished and its `posted` is known. Orphans and messages that were only
  refused stay in the open set. The `posted` of the latter may still come: their rows are final until then. One that
  comes behind an orphan is not the orphan's, which was posted before: it begins another generation.
- A message's number in its lane is the first that is said of it, by its post where that is known. If others are said of
  it, too, their posts are lost: they are not missing, and hold up nobody.
- A message lasts for as long as its last `posted`, `redriven` or `unparked` says; without an end if that says nothing.
- Waits exist for closed messages. Set aside (parked, uncertain, or dead until it was redriven) counts as parked.
  Offline: the mailbox has no connection, and its desk has had one before on this node. Lane: until every message
  with a lower number first left the lane. Times inside one message never run back, and never past its end.
- Out of order: the evidence is the event that began the wait and the first one that overtook it.
- Outages: a failure rate is compared with that of the 72 hours before; a backlog that is not gone 72 hours later has
  no drain time.
"""

from . import asleep
from .batch import Batch, Keep, advance, carried_keys, causes
from .gold import (
    AGAIN_DAYS,
    MADE_OF,
    REACH_DAYS,
    availability,
    books,
    changed,
    check_books,
    deadletters,
    depth,
    latency,
    outages,
)
from .told import EVENTS, told

__all__ = [
    "AGAIN_DAYS",
    "EVENTS",
    "MADE_OF",
    "REACH_DAYS",
    "Batch",
    "Keep",
    "advance",
    "asleep",
    "availability",
    "books",
    "carried_keys",
    "causes",
    "changed",
    "check_books",
    "deadletters",
    "depth",
    "latency",
    "outages",
    "told",
]
