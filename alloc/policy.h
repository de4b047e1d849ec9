/* policy.h: a compression policy as data: which entries go (scorer) and how many each layer and head keep (plan,
 * router).
 *
 * A policy is `scorer x layer plan x head router` with parameters; the names users type are presets in one table
 * (policy.c). Pure values: no allocation, safe to copy, to compare with memcmp after policy_parse, and to share between
 * threads. Used by the client and the coordinator to check input, by the engine to act.
 */
#ifndef KVF_POLICY_H
#define KVF_POLICY_H

#include <stddef.h>
#include "alloc/err.h"

enum policy_scorer {
    SCORER_NONE,      /* nothing is ever evicted: `full` */
    SCORER_STREAMING, /* recency: first `sinks` entries, then the most recent */
    SCORER_SNAPKV,    /* window attention, max-pooled (R-KV with lambda 1) */
    SCORER_RKV,       /* lambda * importance - (1 - lambda) * redundancy */
    SCORER_RANDOM,    /* uniform, keyed by sample seed, layer, head and logical position */
};
enum policy_plan {
    PLAN_UNIFORM, /* every layer H * b */
    PLAN_WAVE,    /* from the model's wave profile */
};
enum policy_router {
    ROUTER_UNIFORM,     /* every head B_l / H */
    ROUTER_REASONALLOC, /* pooled threshold, raw demand, robustification, ALLOC */
};
enum policy_scores {
    SCORES_RAW,      /* scores as they are */
    SCORES_RELATIVE, /* scores * n_i: fair between heads of different length */
};
/* How the query heads of a group become one score for their kv head. */
enum policy_reduce {
    REDUCE_METHOD,    /* as the scorer's source has it */
    REDUCE_MAX_LOGIT, /* R-KV: largest logit of the group, then the softmax over the entries before the window */
    REDUCE_MEAN_PROB, /* SnapKV, Ada-KV: mean of softmaxes over all entries that the query sees */
    REDUCE_MAX_PROB,  /* the same, the largest */
};
enum policy_pool { POOL_MAX, POOL_AVG };

#define POLICY_NAME_MAX 160
struct policy {
    char name[POLICY_NAME_MAX]; /* canonical spelling: preset, then only the parameters that differ from it */
    enum policy_scorer scorer;
    enum policy_plan plan;
    enum policy_router router;
    enum policy_scores scores;
    int window_tokens;          /* W, last entries that always stay */
    int sinks_tokens;           /* first entries that always stay */
    int kernel;                 /* width of the pooling over neighbours, odd */
    enum policy_reduce reduce;  /* attention scorers */
    enum policy_pool pool;      /* attention scorers */
    double recent_share;        /* h2o: share of a head's kept entries that recency decides */
    double first_share;         /* critical-kv: share of a head's kept candidates that attention alone decides */
    int future_tokens;          /* expected-attention: positions to come that a rotation is averaged over */
    double epsilon;             /* expected-attention: added to a probability before it is weighted by ||v|| */
    double lambda;              /* weight of importance */
    double similarity;          /* cosine above which two keys are the same, T */
    double gamma;               /* layer smoothing power */
    double clip_low, clip_high; /* layer budgets stay within these multiples of H * b */
    double beta;                /* head smoothing power */
    double mu;                  /* head floor as a share of B_l / H */
};

/* "PRESET" or "PRESET:key=value,key=value"; presets: full streaming snapkv rkv reasonalloc reasonalloc-relative random.
 * Keys: window sinks kernel lambda similarity gamma clip-low clip-high beta mu scores. A key that the preset does not
 * use is refused, as is any value out of range (NaN included); the line names the key, the range and what was got. */
KVF_MUSTCHECK int policy_parse(const char *text, struct policy *out, struct kvf_err *err);

/* Refuses a budget below window + sinks + 1 and an interval below 1; `full` takes any budget, which it ignores. */
KVF_MUSTCHECK int policy_check_budget(const struct policy *policy, int budget_tokens, int interval_tokens,
                                      struct kvf_err *err);

/* Whether a wave profile is needed. */
int policy_needs_profile(const struct policy *policy);

/* Preset names in display order, for messages and listings; NULL past the end. */
const char *policy_preset_name(int index);

#endif
