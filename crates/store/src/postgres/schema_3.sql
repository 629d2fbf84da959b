-- Bundles of rules, and which agents get which.

CREATE TABLE bundles (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version BIGINT NOT NULL,
    digest TEXT NOT NULL UNIQUE,
    key TEXT NOT NULL,
    text TEXT NOT NULL,
    created_ns BIGINT NOT NULL,
    created_by TEXT NOT NULL
);

CREATE TABLE rollouts (
    class TEXT PRIMARY KEY,
    bundle BIGINT NOT NULL REFERENCES bundles (id),
    previous BIGINT REFERENCES bundles (id),
    percent BIGINT NOT NULL,
    max_failures BIGINT,         -- NULL for no limit, here and below
    max_losses BIGINT,
    max_alerts BIGINT,
    halted TEXT,                  -- why
    started_ns BIGINT NOT NULL,
    actor TEXT NOT NULL
);

-- What agents said last about a bundle.
CREATE TABLE agent_bundles (
    agent BIGINT PRIMARY KEY,
    digest TEXT NOT NULL,
    refused TEXT,                 -- why
    since_ns BIGINT NOT NULL,
    acknowledged BIGINT NOT NULL -- number of records before
);

CREATE INDEX losses_by_agent ON losses (agent, time_ns);
