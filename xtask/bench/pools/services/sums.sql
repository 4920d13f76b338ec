-- About 2 ms of CPU time, and ten times that for one in ten.
\set rows case when random(1, 10) = 10 then 100000 else 10000 end
select sum(sqrt(row)) from generate_series(1, :rows) as row;
