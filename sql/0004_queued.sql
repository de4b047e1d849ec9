-- queued: every problem is there and START was accepted; its samples are being made. The coordinator goes on with it by
-- itself, also after a restart, until it runs.
ALTER TABLE jobs DROP CONSTRAINT jobs_state_check;
ALTER TABLE jobs ADD CONSTRAINT jobs_state_check
    CHECK (state IN ('receiving', 'queued', 'running', 'done', 'done_with_errors', 'cancelled'));
