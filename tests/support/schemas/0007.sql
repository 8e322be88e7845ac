-- What schema 0007 brings, in use; the data of 0001 to 0006 is there already.
INSERT INTO ended_session (id, until) VALUES ('5d1f0c9a', '2026-12-01 10:00:00.000000');
