/* policy_key.c: the table of parameters. Defaults: alloc.md 1.4 (W 8, gamma = beta = 0.5, clip [0.25, 2], mu 0.25, rho
 * 0.93), 2.1 (kernel 7, T 0.5, lambda 0.1), 1.3 (alpha 0.2, zigzag 0.2, tau 1), 3 (the rest). */
#include "alloc/policy_key.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/scorer.h"

#define AT(field)  offsetof(struct policy, field)
#define ON(part)   (1u << (part))
#define POOLED     (ON(ROUTER_ADA) | ON(ROUTER_REASONALLOC))
#define WAVES      (ON(PLAN_WAVE) | ON(PLAN_DYNAMIC))
#define MEASURED   (ON(PLAN_DYNAMIC) | ON(PLAN_CAKE))
#define ANY_DEMAND (WAVES | ON(PLAN_ZIGZAG))

static const struct policy_key keys[] = {
    {"window", KEY_INT, AT(window_tokens), 1, 32, 8, .every = 1, .meaning = "last entries that always stay, W"},
    {"sinks", KEY_INT, AT(sinks_tokens), 0, 1024, 0, .every = 1, .meaning = "first entries that always stay"},
    {"kernel", KEY_ODD, AT(kernel), 1, 255, 7, .meaning = "width of the pooling over neighbours"},
    {"reduce",
     KEY_WORD,
     AT(reduce),
     0,
     3,
     REDUCE_METHOD,
     {"method", "max-logit", "mean-prob", "max-prob"},
     .meaning = "how a group's query heads become one score; method: max-logit of snapkv and rkv, max-prob of lava, "
                "else mean-prob"},
    {"pool", KEY_WORD, AT(pool), 0, 1, POOL_MAX, {"max", "avg"}, .meaning = "pooling over neighbours"},
    {"lambda", KEY_REAL, AT(lambda), 0, 1, 0.1, .meaning = "weight of importance against redundancy"},
    {"similarity", KEY_REAL, AT(similarity), -1, 1, 0.5, .meaning = "cosine above which two keys are similar, T"},
    {"retain",
     KEY_WORD,
     AT(retain),
     0,
     1,
     RETAIN_LAST,
     {"last", "first"},
     .meaning = "which similar entry is not redundant: the most recent, or entry 0"},
    {"recent-share", KEY_REAL, AT(recent_share), 0, 1, 0.5, .meaning = "share of what stays that recency decides"},
    {"first-share", KEY_REAL, AT(first_share), 0, 1, 0.5,
     .meaning = "share of what stays that attention alone decides"},
    {"future", KEY_INT, AT(future_tokens), 1, 65536, 512, .meaning = "positions to come that a query is expected at"},
    {"epsilon", KEY_REAL, AT(epsilon), 0, 1, 0, .meaning = "added to an expected probability before ||v|| weighs it"},
    {"pyramid-beta", KEY_REAL, AT(pyramid_beta), 1, 1e6, 20, .plans = ON(PLAN_PYRAMID),
     .meaning = "the last layer's weight is b / beta, the first one's 2b - b / beta"},
    {"demand",
     KEY_WORD,
     AT(demand),
     0,
     1,
     DEMAND_HEAD_MEAN,
     {"head-mean", "pooled"},
     .plans = ANY_DEMAND,
     .meaning = "a layer's statistic: mean of its heads' counts, or one count over all of them"},
    {"zigzag-min", KEY_REAL, AT(zigzag_min), 0, 1, 0.2, .plans = ON(PLAN_ZIGZAG),
     .meaning = "share of the mean layer budget that every layer has"},
    {"gamma", KEY_REAL, AT(gamma), 0, 8, 0.5, .plans = WAVES, .meaning = "layer smoothing power"},
    {"clip-low", KEY_REAL, AT(clip_low), 0, 1, 0.25, .plans = WAVES, .meaning = "least layer budget, in means"},
    {"clip-high", KEY_REAL, AT(clip_high), 1, 1024, 2, .plans = WAVES, .meaning = "most layer budget, in means"},
    {"rho", KEY_REAL, AT(rho), 0.01, 1, 0.93, .plans = ON(PLAN_DYNAMIC), .meaning = "attention mass to be covered"},
    {"tau1", KEY_REAL, AT(tau1), 0.01, 100, 1, .plans = ON(PLAN_CAKE), .meaning = "temperature of the entropy"},
    {"tau2", KEY_REAL, AT(tau2), 0.01, 100, 1, .plans = ON(PLAN_CAKE), .meaning = "temperature of the variance"},
    {"ema", KEY_REAL, AT(ema), 0, 0.99, 0, .plans = MEASURED,
     .meaning = "weight of what earlier compactions measured in a layer; 0: none"},
    {"alpha", KEY_REAL, AT(alpha), 0, 1, 0.2, .routers = ON(ROUTER_ADA),
     .meaning = "share of the uniform head budget that is a head's floor"},
    {"floor",
     KEY_WORD,
     AT(floor),
     0,
     1,
     FLOOR_BLEND,
     {"blend", "protect"},
     .routers = ON(ROUTER_ADA),
     .meaning = "floor blended into the counts (Ada-KV), or kept first and the rest pooled (kvpress)"},
    {"beta", KEY_REAL, AT(beta), 0, 8, 0.5, .routers = ON(ROUTER_REASONALLOC), .meaning = "head smoothing power"},
    {"mu", KEY_REAL, AT(mu), 0, 1, 0.25, .routers = ON(ROUTER_REASONALLOC),
     .meaning = "head floor as a share of the layer's mean head budget"},
    {"scores",
     KEY_WORD,
     AT(scores),
     0,
     1,
     SCORES_RAW,
     {"raw", "relative"},
     .routers = POOLED,
     .meaning = "scores as they are pooled: as they are, or times the head's length"},
    {"utility",
     KEY_WORD,
     AT(utility),
     0,
     1,
     UTILITY_COUNT,
     {"count", "mass"},
     .routers = ON(ROUTER_REASONALLOC),
     .meaning = "a head's demand: candidates at or above the threshold, or the sum of what they exceed it by"},
    {"smooth", KEY_REAL, AT(smooth), 0, 0.99, 0, .routers = ON(ROUTER_REASONALLOC),
     .meaning = "weight of what earlier compactions demanded for a head; 0: none"},
    {"prompt",
     KEY_WORD,
     AT(prompt),
     0,
     1,
     PROMPT_AT_FIRST_INTERVAL,
     {"at-first-interval", "at-prefill"},
     .every = 1,
     .meaning = "when a prompt longer than the budget is compressed"},
    {"protect-prompt", KEY_INT, AT(protect_prompt), 0, 1, 0, .every = 1, .meaning = "1: the prompt is never evicted"},
    {"stop-after-think", KEY_INT, AT(stop_after_think), 0, 1, 0, .every = 1,
     .meaning = "1: nothing is evicted once the thinking has ended"},
};
enum { KEYS = sizeof keys / sizeof keys[0] };

