/* route.c: head budgets. */
#include "alloc/route.h"

#include <math.h>

#include "alloc/apportion.h"
#include "alloc/select.h"

void route_uniform(int heads, const int *entries, int64_t layer_budget, struct route *out)
{
    for (int h = 0; h < heads; h++) {
        int64_t share = layer_budget / heads + (h < layer_budget % heads);
        out->budget[h] = share < entries[h] ? share : entries[h];
    }
}

/* K, tau and every head's count. */
static int demand_find(const struct route_input *in, struct route *out, struct kvf_err *err)
{
    int64_t total = 0, always = 0;
    for (int h = 0; h < in->heads; h++) {
        total += in->candidates[h];
        always += in->always[h];
    }
    if (in->layer_budget < always + in->heads)
        return kvf_fail(err, KVF_EINVAL,
                        "layer budget %lld, expected at least %lld: what always stays in %d heads, and 1 more in each",
                        (long long)in->layer_budget, (long long)always + in->heads, in->heads);
    out->threshold_k = in->layer_budget - always;
    out->threshold = total >= out->threshold_k ? select_rank(in->rank, (int)total, (int)out->threshold_k) : 0;
    const uint32_t *rank = in->rank;
    for (int h = 0; h < in->heads; rank += in->candidates[h], h++)
        out->demand[h] = select_count(rank, in->candidates[h], out->threshold);
    return 0;
}

static int64_t at_least(int64_t least, int64_t value)
{
    return value > least ? value : least;
}
static int64_t at_most(int64_t most, int64_t value)
{
    return value < most ? value : most;
}

/* ---- Ada-KV ---- */

/* Candidates that each head keeps when its `floor` best are safe and the others of all heads compete for the rest: the
 * largest threshold at which max(floor, count) reaches `total`, found by halving the range of ranks. */
static void share_protected(const struct route_input *in, int64_t floor, int64_t total, int64_t *share)
{
    uint32_t low = 0, high = UINT32_MAX;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2 + 1;
        const uint32_t *rank = in->rank;
        int64_t sum = 0;
        for (int h = 0; h < in->heads; rank += in->candidates[h], h++)
            sum += at_least(at_most(in->candidates[h], floor), select_count(rank, in->candidates[h], middle));
        if (sum >= total)
            low = middle;
        else
            high = middle - 1;
    }
    int64_t left = total;
    const uint32_t *rank = in->rank;
    for (int h = 0; h < in->heads; rank += in->candidates[h], h++) {
        share[h] = at_most(in->candidates[h], floor);
        if (low < UINT32_MAX) share[h] = at_least(share[h], select_count(rank, in->candidates[h], low + 1));
        left -= share[h];
    }
    rank = in->rank;
    for (int h = 0; h < in->heads; rank += in->candidates[h], h++) {
        const int64_t tied = at_least(share[h], select_count(rank, in->candidates[h], low)) - share[h];
        share[h] += at_most(tied, left);
        left -= at_most(tied, left);
    }
}

int route_ada(const struct policy *policy, const struct route_input *in, struct route *out, struct kvf_err *err)
{
    int rc = demand_find(in, out, err);
    if (rc != 0) return rc;
    const double fair = (double)out->threshold_k / in->heads;
    double weight[ROUTE_MAX_HEADS];
    int64_t share[ROUTE_MAX_HEADS], room = 0, total = in->layer_budget;
    for (int h = 0; h < in->heads; h++) {
        weight[h] = (1 - policy->alpha) * (double)out->demand[h] + policy->alpha * fair;
        const int64_t always = at_most(in->entries[h], in->always[h]);
        out->lo[h] = 0;
        out->hi[h] = in->candidates[h];
        out->budget[h] = always;
        room += out->hi[h];
        total -= always;
    }
    if (total > room) total = room;
    if (policy->floor == FLOOR_PROTECT) /* 1e-9 keeps 0.2 * 15 from becoming 2 */
        share_protected(in, (int64_t)floor(policy->alpha * fair + 1e-9), total, share);
    else
        rc = apportion(weight, total, out->lo, out->hi, in->heads, share, err);
    if (rc != 0) return rc;
    for (int h = 0; h < in->heads; h++) {
        out->lo[h] += out->budget[h];
        out->hi[h] += out->budget[h];
        out->budget[h] += share[h];
    }
    return 0;
}

/* ---- ReasonAlloc ---- */

/* Sum of what scores at or above the threshold exceed it by. */
static double excess_sum(const uint32_t *rank, int n, uint32_t threshold)
{
    const double tau = (double)rank_score(threshold);
    double sum = 0;
    for (int j = 0; j < n; j++)
        if (rank[j] > threshold) sum += (double)rank_score(rank[j]) - tau;
    return sum;
}

/* Demand of this compaction mixed with that of earlier ones, both as shares, so that another K changes nothing. */
static void demand_smooth(double *weight, double *memory, int heads, double smooth)
{
    double sum = 0, before = 0;
    for (int h = 0; h < heads; h++) {
        sum += weight[h];
        before += memory[h];
    }
    for (int h = 0; h < heads; h++) {
        const double share = sum > 0 ? weight[h] / sum : 1.0 / heads;
        memory[h] = before > 0 ? smooth * memory[h] + (1 - smooth) * share : share;
        weight[h] = memory[h];
    }
}

int route_reasonalloc(const struct policy *policy, const struct route_input *in, struct route *out, struct kvf_err *err)
{
    int rc = demand_find(in, out, err);
    if (rc != 0) return rc;
    double weight[ROUTE_MAX_HEADS];
    const uint32_t *rank = in->rank;
    for (int h = 0; h < in->heads; rank += in->candidates[h], h++)
        /* Without a threshold all candidates stay: nothing exceeds anything, and the count is all there is to say. */
        weight[h] = policy->utility == UTILITY_MASS && out->threshold != 0
                        ? excess_sum(rank, in->candidates[h], out->threshold)
                        : (double)out->demand[h];
    if (policy->smooth > 0) demand_smooth(weight, in->demand, in->heads, policy->smooth);

    /* The floor is a decimal share: 1e-9 keeps 0.07 * 100 from becoming 8. */
    const int64_t floor_share = (int64_t)ceil(policy->mu * (double)in->layer_budget / in->heads - 1e-9);
    int64_t lows = 0, room = 0;
    for (int h = 0; h < in->heads; h++) {
        weight[h] = pow(weight[h], policy->beta);
        out->hi[h] = in->cap != NULL ? at_most(in->entries[h], in->cap[h]) : in->entries[h];
        out->lo[h] = at_most(out->hi[h], at_least(in->always[h] + 1, floor_share));
        lows += out->lo[h];
        room += out->hi[h];
    }
    if (lows > in->layer_budget)
        for (int h = 0; h < in->heads; h++) out->lo[h] = at_most(out->hi[h], in->always[h] + 1);
    return apportion(weight, at_most(room, in->layer_budget), out->lo, out->hi, in->heads, out->budget, err);
}
