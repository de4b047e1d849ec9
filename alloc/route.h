/* route.h: the head router: how a layer's budget is shared among its KV heads. Internal to alloc/. No allocation. */
#ifndef KVF_ROUTE_H
#define KVF_ROUTE_H

#include <stdint.h>
#include "alloc/err.h"
#include "alloc/policy.h"

#define ROUTE_MAX_HEADS 256

struct route_input {
    int heads;
    const int *entries;    /* [head] n_i */
    const int *always;     /* [head] entries that always stay: window, sinks, protected ones; may exceed n_i */
    const int *candidates; /* [head] max(0, n_i - always) */
    const uint32_t *rank;  /* ranks (select.h) of all candidates, head after head; a NaN ranks as minus infinity */
    const int *cap;        /* [head] most entries that its storage can keep; NULL where storage sets none (pages); only
                            * route_reasonalloc reads it */
    int64_t layer_budget;
    double *demand; /* [head] smoothed demand of earlier compactions, all 0: none yet; NULL unless policy.smooth > 0 */
};

struct route {                       /* what was decided and why, for tests and figures */
    int64_t threshold_k;             /* K, candidates the layer can keep */
    uint32_t threshold;              /* rank of tau; 0 when fewer than K candidates */
    int64_t demand[ROUTE_MAX_HEADS]; /* r_i, candidates at or above tau */
    int64_t lo[ROUTE_MAX_HEADS], hi[ROUTE_MAX_HEADS];
    int64_t budget[ROUTE_MAX_HEADS]; /* b_i, what always stays included, at most n_i */
};

/* Every head layer_budget / heads, what is left over to the first heads, never more than it holds. */
void route_uniform(int heads, const int *entries, int64_t layer_budget, struct route *out);

/* Ada-KV (arXiv 2407.11550; golden/compress adakv): counts above the K-th best score of the layer, and a floor of alpha
 * times the uniform share c = K / heads. FLOOR_BLEND: candidates in proportion to (1 - alpha) * r_i + alpha * c, the
 * original's formula with an exact total. FLOOR_PROTECT: every head's floor(alpha * c) best first, the rest to the best
 * of all heads, ties to the first head (kvpress). */
KVF_MUSTCHECK int route_ada(const struct policy *policy, const struct route_input *in, struct route *out,
                            struct kvf_err *err);

/* ReasonAlloc 5.3, Algorithm 1; alloc.md 1.4: r_i^beta shared out by ALLOC between floor and length. UTILITY_MASS: the
 * sum of what a head's candidates exceed tau by, which needs no scores above 0 as a sum of scores would. smooth: shares
 * of demand are averaged with those of earlier compactions. */
KVF_MUSTCHECK int route_reasonalloc(const struct policy *policy, const struct route_input *in, struct route *out,
                                    struct kvf_err *err);

#endif