const struct policy_key *key_at(int index)
{
    return index >= 0 && index < KEYS ? &keys[index] : NULL;
}

int key_of_list(const struct policy_key *key, const char *list)
{
    const size_t len = strlen(key->name);
    for (const char *at = list; *at != '\0'; at += strspn(at, " ")) {
        const size_t word = strcspn(at, " ");
        if (word == len && strncmp(at, key->name, len) == 0) return 1;
        at += word;
    }
    return 0;
}

int key_used(const struct policy_key *key, const struct policy *policy)
{
    if (policy->scorer == SCORER_NONE) return 0;
    return key->every || (key->plans >> policy->plan & 1) || (key->routers >> policy->router & 1) ||
           key_of_list(key, scorer_at(policy->scorer)->keys);
}

double key_value(const struct policy_key *key, const struct policy *policy)
{
    const char *field = (const char *)policy + key->offset;
    double real;
    int whole;
    if (key->kind == KEY_REAL) {
        memcpy(&real, field, sizeof real);
        return real;
    }
    memcpy(&whole, field, sizeof whole);
    return whole;
}

static void value_put(const struct policy_key *key, struct policy *policy, double value)
{
    char *field = (char *)policy + key->offset;
    const double real = value + 0.0; /* -0 and 0 are one value and one spelling */
    const int whole = (int)value;
    if (key->kind == KEY_REAL)
        memcpy(field, &real, sizeof real);
    else
        memcpy(field, &whole, sizeof whole);
}

void key_print(const struct policy_key *key, double value, char *text, size_t cap)
{
    char number[32] = "";
    /* A whole number as such: %g would write 10 as 1e+01. */
    for (int digits = value == floor(value) ? 17 : 1; key->kind != KEY_WORD && digits <= 17; digits++) {
        snprintf(number, sizeof number, "%.*g", digits, value);
        if (strtod(number, NULL) == value) break;
    }
    snprintf(text, cap, "%s", key->kind == KEY_WORD ? key->words[(int)value] : number);
}

void key_range_print(const struct policy_key *key, char *text, size_t cap)
{
    if (key->kind != KEY_WORD) {
        const char *what = key->kind == KEY_REAL  ? "a number"
                           : key->kind == KEY_ODD ? "an odd number"
                                                  : "a whole number";
        snprintf(text, cap, "%s from %g to %g", what, key->min, key->max);
        return;
    }
    size_t at = 0;
    for (int i = 0; key->words[i] != NULL && at < cap; i++) {
        const char *before = i == 0 ? "" : key->words[i + 1] != NULL ? ", " : " or ";
        at += (size_t)snprintf(text + at, cap - at, "%s%s", before, key->words[i]);
    }
}

