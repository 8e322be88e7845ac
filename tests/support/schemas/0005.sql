-- What schema 0005 brings, in use; the data of 0001 to 0004 is there already, and its checks say no relation.
INSERT INTO run_check (run_id, name, kind, title, passed, measured, "limit", relation, strict, unit)
VALUES (10, 'gradient_syncs', 'cifar', 'Synchronisations', 0, '21', '18', 'equal', 0, 'synchronisations'), (10, 'negative_control', 'cifar', 'Rejected', 1, '0.02', '1e-06', 'at_least', 1, '');
