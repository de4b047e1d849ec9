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

int route_reasonalloc(const struct policy *policy, int window, int heads, const int *entries, const int *candidates,
                      const uint32_t *rank, const int *cap, int64_t layer_budget, struct route *out,
                      struct kvf_err *err)
{
    const int64_t always = window + policy->sinks_tokens, least = always + 1;
    if (layer_budget < heads * least)
        return kvf_fail(err, KVF_EINVAL,
                        "layer budget %lld, expected at least %lld: %d heads x (window %d + sinks %d + 1)",
                        (long long)layer_budget, (long long)(heads * least), heads, window, policy->sinks_tokens);

    int64_t total = 0;
    for (int h = 0; h < heads; h++) total += candidates[h];
    out->threshold_k = layer_budget - heads * always;
    out->threshold = total >= out->threshold_k ? select_rank(rank, (int)total, (int)out->threshold_k) : 0;

    /* The floor is a decimal share: 1e-9 keeps 0.07 * 100 from becoming 8. */
    const int64_t floor_share = (int64_t)ceil(policy->mu * (double)layer_budget / heads - 1e-9);
    double weight[ROUTE_MAX_HEADS];
    int64_t lows = 0, room = 0;
    for (int h = 0; h < heads; rank += candidates[h], h++) {
        out->demand[h] = 0;
        for (int j = 0; j < candidates[h]; j++) out->demand[h] += rank[j] >= out->threshold;
        weight[h] = pow((double)out->demand[h], policy->beta);
        out->hi[h] = cap != NULL && cap[h] < entries[h] ? cap[h] : entries[h];
        out->lo[h] = floor_share > least ? floor_share : least;
        if (out->lo[h] > out->hi[h]) out->lo[h] = out->hi[h];
        lows += out->lo[h];
        room += out->hi[h];
    }
    if (lows > layer_budget)
        for (int h = 0; h < heads; h++) out->lo[h] = least < out->hi[h] ? least : out->hi[h];
    return apportion(weight, layer_budget < room ? layer_budget : room, out->lo, out->hi, heads, out->budget, err);
}
