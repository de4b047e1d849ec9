-- Least privilege. Migrations run as kvfleet_owner; the coordinator can neither drop nor delete; readers see views only.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'kvfleet_coordinator') THEN
        CREATE ROLE kvfleet_coordinator LOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'kvfleet_reader') THEN
        CREATE ROLE kvfleet_reader LOGIN;
    END IF;
END $$;
ALTER ROLE kvfleet_reader SET default_transaction_read_only = on;
ALTER ROLE kvfleet_reader SET statement_timeout = '15s';

REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO kvfleet_coordinator, kvfleet_reader;

GRANT SELECT, INSERT ON workers, runs, jobs, cells, problems, samples, leases, results, grades TO kvfleet_coordinator;
GRANT UPDATE ON workers, runs, jobs, leases TO kvfleet_coordinator;
-- the fence check locks the lease row; results and grades are never changed
GRANT SELECT ON v_cell, v_sample, v_job, v_worker, schema_migrations TO kvfleet_coordinator, kvfleet_reader;
-- cell_rows and v_cell read the tables with their owner's rights, so that readers need none
ALTER FUNCTION cell_rows(bigint) SECURITY DEFINER SET search_path = public, pg_temp;
REVOKE ALL ON FUNCTION cell_rows(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cell_rows(bigint) TO kvfleet_coordinator, kvfleet_reader;
