/* plan.h: what a sweep consists of: policies x budgets, checked before anything is sent. Pure. */
#ifndef KVF_PLAN_H
#define KVF_PLAN_H

#include <stdbool.h>
#include "alloc/err.h"
#include "alloc/policy.h"

#define PLAN_MAX_CELLS 1024

struct plan_cell {
    struct policy policy;
    int budget_tokens; /* 0 for `full`, which has none */
};
struct plan {
    struct plan_cell *cells; /* owned; policies in the order given, then budgets in the order given */
    int n_cells;
    bool needs_profile;
};

/* Splits "full,rkv:window=8,sinks=4,random" at the commas that begin a new policy: a piece `key=value` belongs to the
 * policy before it. `pieces` are joined by commas first (a flag may be repeated). Policies given twice are refused.
 * *out is malloc'd. */
KVF_MUSTCHECK int policy_list_parse(const char *const *pieces, struct policy **out, int *count, struct kvf_err *err);

/* `full` gives one cell whatever the budgets; every other policy needs at least one budget, and each budget must suit
 * it. */
KVF_MUSTCHECK int plan_make(const char *const *policies, const char *const *budgets, int interval_tokens,
                            struct plan *out, struct kvf_err *err);
void plan_free(struct plan *plan);

#endif
