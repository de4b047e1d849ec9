/* plan.c: layer budgets from weights. */
#include "alloc/plan.h"

#include <math.h>

#include "alloc/apportion.h"
#include "alloc/scorer.h"

/* What the plan of one policy is built for. */
struct plan_shape {
    int layers;
    int unit;      /* entries that go together: 1, or one in each head */
    int64_t mean;  /* units of a layer when all are equal */
    int64_t least; /* units that every layer must have */
};

static int shape_make(const struct policy *policy, int layers, int kv_heads, int budget_tokens,
                      struct plan_shape *shape, struct kvf_err *err)
{
    if (layers < 1 || layers > PROFILE_MAX_LAYERS || kv_heads < 1)
        return kvf_fail(err, KVF_EINVAL, "layer plan for %d layers x %d heads, expected 1 to %d layers, 1 head or more",
                        layers, kv_heads, PROFILE_MAX_LAYERS);
    const int together = policy->plan == PLAN_PYRAMID || scorer_at(policy->scorer)->shared_entries;
    const int64_t heads = together ? 1 : kv_heads;
    *shape = (struct plan_shape){.layers = layers,
                                 .unit = together ? kv_heads : 1,
                                 .mean = heads * budget_tokens,
                                 .least = heads * (policy->window_tokens + policy->sinks_tokens + 1)};
    return 0;
}

static int profile_fit(const struct policy *policy, const struct wave_profile *profile, int layers, int kv_heads,
                       struct kvf_err *err)
{
    if (profile == NULL)
        return kvf_fail(err, KVF_EINVAL,
                        "policy %s needs a wave profile of the model: make one with `kvfleet calibrate`", policy->name);
    if (profile->layers != layers || profile->kv_heads != kv_heads)
        return kvf_fail(err, KVF_EINVAL, "wave profile of %d layers x %d kv heads, the model has %d x %d",
                        profile->layers, profile->kv_heads, layers, kv_heads);
    if (policy->plan == PLAN_FILE && !profile->has_layer_share)
        return kvf_fail(err, KVF_EINVAL, "policy %s: the wave profile has no layer_share, expected %d weights",
                        policy->name, layers);
    if (policy->plan != PLAN_FILE && policy->demand == DEMAND_POOLED && !profile->has_demand_pooled)
        return kvf_fail(err, KVF_EINVAL,
                        "policy %s: the wave profile has no demand_pooled, expected one: calibrate the model again",
                        policy->name);
    return 0;
}

/* ReasonAlloc's robustification: power, clip, exact total. hi[l] may already be lower. */
static void wave_weigh(const struct policy *policy, const struct plan_shape *shape, const double *demand,
                       double *weight, int64_t *lo, int64_t *hi)
{
    double largest = 0;
    for (int l = 0; l < shape->layers; l++) largest = fmax(largest, demand[l]);
    /* decimal constants: 1e-9 keeps a product that is whole from being rounded away from itself */
    const int64_t low = (int64_t)ceil(policy->clip_low * (double)shape->mean - 1e-9);
    const int64_t high = (int64_t)floor(policy->clip_high * (double)shape->mean + 1e-9);
    for (int l = 0; l < shape->layers; l++) {
        weight[l] = pow(largest > 0 ? demand[l] / largest : 1, policy->gamma);
        lo[l] = low > shape->least ? low : shape->least;
        if (hi[l] > high) hi[l] = high;
        if (hi[l] < lo[l]) hi[l] = lo[l];
    }
}

static void zigzag_weigh(const struct policy *policy, const struct plan_shape *shape, const double *demand,
                         double *weight)
{
    double mean = 0;
    for (int l = 0; l < shape->layers; l++) mean += demand[l] / shape->layers;
    for (int l = 0; l < shape->layers; l++)
        weight[l] = policy->zigzag_min + (1 - policy->zigzag_min) * (mean > 0 ? demand[l] / mean : 1);
}

static int plan_share(const struct plan_shape *shape, const double *weight, const int64_t *lo, const int64_t *hi,
                      int64_t *layer_budget, struct kvf_err *err)
{
    int rc = apportion(weight, shape->mean * shape->layers, lo, hi, shape->layers, layer_budget, err);
    for (int l = 0; rc == 0 && l < shape->layers; l++) layer_budget[l] *= shape->unit;
    return rc;
}

static void uniform_fill(const struct plan_shape *shape, int64_t *layer_budget)
{
    for (int l = 0; l < shape->layers; l++) layer_budget[l] = shape->mean * shape->unit;
}

int pyramid_share(double beta, int layers, int tokens, int64_t lo, int64_t hi, int64_t *share, struct kvf_err *err)
{
    double weight[PROFILE_MAX_LAYERS];
    int64_t low[PROFILE_MAX_LAYERS], high[PROFILE_MAX_LAYERS];
    const double last = tokens / beta, first = 2.0 * tokens - last;
    for (int l = 0; l < layers; l++) {
        weight[l] = layers > 1 ? first - (first - last) * l / (layers - 1) : 1;
        low[l] = lo;
        high[l] = hi;
    }
    return apportion(weight, (int64_t)layers * tokens, low, high, layers, share, err);
}

