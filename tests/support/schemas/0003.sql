-- What schema 0003 brings, in use; the data of 0001 and 0002 is there already.
INSERT INTO rank_usage (run_id, stage, attempt, rank, at, cpu_seconds, rss_bytes, gpu_bytes, gpu_percent)
VALUES (1, 'distributed', 1, 0, 1767323096.25, 1.5, 250000000, NULL, NULL), (1, 'distributed', 1, 1, 1767323096.25, 1.25, 5000000000, 1073741824, 87.0);