int key_set(const struct policy_key *key, struct policy *policy, const char *text, struct kvf_err *err)
{
    double value = -1;
    int bad;
    if (key->kind == KEY_WORD) {
        for (int i = 0; key->words[i] != NULL; i++)
            if (strcmp(key->words[i], text) == 0) value = i;
        bad = value < 0;
    } else {
        char *end;
        errno = 0;
        value = strtod(text, &end);
        bad = text[strspn(text, "0123456789+-.eE")] != '\0' || end == text || *end != '\0' || errno != 0 ||
              !(value >= key->min && value <= key->max);
        bad = bad || (key->kind != KEY_REAL && value != floor(value)) || (key->kind == KEY_ODD && fmod(value, 2) != 1);
    }
    if (bad) {
        char range[96];
        key_range_print(key, range, sizeof range);
        return kvf_fail(err, KVF_EINVAL, "policy %s: %s is '%s', expected %s", policy->name, key->name, text, range);
    }
    value_put(key, policy, value);
    return 0;
}

/* ---- parameters without effect ---- */

#define EQUAL_WEIGHTS "all layers weigh the same"
#define EVEN_PLANS    (ON(PLAN_UNIFORM) | ON(PLAN_PYRAMID))

/* What other values switch off: no choice depends on it, but for the rounding of relative scores. Ada-KV's floor is
 * none of these at alpha=0: its two ways still part where scores tie. */
static const struct idle {
    const char *keys; /* space-separated: those without effect */
    const char *when; /* and the values that make it so, as a policy spells them */
    unsigned plans;   /* 1 << enum value, ored: only with these plans; 0: with all */
    const char *reason;
} idle[] = {
    {"similarity retain", "lambda=1", 0, "redundancy has no weight"},
    {"similarity", "retain=first", 0, "entry 0 is the one that is not redundant, however similar"},
    {"kernel reduce pool", "lambda=0", 0, "importance has no weight"},
    {"pool", "kernel=1", 0, "one entry is its own maximum and its own mean"},
    {"demand", "zigzag-min=1", 0, "nothing is left to share by demand"},
    {"demand clip-low clip-high rho ema", "gamma=0", 0, EQUAL_WEIGHTS},
    {"demand gamma clip-high rho ema", "clip-low=1", 0, "every layer has the mean at least, so exactly it"},
    {"demand gamma clip-low rho ema", "clip-high=1", 0, "every layer has the mean at most, so exactly it"},
    {"scores", "alpha=1,floor=blend", 0, "all heads weigh the same"},
    {"mu scores utility smooth", "beta=0", 0, "all heads weigh the same"},
    {"beta scores utility smooth", "mu=1", EVEN_PLANS, "every head has the mean at least, so exactly it"},
    {"prompt", "protect-prompt=1", 0, "a protected prompt is not compressed"},
};

/* Whether the policy has all of the values that "key=value,key=value" lists. A key that the policy does not read is at
 * its default, which no row lists. */
static int values_hold(const struct policy *policy, const char *list)
{
    for (int i = 0; i < KEYS; i++) {
        char own[96], value[32];
        const char *at = list;
        const size_t name = strlen(keys[i].name);
        while (at != NULL && (strncmp(at, keys[i].name, name) != 0 || at[name] != '=')) {
            at = strchr(at, ',');
            if (at != NULL) at++;
        }
        if (at == NULL) continue;
        key_print(&keys[i], key_value(&keys[i], policy), value, sizeof value);
        snprintf(own, sizeof own, "%s=%s", keys[i].name, value);
        if (strlen(own) != strcspn(at, ",") || strncmp(own, at, strlen(own)) != 0) return 0;
    }
    return 1;
}

int keys_idle_check(const struct policy *policy, uint64_t given, struct kvf_err *err)
{
    for (size_t row = 0; row < sizeof idle / sizeof idle[0]; row++) {
        if ((idle[row].plans != 0 && !(idle[row].plans >> policy->plan & 1)) || !values_hold(policy, idle[row].when))
            continue;
        for (int i = 0; i < KEYS; i++)
            if ((given >> i & 1) && key_of_list(&keys[i], idle[row].keys))
                return kvf_fail(err, KVF_EINVAL, "policy %s: %s has no effect with %s: %s, expected no %s",
                                policy->name, keys[i].name, idle[row].when, idle[row].reason, keys[i].name);
    }
    return 0;
}

void keys_reset(struct policy *policy)
{
    for (int i = 0; i < KEYS; i++) value_put(&keys[i], policy, keys[i].standard);
    policy->sinks_tokens = scorer_at(policy->scorer)->sinks_tokens;
}
