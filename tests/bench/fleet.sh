#!/usr/bin/env bash
# The quickstart's sweep: emitted tokens over the wall time of the job, two workers of one core each.
KVF_LEASE=60s KVF_HEARTBEAT=5s
kv_type=${KVFLEET_KV_TYPE:-bf16} # as deploy/quickstart
set -e
. "${KVF_SOURCE:?expected the source tree}/tests/fleet.sh"
fleet_up 0
for i in 1 2; do
    worker_up "worker$i" --kv-type "$kv_type"
    taskset -acp $(((i - 1) % $(nproc))) "${pid[worker$i]}" >/dev/null
done
"$kvfleet_bin" calibrate --model "$model" --dataset "$KVF_SOURCE/data/probes.jsonl" --probes 8 >/dev/null 2>&1
kv sweep --model "$model" --dataset "$KVF_SOURCE/data/chain-arith-narrow.jsonl" \
    --policy full,streaming,snapkv,rkv,reasonalloc --budget 96,128,160,192 --interval 32 --limit 64 2>/dev/null
echo
sql "SELECT format('fleet: %s samples, %s emitted tokens in %s s: %s tok/s end to end', done, tokens, round(wall_s::numeric, 1), round(tokens_per_s::numeric)) FROM v_job"
sql "SELECT format('compaction: %s %% of decode time over the cells that compact', round((100.0 * sum(compaction_us) / sum(decode_us))::numeric, 1)) FROM results WHERE compactions > 0"
