-- Labels of agents, and roll-outs for the agents of a class that a selector matches.

ALTER TABLE agents
    ADD COLUMN labels TEXT NOT NULL DEFAULT '',
    ADD COLUMN recorded_labels TEXT NOT NULL DEFAULT ''; -- those that the audit log shows last

-- A collector of an older build that goes on running knows no selectors, and would hand a bundle to any agent of the
-- class: it must not find its table.
ALTER TABLE rollouts RENAME TO rollouts_by_selector;

ALTER TABLE rollouts_by_selector
    ADD COLUMN selector TEXT NOT NULL DEFAULT '', -- empty for all agents of the class
    ADD COLUMN priority BIGINT NOT NULL DEFAULT 0,
    DROP CONSTRAINT rollouts_pkey,
    ADD PRIMARY KEY (class, selector);
