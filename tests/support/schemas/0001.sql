-- A database of schema 0001 with every table in use.
INSERT INTO meta (key, value) VALUES ('identity', 'a1b2');
INSERT INTO run (id, name, notes, pinned, kind, preset, params, launch, state, reason, verdict, created_at, started_at, finished_at, gpus, waiting_for, next_event_id, diagnosis, created_by, deleting, idempotency_key)
VALUES (1, 'first', 'a note', 1, 'token-parity', 'quick', '{"seed": 47}', '{}', 'succeeded', 'completed', 'pass', '2026-01-02 03:04:05.000000', '2026-01-02 03:04:06.000000', '2026-01-02 03:05:06.000000', '[]', '', 4, '', 'operator', 0, 'key-1'),
       (2, 'second', '', 0, 'cifar', 'quick', '{"mode": "both"}', '{}', 'failed', 'rank_signal', NULL, '2026-01-03 03:04:05.000000', '2026-01-03 03:04:06.000000', '2026-01-03 03:05:06.000000', '[]', '', 1, 'rank 1 died', 'user', 0, NULL),
       (9, 'third', '', 0, 'resume', 'quick', '{}', '{}', 'queued', NULL, NULL, '2026-01-04 03:04:05.000000', NULL, NULL, '[]', 'no worker', 1, '', 'user', 0, NULL);
INSERT INTO run_tag (run_id, tag) VALUES (1, 'nightly'), (1, 'gloo'), (2, 'nightly');
INSERT INTO run_history (run_id, seq, at, origin, target, reason, note, actor)
VALUES (1, 1, '2026-01-02 03:04:05.000000', NULL, 'queued', NULL, '', 'operator'),
       (1, 2, '2026-01-02 03:04:06.000000', 'queued', 'starting', NULL, '', 'w1'),
       (1, 3, '2026-01-02 03:04:07.000000', 'starting', 'running', NULL, '', 'w1'),
       (1, 4, '2026-01-02 03:05:06.000000', 'running', 'succeeded', 'completed', '', 'w1');
INSERT INTO stage_attempt (run_id, stage, attempt, position, title, state, done, total, unit, exit_code)
VALUES (1, 'distributed', 1, 0, 'Distributed', 'succeeded', 10, 10, 'updates', 0);
INSERT INTO rank (run_id, stage, attempt, rank, local_rank, node, pid, host, device, phase, stalled, "offset", events, malformed)
VALUES (1, 'distributed', 1, 0, 0, 'n', 11, 'h', 'cpu', 'end', 0, 300, 2, 0),
       (1, 'distributed', 1, 1, 1, 'n', 12, 'h', 'cpu', 'end', 0, 200, 1, 1);
INSERT INTO run_event (run_id, id, stage, attempt, rank, type, line)
VALUES (1, 1, 'distributed', 1, 0, 'start', '{"seq": 0, "type": "start"}'),
       (1, 2, 'distributed', 1, 1, 'start', '{"seq": 0, "type": "start"}'),
       (1, 3, 'distributed', 1, 0, 'metrics', '{"seq": 1, "type": "metrics", "values": {"loss": "NaN"}}');
INSERT INTO metric_chunk (run_id, first_event_id, key, rank, stage, attempt, count, steps, points)
VALUES (1, 3, 'loss', 0, 'distributed', 1, 1, X'0000000000000000', X'000000000000F87F');
INSERT INTO malformed_line (run_id, stage, attempt, rank, "offset", text, why) VALUES (1, 'distributed', 1, 1, 150, '{"seq": 1, "ty', 'torn');
INSERT INTO worker (id, pid, pid_start, boot_id, host, started_at, heartbeat_at, devices, kinds, targets)
VALUES ('w1', 10, 5.5, 'b', 'h', '2026-01-02 03:00:00.000000', '2026-01-02 03:06:00.000000', '{"gpus": []}', '["cifar"]', '[]');
INSERT INTO audit_entry (id, at, actor, action, run_id, detail) VALUES (1, '2026-01-02 03:04:05.000000', 'operator', 'submit', 1, ''), (2, '2026-01-04 03:04:05.000000', 'operator', 'delete', 5, 'cifar, failed');
