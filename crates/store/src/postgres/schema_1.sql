-- Times are nanoseconds since 1970, hours and days are whole ones since 1970. Numbers of alerts are given out by
-- one writer at a time, so that they are committed in their order.

CREATE TABLE store (
    is_single BOOLEAN PRIMARY KEY DEFAULT true CHECK (is_single),
    version BIGINT NOT NULL,
    -- Grows when rows are deleted whose numbers writers remember.
    deletions BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE tokens (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    class TEXT NOT NULL,
    role TEXT NOT NULL,
    hash BYTEA NOT NULL UNIQUE,
    created_ns BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    expires_ns BIGINT,
    revoked_ns BIGINT
);

CREATE TABLE agents (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token BIGINT NOT NULL REFERENCES tokens (id),
    hash BYTEA UNIQUE,
    host TEXT NOT NULL,
    first_seen_ns BIGINT NOT NULL,
    last_seen_ns BIGINT NOT NULL,
    acknowledged BIGINT NOT NULL DEFAULT 0,
    missing BIGINT NOT NULL DEFAULT 0,
    inventory TEXT NOT NULL DEFAULT '{}'
);

CREATE UNIQUE INDEX agents_direct ON agents (token) WHERE hash IS NULL;

CREATE TABLE hosts (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name TEXT NOT NULL
);

-- By digest, here and below: a name may be longer than an index takes. Queries compare the names, too.
CREATE INDEX hosts_by_name ON hosts (md5(name));

CREATE TABLE groups (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rule TEXT NOT NULL,
    severity BIGINT NOT NULL,
    program TEXT NOT NULL,
    object TEXT NOT NULL,
    acknowledged_ns BIGINT,
    acknowledged_by TEXT,
    note TEXT NOT NULL DEFAULT '',
    assignee TEXT NOT NULL DEFAULT '',
    muted_until_ns BIGINT
);

CREATE INDEX groups_by_key ON groups (md5(rule || program || object));
CREATE INDEX groups_by_rule ON groups (md5(rule));

CREATE TABLE comments (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_id BIGINT NOT NULL,
    time_ns BIGINT NOT NULL,
    actor TEXT NOT NULL,
    text TEXT NOT NULL
);

CREATE INDEX comments_by_group ON comments (group_id, id);

-- A partition for each day of events; see `append.rs` for which.
CREATE TABLE alerts (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    day BIGINT NOT NULL,
    agent BIGINT NOT NULL,
    sequence BIGINT,
    time_ns BIGINT NOT NULL,
    received_ns BIGINT NOT NULL,
    group_id BIGINT NOT NULL,
    host BIGINT NOT NULL,
    body TEXT NOT NULL,
    words TSVECTOR NOT NULL,
    PRIMARY KEY (id, day)
) PARTITION BY RANGE (day);

CREATE TABLE counts (
    hour BIGINT NOT NULL,
    group_id BIGINT NOT NULL,
    host BIGINT NOT NULL,
    count BIGINT NOT NULL,
    first_ns BIGINT NOT NULL,
    last_ns BIGINT NOT NULL,
    PRIMARY KEY (hour, group_id, host)
);

CREATE INDEX counts_by_group ON counts (group_id, hour);

CREATE TABLE hours (
    hour BIGINT NOT NULL,
    severity BIGINT NOT NULL,
    count BIGINT NOT NULL,
    PRIMARY KEY (hour, severity)
);

CREATE TABLE losses (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent BIGINT NOT NULL,
    time_ns BIGINT NOT NULL,
    kind TEXT NOT NULL,
    count BIGINT NOT NULL,
    detail TEXT NOT NULL
);

CREATE INDEX losses_by_time ON losses (time_ns);

CREATE TABLE audit (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    time_ns BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    object TEXT NOT NULL
);

CREATE TABLE users (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    password TEXT NOT NULL,
    created_ns BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    last_login_ns BIGINT
);

CREATE TABLE sessions (
    hash BYTEA PRIMARY KEY,
    user_id BIGINT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    created_ns BIGINT NOT NULL,
    expires_ns BIGINT NOT NULL
);

CREATE INDEX sessions_by_user ON sessions (user_id);

CREATE TABLE invitations (
    hash BYTEA PRIMARY KEY,
    role TEXT NOT NULL,
    created_by TEXT NOT NULL,
    expires_ns BIGINT NOT NULL,
    is_first BOOLEAN NOT NULL DEFAULT false
);

-- The beginning of an alert's output, as a JSON object; an empty one if the alert is no JSON.
CREATE FUNCTION excerpt(body TEXT, length INTEGER) RETURNS TEXT LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    -- No text of the server can hold the character that `\u0000` stands for.
    RETURN '{"output":' || coalesce(to_json(left(
        replace(body, '\u0000', '\ufffd')::json ->> 'output', length))::text, 'null') || '}';
EXCEPTION WHEN OTHERS THEN
    RETURN '{}';
END
$$;
