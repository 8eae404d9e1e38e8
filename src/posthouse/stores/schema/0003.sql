-- Schema 3. Views of the gateway's two desks for people and programs that look with SQL; nothing of ours reads them.
-- Times are ISO 8601 in UTC. A lease does not keep when it began: processing_started_at is when it was taken or last
-- renewed. A parked message is pending, an uncertain one processing; ``state`` has the exact word. Of a message whose body
-- is no letter of the gateway, what stands in the body is NULL.

CREATE VIEW inbound_message_queue AS
WITH letter AS (
    SELECT m.*, l.name AS lane, b.name AS mailbox, d.policy AS policy, e.number AS held, e.ends_at AS ends_at,
        e.received AS received,
        CASE WHEN json_valid(CAST(m.body AS TEXT)) THEN CAST(m.body AS TEXT) END AS plain
    FROM message m
    JOIN lane l ON l.id = m.lane_id
    JOIN mailbox b ON b.id = l.mailbox_id
    JOIN desk d ON d.id = b.desk_id
    LEFT JOIN lease e ON e.number = m.number
    WHERE d.name = 'inbound' AND m.number NOT IN (SELECT number FROM gone)
)
SELECT
    id,
    lane AS session_id,
    json_extract(plain, '$.channel') AS channel,
    json_extract(plain, '$.from') AS from_address,
    CASE WHEN plain IS NOT NULL THEN coalesce(json_extract(plain, '$.text'), '') END AS body,
    json_extract(plain, '$.media[0].url') AS media_url,
    json_extract(plain, '$.thread') AS thread_id,
    json_extract(plain, '$.reply_to') AS reply_to_id,
    coalesce(json_extract(plain, '$.metadata'), '{}') AS metadata,
    CASE
        WHEN state = 0 AND held IS NOT NULL OR state = 2 THEN 'processing'
        WHEN state IN (0, 1) THEN 'pending'
        WHEN state = 3 THEN 'completed'
        ELSE 'failed'
    END AS status,
    strftime('%Y-%m-%dT%H:%M:%fZ', posted_at / 1000000.0, 'unixepoch') AS created_at,
    strftime(
        '%Y-%m-%dT%H:%M:%fZ', ends_at / 1000000.0 - coalesce(json_extract(policy, '$.lease_s'), 0), 'unixepoch'
    ) AS processing_started_at,
    CASE WHEN state = 3 THEN strftime('%Y-%m-%dT%H:%M:%fZ', since / 1000000.0, 'unixepoch') END AS completed_at,
    coalesce(json_extract(plain, '$.metadata.openclaw.retries'), 0)
        + CASE WHEN state IN (0, 1) THEN attempts ELSE max(attempts - 1, 0) END AS retry_count,
    json_extract(policy, '$.attempts_max') - 1 AS max_retries,
    CASE
        WHEN state = 0 AND due_at > 0 THEN strftime('%Y-%m-%dT%H:%M:%fZ', due_at / 1000000.0, 'unixepoch')
    END AS next_retry_at,
    coalesce(json_extract(note, '$[1]'), CASE WHEN state NOT IN (0, 3) THEN json_extract(note, '$[0]') END) AS error,
    CASE state
        WHEN 0 THEN CASE WHEN held IS NULL THEN 'ready' WHEN received THEN 'received' ELSE 'leased' END
        WHEN 1 THEN 'parked' WHEN 2 THEN 'uncertain' WHEN 3 THEN 'delivered' WHEN 4 THEN 'dead'
        WHEN 5 THEN 'expired' ELSE 'cancelled'
    END AS state,
    mailbox AS tenant,
    number
FROM letter;

