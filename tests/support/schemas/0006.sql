-- What schema 0006 brings, in use; the data of 0001 to 0005 is there already.
INSERT INTO stage_attempt (run_id, stage, attempt, position, title, state, done, unit, reference)
VALUES (10, 'train-every', 1, 0, 'Train', 'succeeded', 10, 'updates', '{"pid": 4711, "start": 99, "boot": "b"}');
