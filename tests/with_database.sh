#!/usr/bin/env bash
# Runs PROGRAM with KVF_DB and KVF_DB_OWNER set: connection strings of a throw-away database with the newest schema.
#   tests/with_database.sh PROGRAM [ARGUMENT...]
export KVF_BUILD=${KVF_BUILD:-none} KVF_SOURCE=${KVF_SOURCE:-$(cd "$(dirname "$0")/.." && pwd)}
. "$KVF_SOURCE/tests/fleet.sh"
database_up
KVF_DB=$(conninfo kvfleet_coordinator) KVF_DB_OWNER=$(conninfo kvfleet_owner) "$@"
