#!/usr/bin/env bash
# SIGTERM drains a worker: it finishes or hands back, exits 0, and nothing waits for a lease to expire.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
KVF_LEASE=60s lease=60s
fleet_up 2
undisturbed
disturbed_sweep "worker drained"
kill -TERM "${pid[worker1]}"
code=0
wait "${pid[worker1]}" || code=$?
[ $code = 0 ] || fail "the drained worker exited with $code"
unset "pid[worker1]"
[ "$(sql "SELECT count(*) FROM leases l JOIN runs u USING (run_id) WHERE u.end_reason IS NOT NULL AND l.state = 'active'")" = 0 ] ||
    fail "a lease of the drained worker is still active"
expect_exact
[ "$(sql "SELECT count(*) FROM leases WHERE job_id = $job AND state = 'expired'")" = 0 ] || fail "a lease had to expire"
