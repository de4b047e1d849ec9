/* route.h: the head router: how a layer's budget is shared among its KV heads (ReasonAlloc 5.3, Algorithm 1;
 * alloc.md 1.4). Internal to alloc/. No allocation. */
#ifndef KVF_ROUTE_H
#define KVF_ROUTE_H

#include <stdint.h>
#include "alloc/err.h"
#include "alloc/policy.h"

#define ROUTE_MAX_HEADS 256

struct route {                       /* what was decided and why, for tests and figures */
    int64_t threshold_k;             /* K, candidates the layer can keep */
    uint32_t threshold;              /* rank of tau; 0 when fewer than K candidates */
    int64_t demand[ROUTE_MAX_HEADS]; /* r_i */
    int64_t lo[ROUTE_MAX_HEADS], hi[ROUTE_MAX_HEADS];
    int64_t budget[ROUTE_MAX_HEADS]; /* b_i, window and sinks included */
};

/* Every head layer_budget / heads, what is left over to the first heads, never more than it holds. */
void route_uniform(int heads, const int *entries, int64_t layer_budget, struct route *out);

/* rank: ranks (select.h) of all candidates of the layer, head after head; candidates[i] of them belong to head i, which
 * holds entries[i]. cap[i]: most entries that head i's storage can keep, NULL where storage sets none (pages). */
KVF_MUSTCHECK int route_reasonalloc(const struct policy *policy, int window, int heads, const int *entries,
                                    const int *candidates, const uint32_t *rank, const int *cap, int64_t layer_budget,
                                    struct route *out, struct kvf_err *err);

#endif
