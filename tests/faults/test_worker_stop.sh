#!/usr/bin/env bash
# SIGSTOP of a worker past its lease, SIGCONT after others did its samples: its late results are fenced off.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
fleet_up 2
undisturbed
disturbed_sweep "worker stopped"
kill -STOP "${pid[worker1]}"
wait_for 30 eval '[ "$(sql "SELECT count(*) FROM leases WHERE job_id = $job AND state = '\''expired'\''")" -ge 1 ]'
expired=$(sql "SELECT string_agg(fence::text, ',') FROM leases WHERE job_id = $job AND state = 'expired'")
late=$(sql "SELECT count(*) FROM results WHERE fence IN ($expired)")
kill -CONT "${pid[worker1]}"
expect_exact
[ "$(sql "SELECT count(*) FROM results WHERE fence IN ($expired)")" = "$late" ] || fail "a fenced lease wrote results"
kill -0 "${pid[worker1]}" || fail "the worker did not survive"
fleet_sweep --title "after SIGCONT"
wait_for 120 job_ended
[ "$(sql "SELECT count(DISTINCT run_id) FROM results WHERE job_id = $job")" = 2 ] || fail "the worker does not work any more"
