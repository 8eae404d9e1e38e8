"""Transforms: from events to the books, as functions DataFrame → DataFrame. No input or output in here.

The incremental method. A batch is any set of new events whose offsets lie behind all that came before of
their node. What is unfinished is carried as *events*, so that there is one way to compute a row:

    batch = advance(events, carried, recalled, before, answered, keep)
      .messages   one row a message;  part = 'open' (replace the whole part) or a date (append)
      .attempts   one row a lease;    part as its message's
      .anomalies  findings;           part 'open' (replace) or a date (append)
      .partials   additive pieces of all gold tables in one long table; part 'open' (replace) or a date (append)
      .carried    the next batch's ``carried``: replaces the old one

    events      columns of the contract (``journal.schema``), each (node, offset) once
    carried     None in the first batch
    strays(events, carried)  keys whose events find no `posted` in the batch or the open set: look these up in the
                closed rows of `messages`. For what is found give ``before`` (the rows as they are) and
                ``recalled`` (all events of those messages, from the table of events): their rows come out again
                and take the place of the old ones; what those had added is taken off in the partials.
                What is not found becomes an orphan and stays in the open set until its post comes.
    causes(events)  (node, desk, cause_id) of new posts: where closed rows of `messages` have the same, give them as
                ``answered`` (message rows; only answered_twice looks at them).
    keep        called with the frames that several others are made of, so that a job can persist them.

Events that arrive behind later ones of their node (a late segment) change what is around them: give all events of
that node again to ``advance`` with nothing carried, and replace the node's rows. The result is the same, row for
row, however the events are cut into batches; tests hold it.

Gold tables are functions of the summed partials, so that they can be had at any time from all parts:
``books``, ``latency``, ``depth``, ``availability``, ``deadletters``, ``outages``. ``check_books`` names the windows
whose sum does not close. `journal_gap`, `clock_back` and `chain_broken` are found where files are read.

How the definitions are read where they leave room:
- `duplicate` and `refused` never change the outcome of a message that was posted; the books count them as events, by
  their hour.
- A message is closed when its last life finished and its `posted` is known. Orphans and messages that were only
  refused stay in the open set: their `posted` may still come.
- Waits exist for closed messages. Set aside (parked, uncertain, or dead until it was redriven) counts as parked.
  Offline: the mailbox has no connection, and its desk has had one before on this node. Lane: until every message
  with a lower number first left the lane. Times inside one message never run back, and never past its end.
- Out of order: the evidence is the event that began the wait and the first one that overtook it.
"""

from .batch import Batch, advance, causes, strays
from .gold import availability, books, check_books, deadletters, depth, latency, outages
from .partials import message_partials

__all__ = [
    "Batch",
    "advance",
    "availability",
    "books",
    "causes",
    "check_books",
    "deadletters",
    "depth",
    "latency",
    "message_partials",
    "outages",
    "strays",
]
