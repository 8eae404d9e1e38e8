-- Schema 1. What is written at every commit is narrow or appended; names and bodies are written once.
-- State codes: 0 in lane, 1 parked, 2 uncertain, 3 delivered, 4 dead, 5 expired, 6 cancelled.

CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

-- One row: what moves at every commit.
CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), last_number INTEGER, watermark INTEGER, last_at INTEGER);
INSERT INTO head VALUES (1, 0, 0, 0);

CREATE TABLE desk (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, mailboxes INTEGER NOT NULL DEFAULT 0,
    depth INTEGER NOT NULL DEFAULT 0, counts TEXT, oldest INTEGER NOT NULL DEFAULT 0, policy TEXT
);

CREATE TABLE mailbox (id INTEGER PRIMARY KEY, desk_id INTEGER NOT NULL, name TEXT NOT NULL, UNIQUE (desk_id, name));

-- The moving part of a mailbox. A mailbox with one lane has its counts in that lane's row.
CREATE TABLE mailbox_state (
    id INTEGER PRIMARY KEY, lanes INTEGER NOT NULL, paused TEXT, served INTEGER NOT NULL, counts TEXT,
    row_crc INTEGER NOT NULL -- of these columns, and of desk and name
);

CREATE TABLE lane (id INTEGER PRIMARY KEY, mailbox_id INTEGER NOT NULL, name TEXT NOT NULL, UNIQUE (mailbox_id, name));

CREATE TABLE lane_state (
    id INTEGER PRIMARY KEY, mailbox_id INTEGER NOT NULL, last_seq INTEGER NOT NULL, depth INTEGER NOT NULL,
    paused TEXT, served INTEGER NOT NULL, counts TEXT,
    row_crc INTEGER NOT NULL -- of these columns, and of desk, mailbox and name
);
CREATE INDEX lane_waiting ON lane_state (mailbox_id) WHERE depth > 0;

CREATE TABLE message (
    number INTEGER PRIMARY KEY, lane_id INTEGER NOT NULL, seq INTEGER NOT NULL, state INTEGER NOT NULL,
    posted_at INTEGER NOT NULL, post_commit INTEGER NOT NULL, attempts INTEGER NOT NULL, unreceived INTEGER NOT NULL,
    life INTEGER NOT NULL, quiet INTEGER NOT NULL, progress INTEGER NOT NULL, due_at INTEGER NOT NULL,
    expires_at INTEGER, since INTEGER, batch TEXT, note TEXT, id TEXT NOT NULL, sender TEXT NOT NULL,
    kind TEXT NOT NULL, extra TEXT, size_bytes INTEGER NOT NULL, crc INTEGER NOT NULL, -- of the body
    keep_until INTEGER, row_crc INTEGER NOT NULL, -- of the columns up to crc
    body BLOB NOT NULL
);
CREATE INDEX message_due ON message (due_at) WHERE due_at > 0 AND state = 0;
CREATE INDEX message_expiry ON message (expires_at) WHERE expires_at IS NOT NULL AND state = 0;
CREATE INDEX message_kept ON message (keep_until) WHERE keep_until IS NOT NULL;
CREATE INDEX message_aside ON message (state, number) WHERE state > 0;

-- A finished message of which only the id and the outcome are remembered.
CREATE TABLE memory (
    number INTEGER PRIMARY KEY, lane_id INTEGER NOT NULL, seq INTEGER NOT NULL, state INTEGER NOT NULL,
    posted_at INTEGER NOT NULL, attempts INTEGER NOT NULL, life INTEGER NOT NULL, since INTEGER NOT NULL, note TEXT,
    id TEXT NOT NULL, sender TEXT NOT NULL, kind TEXT NOT NULL, size_bytes INTEGER NOT NULL,
    forget_at INTEGER, row_crc INTEGER NOT NULL -- of the columns up to size_bytes
);
CREATE INDEX memory_forget ON memory (forget_at) WHERE forget_at IS NOT NULL;

CREATE TABLE lease (
    number INTEGER PRIMARY KEY, lane_id INTEGER NOT NULL, mailbox_id INTEGER NOT NULL, token TEXT NOT NULL,
    holder TEXT, ends_at INTEGER, received INTEGER NOT NULL, lease_commit INTEGER NOT NULL
);
CREATE INDEX lease_mailbox ON lease (mailbox_id);

-- Two indexes that lag: messages above meta's watermark are not in them yet (see docs/decisions/0003).
CREATE TABLE known (key INTEGER NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (key, number)) WITHOUT ROWID;
CREATE TABLE queue (
    lane_id INTEGER NOT NULL, seq INTEGER NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (lane_id, seq)
) WITHOUT ROWID;
-- Finished messages whose rows are still to be deleted, in bulk and in order.
CREATE TABLE gone (number INTEGER PRIMARY KEY, lane_id INTEGER NOT NULL, seq INTEGER NOT NULL);

CREATE TABLE chunk (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, prev BLOB NOT NULL, hash BLOB NOT NULL, data BLOB NOT NULL
);
CREATE TABLE segment (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, prev TEXT NOT NULL, chain TEXT NOT NULL);
