CREATE TABLE groups (
    id INTEGER PRIMARY KEY,
    round INTEGER NOT NULL DEFAULT 0,
    checkpoint TEXT,
    owner TEXT,
    heartbeat REAL NOT NULL DEFAULT 0
);
CREATE TABLE runs (
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
CREATE INDEX runs_by_identity ON runs ({identity});
CREATE INDEX runs_by_group ON runs (group_id, lane);
CREATE TABLE metrics (
    run INTEGER NOT NULL REFERENCES runs (key),
    round INTEGER NOT NULL,
    {measured},
    PRIMARY KEY (run, round)
) WITHOUT ROWID;
CREATE TABLE client_rounds (
    run INTEGER NOT NULL REFERENCES runs (key),
    round INTEGER NOT NULL,
    arrays BLOB NOT NULL,
    PRIMARY KEY (run, round)
);
CREATE VIEW results AS
    SELECT run_id, {identity}, round, {metrics} FROM metrics JOIN runs ON runs.key = metrics.run;
