-- Schema 4. Views of the peer's two desks and its trades for people and programs that look with SQL; nothing of ours reads
-- them. Times are seconds since 1970. What is parked is pending, what is uncertain sent; a message that died by its
-- deadline is expired, one that died otherwise or was cancelled failed.

CREATE VIEW message_outbox AS
SELECT
    m.id AS message_id,
    l.name AS trade_id,
    b.name AS peer_id,
    m.kind AS message_type,
    CAST(m.body AS TEXT) AS payload,
    coalesce(
        CAST(json_extract(m.extra, '$[1].sequence_num') AS INTEGER),
        coalesce(json_extract(CAST(t.value AS TEXT), '$.base'), 0) + m.seq
    ) AS sequence_num,
    m.posted_at / 1000000 AS created_at,
    m.attempts AS retry_count,
    CASE
        WHEN m.state <> 0 OR e.number IS NOT NULL THEN NULL WHEN m.due_at > 0 THEN m.due_at / 1000000
        ELSE m.posted_at / 1000000
    END AS next_retry_at,
    CASE WHEN m.state = 3 THEN m.since / 1000000 END AS acked_at,
    CASE
        WHEN m.state = 3 THEN 'acked'
        WHEN m.state = 5 OR m.state = 4 AND json_extract(m.note, '$[0]') = 'deadline' THEN 'expired'
        WHEN m.state IN (4, 6) THEN 'failed'
        WHEN m.state = 2 OR e.number IS NOT NULL THEN 'sent'
        ELSE 'pending'
    END AS status,
    CASE WHEN m.state <> 3 THEN coalesce(json_extract(m.note, '$[1]'), json_extract(m.note, '$[0]')) END AS error_message,
    m.expires_at / 1000000 AS expires_at,
    m.number
FROM message m
JOIN lane l ON l.id = m.lane_id
JOIN mailbox b ON b.id = l.mailbox_id
JOIN desk d ON d.id = b.desk_id
LEFT JOIN lease e ON e.number = m.number
LEFT JOIN kept t ON t.shelf = 'peer.trades' AND t.key = l.name
WHERE d.name = 'outbox' AND m.number NOT IN (SELECT number FROM gone);

CREATE VIEW message_inbox AS
SELECT
    m.id AS message_id,
    l.name AS trade_id,
    b.name AS peer_id,
    m.kind AS message_type,
    CAST(json_extract(m.extra, '$[1].sequence_num') AS INTEGER) AS sequence_num,
    m.posted_at / 1000000 AS received_at,
    CASE WHEN m.state = 3 THEN m.since / 1000000 END AS processed_at,
    m.number
FROM message m
JOIN lane l ON l.id = m.lane_id
JOIN mailbox b ON b.id = l.mailbox_id
JOIN desk d ON d.id = b.desk_id
WHERE d.name = 'inbox' AND m.number NOT IN (SELECT number FROM gone);

CREATE VIEW message_sequences AS
SELECT
    t.key AS trade_id,
    coalesce(json_extract(CAST(t.value AS TEXT), '$.base'), 0) + coalesce(
        (
            SELECT s.last_seq
            FROM lane_state s
            JOIN lane l ON l.id = s.id
            JOIN mailbox b ON b.id = l.mailbox_id
            JOIN desk d ON d.id = b.desk_id
            WHERE d.name = 'outbox' AND b.name = json_extract(CAST(t.value AS TEXT), '$.peer') AND l.name = t.key
        ),
        0
    ) AS local_seq,
    coalesce(
        (SELECT CAST(CAST(h.value AS TEXT) AS INTEGER) FROM kept h WHERE h.shelf = 'peer.heard' AND h.key = t.key), 0
    ) AS remote_seq
FROM kept t
WHERE t.shelf = 'peer.trades';
