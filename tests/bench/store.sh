#!/usr/bin/env bash
# Results a second through ZeroMQ into PostgreSQL: workers that answer at once.
KVF_LEASE=60s KVF_HEARTBEAT=5s
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
fleet_up 0
backend=$(sql "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'kvfleet-coordinator %:%'")
echo "processes of --cpu: 1 coordinator, 2 its PostgreSQL backend"
"$KVF_BUILD/tests/bench/bench_store" --cpu "${pid[coordinator]},$backend" --coordinator "$url" --keys "$dir/keys" --db "$(conninfo kvfleet_reader)"
