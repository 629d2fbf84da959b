-- A search reads what an index of words has not sorted in yet, 4 MB of each day by default: with 30 days that takes longer
-- than all the rest. Later partitions are made with the limit.

DO $$
DECLARE
    partition TEXT;
BEGIN
    FOR partition IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'alerts'::regclass
    LOOP
        EXECUTE format('ALTER INDEX %I SET (gin_pending_list_limit = 256)', partition || '_words');
        PERFORM gin_clean_pending_list(format('%I', partition || '_words')::regclass);
    END LOOP;
END
$$;
