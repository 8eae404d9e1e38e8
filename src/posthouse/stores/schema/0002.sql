-- Schema 2. Facts that roles keep beside the messages: blocks, registered keys, contacts.

CREATE TABLE kept (
    shelf TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
    row_crc INTEGER NOT NULL, -- of these columns
    PRIMARY KEY (shelf, key)
) WITHOUT ROWID;
