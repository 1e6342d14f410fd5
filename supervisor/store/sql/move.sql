-- Statements of `supervisor move` for every engine. What stands in braces is filled in: tables, columns and keys that the
-- schema names.

-- name: count
SELECT count(*) FROM {table} WHERE {where};

-- name: block
SELECT {columns} FROM {table} WHERE {where} ORDER BY {order} LIMIT :limit;

-- name: clear
DELETE FROM {table} WHERE {where};
