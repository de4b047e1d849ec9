#!/usr/bin/env bash
# kill -9 of the coordinator, three times: workers keep what is not acknowledged and come back by themselves.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
fleet_up 2
undisturbed
disturbed_sweep "coordinator killed"
for round in 1 2 3; do
    before=$(done_samples)
    kill -KILL "${pid[coordinator]}"
    wait "${pid[coordinator]}" 2>/dev/null || true
    coordinator_up
    wait_for 60 eval 'job_ended || done_at_least $((before + 1))'
done
expect_exact