CREATE VIEW outbound_message_queue AS
WITH letter AS (
    SELECT m.*, l.name AS lane, b.name AS mailbox, d.policy AS policy, e.number AS held, e.ends_at AS ends_at,
        e.received AS received,
        CASE WHEN json_valid(CAST(m.body AS TEXT)) THEN CAST(m.body AS TEXT) END AS plain
    FROM message m
    JOIN lane l ON l.id = m.lane_id
    JOIN mailbox b ON b.id = l.mailbox_id
    JOIN desk d ON d.id = b.desk_id
    LEFT JOIN lease e ON e.number = m.number
    WHERE d.name = 'outbound' AND m.number NOT IN (SELECT number FROM gone)
)
SELECT
    id,
    json_extract(plain, '$.session') AS session_id,
    json_extract(plain, '$.channel') AS channel,
    coalesce(json_extract(plain, '$.to'), lane) AS to_address,
    json_extract(plain, '$.parts') AS payloads,
    (SELECT value FROM json_tree(plain, '$.parts') WHERE key = 'url' LIMIT 1) AS media_url,
    json_extract(plain, '$.thread') AS thread_id,
    json_extract(plain, '$.reply_to') AS reply_to_id,
    coalesce(json_extract(plain, '$.metadata'), '{}') AS metadata,
    CASE
        WHEN state = 0 AND held IS NOT NULL OR state = 2 THEN 'processing'
        WHEN state IN (0, 1) THEN 'pending'
        WHEN state = 3 THEN 'completed'
        ELSE 'failed'
    END AS status,
    strftime('%Y-%m-%dT%H:%M:%fZ', posted_at / 1000000.0, 'unixepoch') AS created_at,
    strftime(
        '%Y-%m-%dT%H:%M:%fZ', ends_at / 1000000.0 - coalesce(json_extract(policy, '$.lease_s'), 0), 'unixepoch'
    ) AS processing_started_at,
    CASE WHEN state = 3 THEN strftime('%Y-%m-%dT%H:%M:%fZ', since / 1000000.0, 'unixepoch') END AS sent_at,
    coalesce(json_extract(plain, '$.metadata.openclaw.retries'), 0)
        + CASE WHEN state IN (0, 1) THEN attempts ELSE max(attempts - 1, 0) END AS retry_count,
    json_extract(policy, '$.attempts_max') - 1 AS max_retries,
    CASE
        WHEN state = 0 AND due_at > 0 THEN strftime('%Y-%m-%dT%H:%M:%fZ', due_at / 1000000.0, 'unixepoch')
    END AS next_retry_at,
    coalesce(json_extract(note, '$[1]'), CASE WHEN state NOT IN (0, 3) THEN json_extract(note, '$[0]') END) AS error,
    CASE state
        WHEN 0 THEN CASE WHEN held IS NULL THEN 'ready' WHEN received THEN 'received' ELSE 'leased' END
        WHEN 1 THEN 'parked' WHEN 2 THEN 'uncertain' WHEN 3 THEN 'delivered' WHEN 4 THEN 'dead'
        WHEN 5 THEN 'expired' ELSE 'cancelled'
    END AS state,
    mailbox AS account,
    progress AS parts_sent,
    json_extract(extra, '$[2]') AS cause_id,
    number
FROM letter;

CREATE VIEW inbound_dead_letter AS
SELECT
    q.id,
    json_object(
        'id', q.id, 'session_id', q.session_id, 'channel', q.channel, 'from_address', q.from_address, 'body', q.body,
        'media_url', q.media_url, 'thread_id', q.thread_id, 'reply_to_id', q.reply_to_id,
        'metadata', json(q.metadata), 'created_at', q.created_at, 'retry_count', q.retry_count
    ) AS original_message,
    q.error,
    strftime('%Y-%m-%dT%H:%M:%fZ', m.since / 1000000.0, 'unixepoch') AS failed_at,
    json_extract(m.note, '$[0]') AS reason,
    q.number
FROM inbound_message_queue q JOIN message m ON m.number = q.number
WHERE q.state = 'dead';

CREATE VIEW outbound_dead_letter AS
SELECT
    q.id,
    json_object(
        'id', q.id, 'session_id', q.session_id, 'channel', q.channel, 'to_address', q.to_address,
        'payloads', json(q.payloads),
        'media_url', q.media_url, 'thread_id', q.thread_id, 'reply_to_id', q.reply_to_id,
        'metadata', json(q.metadata), 'created_at', q.created_at, 'retry_count', q.retry_count
    ) AS original_message,
    q.error,
    strftime('%Y-%m-%dT%H:%M:%fZ', m.since / 1000000.0, 'unixepoch') AS failed_at,
    json_extract(m.note, '$[0]') AS reason,
    q.number
FROM outbound_message_queue q JOIN message m ON m.number = q.number
WHERE q.state = 'dead';
