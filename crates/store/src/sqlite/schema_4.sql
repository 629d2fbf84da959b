-- Sums for each question that a page asks, so that none reads more rows than it shows hours, groups or hosts.

-- Of all alerts of a group, and of a host. `last_ns` is 0 without alerts.
ALTER TABLE groups ADD COLUMN count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN first_ns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN last_ns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hosts ADD COLUMN count INTEGER NOT NULL DEFAULT 0;

-- Groups in a range of hours.
CREATE TABLE group_hours (
    hour INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    count INTEGER NOT NULL,
    first_ns INTEGER NOT NULL,
    last_ns INTEGER NOT NULL,
    PRIMARY KEY (hour, group_id)
) STRICT, WITHOUT ROWID;

-- Hosts of a group, each with the hour of its last alert: changed once an hour, not with each batch.
CREATE TABLE group_hosts (
    group_id INTEGER NOT NULL,
    host INTEGER NOT NULL,
    last_hour INTEGER NOT NULL,
    PRIMARY KEY (group_id, host)
) STRICT, WITHOUT ROWID;

-- Groups of a host in a range of hours. The table had another order, which served none of the questions well.
CREATE TABLE host_hours (
    host INTEGER NOT NULL,
    hour INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    count INTEGER NOT NULL,
    first_ns INTEGER NOT NULL,
    last_ns INTEGER NOT NULL,
    PRIMARY KEY (host, hour, group_id)
) STRICT, WITHOUT ROWID;

-- The most frequent rules and hosts in a range. `span` is 1 for hours and 24 for days, `start` the hour or day since
-- 1970.
CREATE TABLE rule_sums (
    span INTEGER NOT NULL,
    start INTEGER NOT NULL,
    rule TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (span, start, rule)
) STRICT, WITHOUT ROWID;

CREATE TABLE host_sums (
    span INTEGER NOT NULL,
    start INTEGER NOT NULL,
    host INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (span, start, host)
) STRICT, WITHOUT ROWID;

INSERT INTO host_hours SELECT host, hour, group_id, count, first_ns, last_ns FROM counts;

INSERT INTO group_hours SELECT hour, group_id, sum(count), min(first_ns), max(last_ns) FROM counts GROUP BY 1, 2;

INSERT INTO group_hosts SELECT group_id, host, max(hour) FROM counts GROUP BY 1, 2;

INSERT INTO rule_sums SELECT 1, hour, rule, sum(h.count) FROM group_hours h JOIN groups g ON g.id = group_id GROUP BY 2, 3;

INSERT INTO host_sums SELECT 1, hour, host, sum(count) FROM counts GROUP BY 2, 3;

-- Hours before 1970 are negative: a day of theirs does not begin where a division that rounds towards zero says.
INSERT INTO rule_sums SELECT 24, (start - ((start % 24) + 24) % 24) / 24, rule, sum(count) FROM rule_sums GROUP BY 2, 3;

INSERT INTO host_sums SELECT 24, (start - ((start % 24) + 24) % 24) / 24, host, sum(count) FROM host_sums GROUP BY 2, 3;

UPDATE groups SET count = s.count, first_ns = s.first_ns, last_ns = s.last_ns
    FROM (SELECT group_id, sum(count) AS count, min(first_ns) AS first_ns, max(last_ns) AS last_ns
          FROM group_hours GROUP BY 1) AS s
    WHERE s.group_id = groups.id;

UPDATE hosts SET count = coalesce((SELECT sum(count) FROM host_sums WHERE span = 24 AND host = hosts.id), 0);

DROP TABLE counts;
