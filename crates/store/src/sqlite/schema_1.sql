-- Times are nanoseconds since 1970, hours are whole hours since 1970.

CREATE TABLE tokens (
    id INTEGER PRIMARY KEY,
    class TEXT NOT NULL,          -- of the agents that send with it, or empty
    role TEXT NOT NULL,           -- of a reader, or empty
    hash BLOB NOT NULL UNIQUE,    -- the secret itself is not kept
    created_ns INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_ns INTEGER,
    revoked_ns INTEGER
) STRICT;

CREATE TABLE agents (
    id INTEGER PRIMARY KEY,
    token INTEGER NOT NULL REFERENCES tokens (id),
    hash BLOB UNIQUE,             -- NULL for a direct sender, which has its token alone
    host TEXT NOT NULL,
    first_seen_ns INTEGER NOT NULL,
    last_seen_ns INTEGER NOT NULL,
    acknowledged INTEGER NOT NULL DEFAULT 0,
    missing INTEGER NOT NULL DEFAULT 0,
    inventory TEXT NOT NULL DEFAULT '{}'
) STRICT;

CREATE UNIQUE INDEX agents_direct ON agents (token) WHERE hash IS NULL;

CREATE TABLE hosts (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE groups (
    id INTEGER PRIMARY KEY,
    rule TEXT NOT NULL,
    severity INTEGER NOT NULL,
    program TEXT NOT NULL,
    object TEXT NOT NULL,
    acknowledged_ns INTEGER,
    acknowledged_by TEXT,
    note TEXT NOT NULL DEFAULT '',
    UNIQUE (rule, severity, program, object)
) STRICT;

CREATE TABLE alerts (
    id INTEGER PRIMARY KEY,
    agent INTEGER NOT NULL,
    sequence INTEGER,
    time_ns INTEGER NOT NULL,
    received_ns INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    host INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;

CREATE INDEX alerts_by_time ON alerts (time_ns);
CREATE INDEX alerts_by_group ON alerts (group_id, time_ns);
CREATE INDEX alerts_by_host ON alerts (host, time_ns);

-- Words of the messages. Positions are not kept, so a search is for words, not for phrases.
CREATE VIRTUAL TABLE alert_words USING fts5 (
    message, content = '', contentless_delete = 1, detail = none
);

-- What pages about many alerts are made of: they never count alerts.
CREATE TABLE counts (
    hour INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    host INTEGER NOT NULL,
    count INTEGER NOT NULL,
    first_ns INTEGER NOT NULL,
    last_ns INTEGER NOT NULL,
    PRIMARY KEY (hour, group_id, host)
) STRICT, WITHOUT ROWID;

CREATE INDEX counts_by_group ON counts (group_id, hour);

CREATE TABLE hours (
    hour INTEGER NOT NULL,
    severity INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (hour, severity)
) STRICT, WITHOUT ROWID;

CREATE TABLE losses (
    id INTEGER PRIMARY KEY,
    agent INTEGER NOT NULL,
    time_ns INTEGER NOT NULL,
    kind TEXT NOT NULL,
    count INTEGER NOT NULL,
    detail TEXT NOT NULL
) STRICT;

CREATE INDEX losses_by_time ON losses (time_ns);

CREATE TABLE audit (
    id INTEGER PRIMARY KEY,
    time_ns INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    object TEXT NOT NULL
) STRICT;
