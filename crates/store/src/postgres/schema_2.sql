-- Sums for each question that a page asks, so that none reads more rows than it shows hours, groups or hosts.

-- Of all alerts of a group, and of a host. `last_ns` is 0 without alerts.
ALTER TABLE groups ADD COLUMN count BIGINT NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN first_ns BIGINT NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN last_ns BIGINT NOT NULL DEFAULT 0;
ALTER TABLE hosts ADD COLUMN count BIGINT NOT NULL DEFAULT 0;

-- Room for the rows that each batch changes: without an index on what changes they need not move.
ALTER TABLE groups SET (fillfactor = 70);
ALTER TABLE hosts SET (fillfactor = 70);

-- Groups in a range of hours.
CREATE TABLE group_hours (
    hour BIGINT NOT NULL,
    group_id BIGINT NOT NULL,
    count BIGINT NOT NULL,
    first_ns BIGINT NOT NULL,
    last_ns BIGINT NOT NULL,
    PRIMARY KEY (hour, group_id)
);

CREATE INDEX group_hours_by_group ON group_hours (group_id, hour);

-- Hosts of a group, each with the hour of its last alert: changed once an hour, not with each batch.
CREATE TABLE group_hosts (
    group_id BIGINT NOT NULL,
    host BIGINT NOT NULL,
    last_hour BIGINT NOT NULL,
    PRIMARY KEY (group_id, host)
);

-- Groups of a host in a range of hours. The table had another order, which served none of the questions well.
CREATE TABLE host_hours (
    host BIGINT NOT NULL,
    hour BIGINT NOT NULL,
    group_id BIGINT NOT NULL,
    count BIGINT NOT NULL,
    first_ns BIGINT NOT NULL,
    last_ns BIGINT NOT NULL,
    PRIMARY KEY (host, hour, group_id)
);

-- The most frequent rules and hosts in a range. `span` is 1 for hours and 24 for days, `start` the hour or day since
-- 1970.
CREATE TABLE rule_sums (
    span BIGINT NOT NULL,
    start BIGINT NOT NULL,
    -- Of the rule, whose name may be longer than an index takes.
    digest TEXT NOT NULL,
    rule TEXT NOT NULL,
    count BIGINT NOT NULL,
    PRIMARY KEY (span, start, digest)
);

CREATE TABLE host_sums (
    span BIGINT NOT NULL,
    start BIGINT NOT NULL,
    host BIGINT NOT NULL,
    count BIGINT NOT NULL,
    PRIMARY KEY (span, start, host)
);

INSERT INTO host_hours SELECT host, hour, group_id, count, first_ns, last_ns FROM counts;

INSERT INTO group_hours SELECT hour, group_id, sum(count), min(first_ns), max(last_ns) FROM counts GROUP BY 1, 2;

INSERT INTO group_hosts SELECT group_id, host, max(hour) FROM counts GROUP BY 1, 2;

-- Two rules can have one digest.
INSERT INTO rule_sums SELECT 1, hour, md5(rule), min(rule), sum(h.count) FROM group_hours h JOIN groups g ON g.id = group_id GROUP BY 2, 3;

INSERT INTO host_sums SELECT 1, hour, host, sum(count) FROM counts GROUP BY 2, 3;

INSERT INTO rule_sums SELECT 24, floor(start / 24.0)::bigint, digest, min(rule), sum(count) FROM rule_sums GROUP BY 2, 3;

INSERT INTO host_sums SELECT 24, floor(start / 24.0)::bigint, host, sum(count) FROM host_sums GROUP BY 2, 3;

UPDATE groups SET count = s.count, first_ns = s.first_ns, last_ns = s.last_ns
    FROM (SELECT group_id, sum(count) AS count, min(first_ns) AS first_ns, max(last_ns) AS last_ns
          FROM group_hours GROUP BY 1) AS s
    WHERE s.group_id = groups.id;

UPDATE hosts SET count = coalesce((SELECT sum(count) FROM host_sums WHERE span = 24 AND host = hosts.id), 0);

DROP TABLE counts;
