-- What schema 0004 brings, in use; the data of 0001 to 0003 is there already, and runs 1 and 2 took 60 s by their times.
INSERT INTO run (id, name, notes, pinned, kind, preset, params, launch, state, reason, verdict, created_at, started_at, finished_at, took_seconds, gpus, waiting_for, next_event_id, diagnosis, created_by, deleting)
VALUES (10, 'fourth', '', 1, 'cifar', 'quick', '{}', '{}', 'succeeded', 'completed', 'fail', '2026-01-05 03:04:05.000000', '2026-01-05 03:04:06.000000', '2026-01-05 03:04:18.250000', 12.25, '[]', '', 1, '', 'user', 0);
