-- Captures around alerts, which agents record by themselves: the alert, and how much of the time around it they have.

ALTER TABLE captures ADD COLUMN rule TEXT;  -- of the alert; NULL for a capture that a person asked for
ALTER TABLE captures ADD COLUMN alert_ns BIGINT NOT NULL DEFAULT 0;
ALTER TABLE captures ADD COLUMN before_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE captures ADD COLUMN after_ms BIGINT NOT NULL DEFAULT 0;