int layer_plan_build(const struct policy *policy, const struct wave_profile *profile, int layers, int kv_heads,
                     int budget_tokens, int64_t *layer_budget, struct kvf_err *err)
{
    struct plan_shape shape;
    int rc = shape_make(policy, layers, kv_heads, budget_tokens, &shape, err);
    if (rc == 0 && policy_needs_profile(policy)) rc = profile_fit(policy, profile, layers, kv_heads, err);
    if (rc != 0) return rc;
    double weight[PROFILE_MAX_LAYERS];
    int64_t lo[PROFILE_MAX_LAYERS], hi[PROFILE_MAX_LAYERS];
    for (int l = 0; l < layers; l++) {
        lo[l] = shape.least;
        hi[l] = shape.mean * layers;
    }
    switch (policy->plan) {
    case PLAN_UNIFORM:
    case PLAN_DYNAMIC:
    case PLAN_CAKE:
        uniform_fill(&shape, layer_budget);
        return 0;
    case PLAN_PYRAMID:
        rc = pyramid_share(policy->pyramid_beta, layers, budget_tokens, shape.least, hi[0], layer_budget, err);
        for (int l = 0; rc == 0 && l < layers; l++) layer_budget[l] *= shape.unit;
        return rc;
    case PLAN_WAVE:
        wave_weigh(policy, &shape, policy->demand == DEMAND_POOLED ? profile->demand_pooled : profile->demand, weight,
                   lo, hi);
        break;
    case PLAN_ZIGZAG:
        zigzag_weigh(policy, &shape, policy->demand == DEMAND_POOLED ? profile->demand_pooled : profile->demand,
                     weight);
        break;
    case PLAN_FILE:
        return plan_share(&shape, profile->layer_share, lo, hi, layer_budget, err);
    }
    return plan_share(&shape, weight, lo, hi, layer_budget, err);
}

/* Mixes the layers' shares of the statistic with those of earlier compactions: lengths grow, shares do not. */
static void statistic_smooth(double *value, double *memory, int layers, double ema)
{
    double sum = 0, before = 0;
    for (int l = 0; l < layers; l++) {
        sum += value[l];
        before += memory[l];
    }
    for (int l = 0; l < layers; l++) {
        const double share = sum > 0 ? value[l] / sum : 1.0 / layers;
        memory[l] = before > 0 ? ema * memory[l] + (1 - ema) * share : share;
        value[l] = memory[l];
    }
}

int plan_refresh(const struct policy *policy, const double *statistic, const int64_t *held, double *memory, int layers,
                 int kv_heads, int budget_tokens, int64_t *layer_budget, struct kvf_err *err)
{
    struct plan_shape shape;
    int rc = shape_make(policy, layers, kv_heads, budget_tokens, &shape, err);
    if (rc != 0) return rc;
    double value[PROFILE_MAX_LAYERS], weight[PROFILE_MAX_LAYERS];
    int64_t lo[PROFILE_MAX_LAYERS], hi[PROFILE_MAX_LAYERS], room = 0;
    for (int l = 0; l < layers; l++) {
        if (!(statistic[l] >= 0) || isinf(statistic[l]))
            return kvf_fail(err, KVF_EINVAL, "policy %s: the statistic of layer %d is %g, expected a finite number",
                            policy->name, l, statistic[l]);
        value[l] = statistic[l];
        lo[l] = shape.least;
        hi[l] = held[l] / shape.unit;
        if (hi[l] < lo[l]) hi[l] = lo[l];
    }
    if (policy->ema > 0 && memory == NULL)
        return kvf_fail(err, KVF_EINVAL, "policy %s: no memory of earlier plans, expected %d numbers", policy->name,
                        layers);
    if (policy->ema > 0) statistic_smooth(value, memory, layers, policy->ema);
    if (policy->plan == PLAN_DYNAMIC)
        wave_weigh(policy, &shape, value, weight, lo, hi);
    else
        for (int l = 0; l < layers; l++) weight[l] = value[l];
    /* A clip gives way where nothing else can take what the others do not hold. */
    for (int l = 0; l < layers; l++) room += hi[l];
    if (room < shape.mean * layers) {
        room = 0;
        for (int l = 0; l < layers; l++) {
            const int64_t own = held[l] / shape.unit;
            if (own > hi[l]) hi[l] = own;
            room += hi[l];
        }
    }
    if (room < shape.mean * layers) {
        uniform_fill(&shape, layer_budget);
        return 0;
    }
    return plan_share(&shape, weight, lo, hi, layer_budget, err);
}

int policy_memory_doubles(const struct policy *policy, int layers, int kv_heads)
{
    const int plan = policy_plan_is_online(policy) && policy->ema > 0;
    const int heads = policy->router == ROUTER_REASONALLOC && policy->smooth > 0;
    return plan || heads ? layers + layers * kv_heads : 0;
}

double *policy_memory_plan(double *memory)
{
    return memory;
}

double *policy_memory_layer(double *memory, int layers, int kv_heads, int layer)
{
    return memory == NULL ? NULL : memory + layers + (int64_t)layer * kv_heads;
}
