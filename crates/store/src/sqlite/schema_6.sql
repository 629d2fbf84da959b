-- Labels of agents, and roll-outs for the agents of a class that a selector matches.

ALTER TABLE agents ADD COLUMN labels TEXT NOT NULL DEFAULT '';
ALTER TABLE agents ADD COLUMN recorded_labels TEXT NOT NULL DEFAULT ''; -- those that the audit log shows last

CREATE TABLE rollouts_by_selector (
    class TEXT NOT NULL,
    selector TEXT NOT NULL,       -- empty for all agents of the class
    priority INTEGER NOT NULL,
    bundle INTEGER NOT NULL REFERENCES bundles (id),
    previous INTEGER REFERENCES bundles (id),
    percent INTEGER NOT NULL,
    max_failures INTEGER,         -- NULL for no limit, here and below
    max_losses INTEGER,
    max_alerts INTEGER,
    halted TEXT,                  -- why
    started_ns INTEGER NOT NULL,
    actor TEXT NOT NULL,
    PRIMARY KEY (class, selector)
) STRICT, WITHOUT ROWID;

INSERT INTO rollouts_by_selector
    SELECT class, '', 0, bundle, previous, percent, max_failures, max_losses, max_alerts, halted, started_ns, actor
    FROM rollouts;

DROP TABLE rollouts;

ALTER TABLE rollouts_by_selector RENAME TO rollouts;
