-- Bundles of rules, and which agents get which.

CREATE TABLE bundles (
    id INTEGER PRIMARY KEY,
    version INTEGER NOT NULL,
    digest TEXT NOT NULL UNIQUE,
    key TEXT NOT NULL,
    text TEXT NOT NULL,
    created_ns INTEGER NOT NULL,
    created_by TEXT NOT NULL
) STRICT;

CREATE TABLE rollouts (
    class TEXT PRIMARY KEY,
    bundle INTEGER NOT NULL REFERENCES bundles (id),
    previous INTEGER REFERENCES bundles (id),
    percent INTEGER NOT NULL,
    max_failures INTEGER,         -- NULL for no limit, here and below
    max_losses INTEGER,
    max_alerts INTEGER,
    halted TEXT,                  -- why
    started_ns INTEGER NOT NULL,
    actor TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What agents said last about a bundle.
CREATE TABLE agent_bundles (
    agent INTEGER PRIMARY KEY,
    digest TEXT NOT NULL,
    refused TEXT,                 -- why
    since_ns INTEGER NOT NULL,
    acknowledged INTEGER NOT NULL -- number of records before
) STRICT;

CREATE INDEX losses_by_agent ON losses (agent, time_ns);
