-- Schema 5. Whether a lane holds messages stands beside its depth. The index of such lanes, of which a page is touched at
-- random for each message, is written only when that changes and not at every change of the depth.

DROP INDEX lane_waiting;
ALTER TABLE lane_state ADD COLUMN waiting INTEGER NOT NULL DEFAULT 0;
UPDATE lane_state SET waiting = 1 WHERE depth > 0;
CREATE INDEX lane_waiting ON lane_state (mailbox_id) WHERE waiting = 1;
