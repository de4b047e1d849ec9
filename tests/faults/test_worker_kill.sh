#!/usr/bin/env bash
# kill -9 of a worker in mid-sample: its leases expire, the others do its samples, the table is the same.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
fleet_up 2
undisturbed
disturbed_sweep "worker killed"
kill -KILL "${pid[worker1]}"
wait_for 30 eval '[ "$(sql "SELECT count(*) FROM leases WHERE job_id = $job AND state = '\''expired'\''")" -ge 1 ]'
expect_exact
[ "$(sql "SELECT count(DISTINCT run_id) FROM results WHERE job_id = $job")" = 2 ] || fail "only one worker has results"
[ "$(sql "SELECT max(attempt) FROM results WHERE job_id = $job")" -ge 2 ] || fail "no sample was tried again"
