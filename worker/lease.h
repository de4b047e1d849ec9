/* lease.h: a lease as the worker keeps it: a copy of the message that needs no further memory until its last result is
 * delivered. Made by the network's thread, then owned by the engine's thread. */
#ifndef KVF_WORKER_LEASE_H
#define KVF_WORKER_LEASE_H

#include <stdbool.h>
#include "alloc/policy.h"
#include "alloc/profile.h"
#include "engine/engine.h"
#include "proto/message.h"
#include "worker/row.h"

struct lease_cell {
    uint64_t cell_id;
    struct policy policy;
    int budget_tokens, interval_tokens, max_new_tokens;
    struct sampling sampling;
    char template_name[64];
    char trouble[512]; /* why no sample of it can run, "" */
};

enum sample_state { SAMPLE_WAITING, SAMPLE_RUNNING, SAMPLE_OVER };
struct lease_sample {
    enum sample_state state;
    const struct lease_cell *cell; /* NULL: the lease lacks it */
    char *problem, *answer;
    uint64_t seed;
    uint64_t request; /* id in the engine while running */
    struct row *row;  /* until it is reported */
};

struct lease {
    struct lease *next;
    int64_t fence;
    char model_hash[65];
    struct wave_profile *profile; /* NULL: none came */
    char trouble[512];            /* why nothing of it can run, "" */
    struct lease_cell *cells;
    int n_cells;
    struct lease_sample *samples;
    int n_samples;
    struct row *notice; /* ROW_RELEASED, ready to be sent */
};

/* Bad contents (a policy, a profile) are no failure here: they become the error of each sample that they concern. */
KVF_MUSTCHECK int lease_new(const struct msg_lease *message, struct lease **out, struct kvf_err *err);
void lease_free(struct lease *lease);
int lease_count(const struct lease *lease, enum sample_state state);

#endif
