-- People, and what they do about groups of alerts.

ALTER TABLE groups ADD COLUMN assignee TEXT NOT NULL DEFAULT '';
ALTER TABLE groups ADD COLUMN muted_until_ns INTEGER;

CREATE TABLE comments (
    id INTEGER PRIMARY KEY,
    group_id INTEGER NOT NULL,
    time_ns INTEGER NOT NULL,
    actor TEXT NOT NULL,
    text TEXT NOT NULL
) STRICT;

CREATE INDEX comments_by_group ON comments (group_id, id);

CREATE TABLE users (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    password TEXT NOT NULL,       -- the hash, in PHC form
    created_ns INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    last_login_ns INTEGER
) STRICT;

CREATE TABLE sessions (
    hash BLOB PRIMARY KEY,        -- of the cookie, which itself is not kept
    user INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    created_ns INTEGER NOT NULL,
    expires_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_by_user ON sessions (user);

CREATE TABLE invitations (
    hash BLOB PRIMARY KEY,        -- of the link's secret
    role TEXT NOT NULL,
    created_by TEXT NOT NULL,
    expires_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
