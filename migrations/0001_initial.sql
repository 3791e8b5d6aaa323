-- The first schema. Enumerations have the numbers of server/scheduler/rows.h. Ids are 16 bytes, most
-- significant first. Lists are packed (server/store/pack.h). Columns named *_ms are milliseconds since
-- 1970, for people; 0: not yet. Values of points and summaries never pass through a REAL column, which
-- would turn NaN into NULL: they are raw bits in integers and blobs.

-- One row. tail_seq counts commits; the tail sentinel beside this file holds the same number.
CREATE TABLE meta(
  id INTEGER PRIMARY KEY CHECK (id = 1),
  cluster BLOB NOT NULL CHECK (length(cluster) = 16),
  generation INTEGER NOT NULL,
  boot INTEGER NOT NULL,
  tail_seq INTEGER NOT NULL
) STRICT;

-- id: order of submission.
CREATE TABLE sweeps(
  id INTEGER PRIMARY KEY,
  uuid BLOB NOT NULL UNIQUE CHECK (length(uuid) = 16),
  project TEXT NOT NULL,
  name TEXT NOT NULL UNIQUE,
  base_name TEXT NOT NULL,
  spec_hash TEXT NOT NULL,
  rerun INTEGER NOT NULL,
  objective BLOB NOT NULL,
  axes BLOB NOT NULL,
  cells INTEGER NOT NULL,
  runs INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  -- what changes
  state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 5),
  proposed INTEGER NOT NULL,
  counts BLOB NOT NULL,
  reason TEXT NOT NULL,
  ended_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX sweeps_by_hash ON sweeps(spec_hash, project);
CREATE INDEX sweeps_live ON sweeps(id) WHERE state < 4;

-- The submitted document, zstd; apart, so that lists do not read it.
CREATE TABLE sweep_documents(
  sweep INTEGER PRIMARY KEY REFERENCES sweeps(id),
  spec BLOB NOT NULL
) STRICT;

CREATE TABLE runs(
  id INTEGER PRIMARY KEY,
  uuid BLOB NOT NULL UNIQUE CHECK (length(uuid) = 16),
  sweep INTEGER NOT NULL REFERENCES sweeps(id),
  project TEXT NOT NULL,
  run_key TEXT NOT NULL,
  rerun INTEGER NOT NULL,
  seed INTEGER NOT NULL,
  router TEXT NOT NULL,
  priority INTEGER NOT NULL,
  need_kind INTEGER NOT NULL,
  need_count INTEGER NOT NULL,
  max_parallel INTEGER NOT NULL,
  timeout_ms INTEGER NOT NULL,
  steps_total INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  -- what changes
  state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 9),
  current_epoch INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  cancel_req INTEGER NOT NULL,
  pause_req INTEGER NOT NULL,
  prune_req INTEGER NOT NULL,
  user_fail INTEGER NOT NULL,
  crash_fail INTEGER NOT NULL,
  infra_fail INTEGER NOT NULL,
  infra_streak INTEGER NOT NULL,
  progress_step INTEGER NOT NULL,
  active_ms INTEGER NOT NULL,
  not_before_ms INTEGER NOT NULL,
  reason TEXT NOT NULL,
  queued_ms INTEGER NOT NULL,
  started_ms INTEGER NOT NULL,
  ended_ms INTEGER NOT NULL,
  -- step of the newest committed point; NULL: no point yet
  step INTEGER
) STRICT;
CREATE INDEX runs_by_key ON runs(run_key, project, rerun);
CREATE INDEX runs_live ON runs(id) WHERE state < 5;

