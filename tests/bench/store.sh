#!/usr/bin/env bash
# Results a second through ZeroMQ into PostgreSQL: workers that answer at once.
KVF_LEASE=60s KVF_HEARTBEAT=5s
. "$KVF_SOURCE/tests/fleet.sh"
fleet_up 0
"$KVF_BUILD/tests/bench/bench_store" --coordinator "$url" --keys "$dir/keys" --db "$(conninfo kvfleet_reader)"
