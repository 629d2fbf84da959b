-- Labels of agents, and roll-outs for the agents of a class that a selector matches.

ALTER TABLE agents ADD COLUMN labels TEXT NOT NULL DEFAULT '';

ALTER TABLE rollouts
    ADD COLUMN selector TEXT NOT NULL DEFAULT '', -- empty for all agents of the class
    ADD COLUMN priority BIGINT NOT NULL DEFAULT 0,
    DROP CONSTRAINT rollouts_pkey,
    ADD PRIMARY KEY (class, selector);
