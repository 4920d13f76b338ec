-- A report of 30,000 accounts in the order of their balance: about 2.5 MB to sort, which fits the
-- default work_mem and spills to disk below 2 MB; some 30 ms of work.
\set first random(1, 100000 * :scale - 30000)
SELECT aid FROM (
    SELECT aid, abalance, filler FROM pgbench_accounts
    WHERE aid BETWEEN :first AND :first + 30000
    ORDER BY abalance, aid
) AS ordered OFFSET 29999;
