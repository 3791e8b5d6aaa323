-- What verbs, retry and poison rules, placement by policy, fair share and the retention of checkpoints
-- keep. Lists are packed (server/store/policy_pack.h); priority of old runs: as submitted.

ALTER TABLE sweeps ADD COLUMN parent BLOB;
ALTER TABLE sweeps ADD COLUMN budget_slot_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sweeps ADD COLUMN retried INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sweeps ADD COLUMN slot_ms INTEGER NOT NULL DEFAULT 0;
-- NULL: the policy's.
ALTER TABLE sweeps ADD COLUMN run_priority INTEGER;
ALTER TABLE sweeps ADD COLUMN early_failures BLOB NOT NULL DEFAULT x'';

ALTER TABLE runs ADD COLUMN parent BLOB;
ALTER TABLE runs ADD COLUMN policy BLOB NOT NULL DEFAULT x'';
ALTER TABLE runs ADD COLUMN current_priority INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET current_priority = priority;
ALTER TABLE runs ADD COLUMN alternative INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN evidence BLOB NOT NULL DEFAULT x'';

ALTER TABLE attempts ADD COLUMN grace_ms INTEGER NOT NULL DEFAULT 0;
UPDATE attempts SET grace_ms = 60000 WHERE intent > 1 AND intent < 4;

ALTER TABLE checkpoints ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
-- The bits of the float64; NULL: none.
ALTER TABLE checkpoints ADD COLUMN score INTEGER;
ALTER TABLE checkpoints ADD COLUMN state_ms INTEGER NOT NULL DEFAULT 0;
CREATE INDEX checkpoints_doomed ON checkpoints(state) WHERE state IN (4, 5);

ALTER TABLE workers ADD COLUMN memory_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN drain_deadline_ms INTEGER NOT NULL DEFAULT 0;

-- Decayed use of slots, as of at_ms. slot_seconds: the bits of the float64.
CREATE TABLE usage(
  project TEXT PRIMARY KEY,
  slot_seconds INTEGER NOT NULL,
  at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
