-- The table $1 under its full name; no row when there is none.
select format('%I.%I', n.nspname, c.relname) as name
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.oid = to_regclass($1::text)
