#!/usr/bin/env bash
# Disk full under the results: intake pauses, nothing is acknowledged, and it goes on when there is room again.
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
small=$dir/small
mkdir -p "$small"
if [ "$(id -u)" -ne 0 ] || ! mount -t tmpfs -o size=8m kvfleet-test "$small" 2>/dev/null; then
    echo "skip: mounting a small tmpfs needs root"
    exit 77
fi
trap 'fleet_down; umount "$small" 2>/dev/null || true; at_exit' EXIT
chown postgres "$small"
fleet_up 2
undisturbed
sql "CREATE TABLESPACE small LOCATION '$small'"
sql "ALTER TABLE results SET TABLESPACE small"
head -c 16m /dev/zero >"$small/filler" 2>/dev/null || true
fleet_sweep --title "disk full"
wait_for 60 grep -q disk_full "$dir/coordinator.log"
kill -0 "${pid[coordinator]}" || fail "the coordinator did not survive"
rm "$small/filler"
expect_exact
