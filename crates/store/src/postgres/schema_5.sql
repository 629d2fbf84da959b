-- Captures that people ask agents for.

CREATE TABLE captures (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent BIGINT NOT NULL REFERENCES agents (id),
    seconds BIGINT NOT NULL,
    requested_ns BIGINT NOT NULL,
    actor TEXT NOT NULL,
    state TEXT NOT NULL,
    chunks BIGINT NOT NULL DEFAULT 0,
    bytes BIGINT NOT NULL DEFAULT 0,
    events BIGINT NOT NULL DEFAULT 0,
    lost BIGINT NOT NULL DEFAULT 0,  -- events that are not in it
    reason TEXT NOT NULL DEFAULT ''
);

CREATE TABLE capture_chunks (
    capture BIGINT NOT NULL REFERENCES captures (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (capture, number)
);
