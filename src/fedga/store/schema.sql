-- A results file. Table digests is made with the first digests (fedga.store.digests).
CREATE TABLE IF NOT EXISTS groups (
    id INTEGER PRIMARY KEY,
    round INTEGER NOT NULL DEFAULT 0,
    checkpoint TEXT,
    owner TEXT,
    heartbeat REAL NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS runs (
    key INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    dataset TEXT NOT NULL,
    alpha REAL,
    algorithm TEXT NOT NULL,
    preset TEXT NOT NULL,
    server TEXT NOT NULL,
    seed INTEGER NOT NULL,
    spec TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'done', 'diverged')),
    rounds_done INTEGER NOT NULL DEFAULT 0,
    note TEXT NOT NULL DEFAULT '',
    group_id INTEGER REFERENCES groups (id),
    lane INTEGER
);
CREATE INDEX IF NOT EXISTS runs_by_identity ON runs ({identity});
CREATE INDEX IF NOT EXISTS runs_by_group ON runs (group_id, lane);
CREATE TABLE IF NOT EXISTS metrics (
    run INTEGER NOT NULL REFERENCES runs (key),
    round INTEGER NOT NULL,
    {measured},
    PRIMARY KEY (run, round)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS client_rounds (
    run INTEGER NOT NULL REFERENCES runs (key),
    round INTEGER NOT NULL,
    arrays BLOB NOT NULL,
    PRIMARY KEY (run, round)
);
CREATE VIEW IF NOT EXISTS results AS
    SELECT run_id, {identity}, round, {metrics} FROM metrics JOIN runs ON runs.key = metrics.run;
-- Tables that earlier versions do not have: readers ask whether they are there.
CREATE TABLE IF NOT EXISTS partitions (key TEXT PRIMARY KEY, arrays BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS own_code (part TEXT PRIMARY KEY, digest TEXT NOT NULL, origin TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS own_metrics (
    run INTEGER NOT NULL REFERENCES runs (key),
    round INTEGER NOT NULL,
    name TEXT NOT NULL,
    value REAL,
    PRIMARY KEY (run, round, name)
) WITHOUT ROWID
