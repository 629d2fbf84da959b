-- Captures that people ask agents for.

CREATE TABLE captures (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    agent INTEGER NOT NULL REFERENCES agents (id),
    seconds INTEGER NOT NULL,
    requested_ns INTEGER NOT NULL,
    actor TEXT NOT NULL,
    state TEXT NOT NULL,
    chunks INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    events INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,  -- events that are not in it
    reason TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE TABLE capture_chunks (
    capture INTEGER NOT NULL REFERENCES captures (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (capture, number)
) STRICT;
