-- What schema 0002 brings, in use; the data of 0001 is there already.
INSERT INTO webhook_delivery (id, run_id, run, status, attempts, next_at, delivered_at)
VALUES (1, 1, '{"id": 1, "state": "succeeded"}', 'delivered', 2, '2026-01-02 03:06:00.000000', '2026-01-02 03:05:20.000000'),
       (2, 5, '{"id": 5, "state": "failed"}', 'pending', 0, '2026-01-02 03:06:00.000000', NULL);
INSERT INTO webhook_attempt (delivery_id, number, at, seconds, status, error)
VALUES (1, 1, '2026-01-02 03:05:07.000000', 10.0, NULL, 'no answer: ConnectTimeout'), (1, 2, '2026-01-02 03:05:20.000000', 0.1, 204, '');
INSERT INTO run_check (run_id, name, kind, title, passed, measured, "limit", unit)
VALUES (1, 'gradient_parity', 'token-parity', 'Gradients agree', 1, '3e-08', '1e-06', ''), (1, 'sync_count', 'token-parity', 'One synchronisation', NULL, '"NaN"', NULL, 'syncs');
INSERT INTO run_facts (run_id, bytes, files, measured_at, checks_read) VALUES (1, 1234, 5, '2026-01-02 04:00:00.000000', 1);
