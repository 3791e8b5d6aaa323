-- Sweeps whose cells are proposed by a strategy while they run.

ALTER TABLE sweeps ADD COLUMN is_drawn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sweeps ADD COLUMN is_closed INTEGER NOT NULL DEFAULT 0;

-- What the strategy knows, zstd (server/app/strategies.h).
CREATE TABLE strategies(
  sweep INTEGER PRIMARY KEY REFERENCES sweeps(id),
  state BLOB NOT NULL
) STRICT;
