"""Every exception of Posthouse, drawn once.

    PosthouseError
    ├── InvalidInput        bad input from outside; nothing was changed
    │   ├── BadFile         another program's file that cannot be read, or not now
    │   ├── ConfigError     our own setup: unknown key, wrong type, impossible value
    │   ├── BadIdentity     an agent's key file that is missing, damaged or readable by others
    │   └── OutboxFull      an agent's outbox that takes no more for now
    ├── WireError           bytes from outside that are not what the protocol says
    │   ├── BadEnvelope       no envelope, or not the one expected
    │   ├── BadAddress        no address of an agent
    │   ├── BadFrame          no direct message of a peer
    │   └── BadSignature      a webhook that nobody who knows the key has signed, or not lately
    ├── StoreError          infrastructure
    │   ├── StoreUnavailable  try again; whether the command took effect is unknown
    │   ├── StoreFull         no room on the disk; the command did not take effect
    │   ├── StoreHeld         another process holds the store
    │   ├── StoreCorrupt      bytes that are not what was written
    │   ├── StoreFailed       a write or sync failed; the process must stop
    │   ├── SchemaMismatch    written by a newer program: stop
    │   └── EngineClosed      the engine is closed or has stopped
    ├── RelayRefused        the relay does not admit this agent
    └── MissingExtra        an optional part is not installed

Each class has a stable ``code``, used on the wire, in the journal and in the console.
Expected refusals are values (see ``mailbox.outcome``), not exceptions.
"""

from __future__ import annotations


class PosthouseError(Exception):
    """The root: catching it catches all that Posthouse raises on purpose."""

    code = "error"


class InvalidInput(PosthouseError):
    """Input that can never be right; nothing was changed."""

    code = "invalid"


class ConfigError(InvalidInput):
    """A configuration that cannot be used, found at start."""

    code = "config"


class BadIdentity(InvalidInput):
    """An agent's key file that is missing, damaged or readable by others."""

    code = "bad_identity"


class OutboxFull(InvalidInput):
    """An agent's outbox takes no more for now."""

    code = "outbox_full"


class BadFile(InvalidInput):
    """Another program's file that cannot be read: damaged, of another kind, or in use."""

    code = "bad_file"


class WireError(PosthouseError):
    """Bytes from outside that are not what the protocol says."""

    code = "wire"


class BadEnvelope(WireError):
    """No envelope, or not the one that is expected here."""

    code = "bad_envelope"


class BadAddress(WireError):
    """No address of an agent."""

    code = "bad_address"


class BadFrame(WireError):
    """No direct message of a peer, or one with a field that cannot be."""

    code = "bad_frame"


class BadSignature(WireError):
    """A webhook that nobody who knows the key has signed, or not lately."""

    code = "bad_signature"


class StoreError(PosthouseError):
    """The store could not do what it was asked to."""

    code = "store"
    fatal = False
    """True: the store must not be written to any more; the engine stops."""


class StoreUnavailable(StoreError):
    """The store did not answer; whether the command took effect is unknown, so repeat it by id."""

    code = "store_unavailable"


class StoreFull(StoreError):
    """No room on the disk. The command did not take effect; what was accepted before is safe."""

    code = "store_full"


class StoreHeld(StoreError):
    """Another process has the store open for writing."""

    code = "store_held"


class StoreCorrupt(StoreError):
    """Stored bytes are not those that were written."""

    code = "store_corrupt"


class StoreFailed(StoreError):
    """A write or sync failed. What the disk holds is unknown, so nothing is tried again: the process must stop."""

    code = "store_failed"
    fatal = True


class SchemaMismatch(StoreError):
    """The store was written by a newer program or is no store of ours."""

    code = "schema_mismatch"


class EngineClosed(StoreError):
    """The engine is closed, or stopped after a failure that it must not survive."""

    code = "engine_closed"


class RelayRefused(PosthouseError):
    """The relay does not admit this agent, or is not the relay that it should be."""

    code = "relay_refused"


class MissingExtra(PosthouseError):
    """An optional part of the installation is not there."""

    code = "missing_extra"