-- What a trainer gets, zstd. dictionary: the run whose own `spec` the two are compressed against
-- (the sweep's first); NULL: none.
CREATE TABLE run_documents(
  run INTEGER PRIMARY KEY REFERENCES runs(id),
  dictionary INTEGER REFERENCES run_documents(run),
  spec BLOB NOT NULL,
  attempt_spec BLOB NOT NULL
) STRICT;

-- A run belongs to every sweep that proposed its run_key. state: the run's, repeated here so that a
-- sweep's runs of one state are a range of an index.
CREATE TABLE links(
  sweep INTEGER NOT NULL REFERENCES sweeps(id),
  number INTEGER NOT NULL,
  run INTEGER NOT NULL REFERENCES runs(id),
  cell INTEGER NOT NULL,
  state INTEGER NOT NULL,
  columns BLOB NOT NULL,
  PRIMARY KEY (sweep, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX links_by_run ON links(run);
CREATE INDEX links_by_state ON links(sweep, state, number);

CREATE TABLE attempts(
  epoch INTEGER PRIMARY KEY,
  run INTEGER NOT NULL REFERENCES runs(id),
  ordinal INTEGER NOT NULL,
  worker BLOB NOT NULL CHECK (length(worker) = 16),
  pool TEXT NOT NULL,
  assign_rev INTEGER NOT NULL,
  resume_epoch INTEGER NOT NULL,
  resume_step INTEGER NOT NULL,
  resume_path TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  -- what changes
  state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 9),
  intent INTEGER NOT NULL,
  stop_reason INTEGER NOT NULL,
  end_class INTEGER NOT NULL,
  reason TEXT NOT NULL,
  start_reported INTEGER NOT NULL,
  resumed_epoch INTEGER NOT NULL,
  resumed_step INTEGER NOT NULL,
  final_step INTEGER NOT NULL,
  running_ms INTEGER NOT NULL,
  ended_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX attempts_by_run ON attempts(run, ordinal);
CREATE INDEX attempts_live ON attempts(epoch) WHERE state < 5;

CREATE TABLE members(
  epoch INTEGER NOT NULL REFERENCES attempts(epoch),
  rank INTEGER NOT NULL,
  worker BLOB NOT NULL CHECK (length(worker) = 16),
  slots BLOB NOT NULL,
  state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 9),
  exit_code INTEGER NOT NULL,
  signal INTEGER NOT NULL,
  end_class INTEGER NOT NULL,
  complete INTEGER NOT NULL,
  evidence TEXT NOT NULL,
  PRIMARY KEY (epoch, rank)
) STRICT, WITHOUT ROWID;

-- Slots held by members that have not ended: at most one holder each.
CREATE TABLE reservations(
  worker BLOB NOT NULL CHECK (length(worker) = 16),
  slot INTEGER NOT NULL,
  epoch INTEGER NOT NULL REFERENCES attempts(epoch),
  rank INTEGER NOT NULL,
  PRIMARY KEY (worker, slot)
) STRICT, WITHOUT ROWID;

-- is_merged: the stream is sealed and its chunks and output have their final size.
CREATE TABLE streams(
  epoch INTEGER NOT NULL REFERENCES attempts(epoch),
  rank INTEGER NOT NULL,
  acked INTEGER NOT NULL,
  declared_last INTEGER,
  sealed INTEGER NOT NULL,
  stdout_end INTEGER NOT NULL,
  stderr_end INTEGER NOT NULL,
  is_merged INTEGER NOT NULL,
  PRIMARY KEY (epoch, rank)
) STRICT, WITHOUT ROWID;
CREATE INDEX streams_open ON streams(epoch) WHERE sealed = 0;
CREATE INDEX streams_to_merge ON streams(epoch) WHERE sealed = 1 AND is_merged = 0;

CREATE TABLE names(
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE series(
  id INTEGER PRIMARY KEY,
  epoch INTEGER NOT NULL REFERENCES attempts(epoch),
  rank INTEGER NOT NULL,
  name INTEGER NOT NULL REFERENCES names(id),
  is_vector INTEGER NOT NULL,
  shape BLOB NOT NULL,
  UNIQUE (epoch, rank, name)
) STRICT;

-- In order of arrival: a table clustered by series writes four times the bytes. blob:
-- server/store/chunks.h. is_sorted: its steps never fall.
CREATE TABLE chunks(
  id INTEGER PRIMARY KEY,
  series INTEGER NOT NULL,
  first_seq INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  first_step INTEGER NOT NULL,
  last_step INTEGER NOT NULL,
  n INTEGER NOT NULL,
  is_sorted INTEGER NOT NULL,
  blob BLOB NOT NULL,
  UNIQUE (series, first_seq)
) STRICT;

CREATE TABLE stream_events(
  id INTEGER PRIMARY KEY,
  epoch INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  covers INTEGER NOT NULL,
  kind TEXT NOT NULL,
  json TEXT NOT NULL,
  UNIQUE (epoch, rank, seq)
) STRICT;

-- Raw output. stream: 1 stdout, 2 stderr. n: bytes of the text; codec: 1 plain, 2 zstd.
CREATE TABLE logs(
  id INTEGER PRIMARY KEY,
  epoch INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  stream INTEGER NOT NULL,
  "offset" INTEGER NOT NULL,
  n INTEGER NOT NULL,
  codec INTEGER NOT NULL,
  blob BLOB NOT NULL,
  UNIQUE (epoch, rank, stream, "offset")
) STRICT;

CREATE TABLE checkpoints(
  run INTEGER NOT NULL REFERENCES runs(id),
  step INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  state INTEGER NOT NULL,
  digest TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  path TEXT NOT NULL,
  store TEXT NOT NULL,
  PRIMARY KEY (run, step, epoch)
) STRICT, WITHOUT ROWID;

-- last and best: the bits of the float64.
CREATE TABLE summaries(
  run INTEGER NOT NULL REFERENCES runs(id),
  name INTEGER NOT NULL REFERENCES names(id),
  is_vector INTEGER NOT NULL,
  shape BLOB NOT NULL,
  last INTEGER NOT NULL,
  last_step INTEGER NOT NULL,
  has_best INTEGER NOT NULL,
  best INTEGER NOT NULL,
  best_step INTEGER NOT NULL,
  count INTEGER NOT NULL,
  non_finite INTEGER NOT NULL,
  PRIMARY KEY (run, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE idem(
  request_id TEXT PRIMARY KEY,
  method TEXT NOT NULL,
  body_hash TEXT NOT NULL,
  reply BLOB NOT NULL,
  expires_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX idem_by_expiry ON idem(expires_ms);

CREATE TABLE workers(
  id INTEGER PRIMARY KEY,
  uuid BLOB NOT NULL UNIQUE CHECK (length(uuid) = 16),
  incarnation INTEGER NOT NULL,
  instance_id TEXT NOT NULL,
  pool TEXT NOT NULL,
  host TEXT NOT NULL,
  version TEXT NOT NULL,
  metrics_address TEXT NOT NULL,
  checkpoint_store TEXT NOT NULL,
  threads_per_slot INTEGER NOT NULL,
  labels BLOB NOT NULL,
  slots BLOB NOT NULL,
  admin INTEGER NOT NULL,
  cordoned INTEGER NOT NULL,
  cordon_reason TEXT NOT NULL
) STRICT;

-- ref: run, sweep or worker.
CREATE TABLE history(
  id INTEGER PRIMARY KEY,
  at_ms INTEGER NOT NULL,
  kind TEXT NOT NULL,
  ref BLOB NOT NULL CHECK (length(ref) = 16),
  text TEXT NOT NULL
) STRICT;
CREATE INDEX history_by_ref ON history(ref);
