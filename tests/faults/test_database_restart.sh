#!/usr/bin/env bash
# Immediate stop (no checkpoint, sessions cut) and restart of PostgreSQL: intake pauses, nothing is lost.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
fleet_up 2
undisturbed
disturbed_sweep "database restarted"
"$KVF_SOURCE"/deploy/pgcluster stop "$dir/pg" immediate
wait_for 30 grep -q database_down "$dir/coordinator.log"
"$KVF_SOURCE"/deploy/pgcluster start "$dir/pg"
expect_exact
kill -0 "${pid[coordinator]}" || fail "the coordinator did not survive"
