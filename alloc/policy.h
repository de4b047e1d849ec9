/* policy.h: a compression policy as data: which entries go (scorer), how many each layer and head keep (plan, router),
 * and when (schedule).
 *
 * A policy is `scorer x layer plan x head router x schedule` with parameters; the papers' names are presets in one
 * table (policy.c), the parameters are another (policy_key.c). Pure values: no allocation, safe to copy, to compare
 * with memcmp after policy_parse, and to share between threads. Used by the client and the coordinator to check input,
 * by the engine to act.
 */
#ifndef KVF_POLICY_H
#define KVF_POLICY_H

#include <stddef.h>
#include "alloc/err.h"

/* What is taken where nobody names a policy: of those measured on the tiny reasoner the one that loses least at equal
 * memory (docs/results/README.md). The paper's method with four sinks kept. */
#define POLICY_DEFAULT "reasonalloc:sinks=4"

/* policy.scorer is a row of the scorer table (scorer.h); its first row evicts nothing. */
enum { SCORER_NONE = 0 };

/* How many entries each layer keeps. */
enum policy_plan {
    PLAN_UNIFORM, /* every layer H * b */
    PLAN_PYRAMID, /* falling linearly with depth */
    PLAN_WAVE,    /* from the model's wave profile */
    PLAN_ZIGZAG,  /* from the profile too, linear above a floor */
    PLAN_FILE,    /* the profile's layer_share: weights that somebody wrote down */
    PLAN_DYNAMIC, /* online: the wave's statistic of the live cache */
    PLAN_CAKE,    /* online: entropy and temporal variance of the window's attention */
};
/* How many of its layer's entries each head keeps. */
enum policy_router {
    ROUTER_UNIFORM,     /* every head B_l / H */
    ROUTER_ADA,         /* counts above a pooled threshold, blended with the uniform share */
    ROUTER_REASONALLOC, /* pooled threshold, demand, robustification, ALLOC */
};
enum policy_scores {
    SCORES_RAW,      /* scores as they are */
    SCORES_RELATIVE, /* scores * n_i: fair between heads of different length */
};
/* How the query heads of a group become one score for their kv head. */
enum policy_reduce {
    REDUCE_METHOD,    /* the scorer's own: max-logit of snapkv and rkv, max-prob of lava, mean-prob of the others */
    REDUCE_MAX_LOGIT, /* R-KV: largest logit of the group, then the softmax over the entries before the window */
    REDUCE_MEAN_PROB, /* SnapKV, Ada-KV: mean of softmaxes over all entries that the query sees */
    REDUCE_MAX_PROB,  /* the same, the largest */
};
enum policy_pool { POOL_MAX, POOL_AVG };
/* Which similar entry of a row counts as not redundant (R-KV's retain direction). */
enum policy_retain { RETAIN_LAST, RETAIN_FIRST };
/* A layer's statistic: mean over heads of each head's own count, or one count over all (head, entry) pairs. */
enum policy_demand { DEMAND_HEAD_MEAN, DEMAND_POOLED };
/* A head's demand: candidates at or above the threshold tau, or the sum of what they exceed it by. */
enum policy_utility { UTILITY_COUNT, UTILITY_MASS };
/* How a head's floor enters Ada-KV's counts: blended in (the original), or kept first and taken out of the pool
 * (kvpress). */
enum policy_floor { FLOOR_BLEND, FLOOR_PROTECT };
/* When a prompt longer than the budget is compressed for the first time: once `interval` tokens came after it, or as
 * soon as it is prefilled, before its first token is sampled. */
enum policy_prompt { PROMPT_AT_FIRST_INTERVAL, PROMPT_AT_PREFILL };

/* The schedule is fields here and is carried out by whoever owns the sequence: `prompt` says when the first compaction
 * is due; `protect_prompt` is passed to each compaction as compact_input.protected_positions = prompt length; after
 * `stop_after_think` nothing is compacted any more once the model's end-of-thinking token is there. The interval is no
 * part of a policy: it is the request's, beside the budget. */
#define POLICY_NAME_MAX 160
struct policy {
    char name[POLICY_NAME_MAX]; /* canonical spelling, see policy_parse */
    int scorer;                 /* row of the scorer table */
    enum policy_plan plan;
    enum policy_router router;
    enum policy_scores scores;   /* pooled routers */
    int window_tokens;           /* W, last entries that always stay */
    int sinks_tokens;            /* first entries that always stay */
    int kernel;                  /* width of the pooling over neighbours, odd */
    enum policy_reduce reduce;   /* attention scorers */
    enum policy_pool pool;       /* attention scorers */
    enum policy_retain retain;   /* rkv */
    double recent_share;         /* h2o: share of a head's kept entries that recency decides */
    double first_share;          /* critical-kv: share of a head's kept candidates that attention alone decides */
    int future_tokens;           /* expected-attention: positions to come that a rotation is averaged over */
    double epsilon;              /* expected-attention: added to a probability before it is weighted by ||v|| */
    double lambda;               /* rkv: weight of importance */
    double similarity;           /* rkv: cosine above which two keys are the same, T */
    double pyramid_beta;         /* pyramid: the last layer's weight is b / beta */
    enum policy_demand demand;   /* wave, zigzag, dynamic */
    double zigzag_min;           /* zigzag: every layer's share of H * b before the rest follows demand */
    double gamma;                /* wave, dynamic: layer smoothing power */
    double clip_low, clip_high;  /* wave, dynamic: layer budgets stay within these multiples of H * b */
    double rho;                  /* dynamic: attention mass that the statistic covers */
    double tau1, tau2;           /* cake: temperatures of entropy and variance */
    double ema;                  /* online plans: weight of what earlier compactions measured */
    double alpha;                /* ada: share of the uniform head budget that is a head's floor */
    enum policy_floor floor;     /* ada */
    double beta;                 /* reasonalloc: head smoothing power */
    double mu;                   /* reasonalloc: head floor as a share of B_l / H */
    enum policy_utility utility; /* reasonalloc */
    double smooth;               /* reasonalloc: weight of what earlier compactions demanded */
    enum policy_prompt prompt;
    int protect_prompt;   /* 0 or 1 */
    int stop_after_think; /* 0 or 1 */
};

/* "PRESET", "SCORER", "SCORER+PLAN", "SCORER+ROUTER" or "SCORER+PLAN+ROUTER", then optionally ":key=value,key=value".
 * What follows the scorer comes in any order; what is missing is `uniform`. Keys are those that the parts read, and the
 * schedule's. The canonical name is the preset where the combination is one, else scorer, plan, router without
 * `uniform` parts, then the parameters that differ from the preset's or the defaults, in table order. Refused, in one
 * line: what is not known, a key that no part reads, a key that another value leaves without effect, a value out of
 * range (NaN included), a combination that makes no sense. */
KVF_MUSTCHECK int policy_parse(const char *text, struct policy *out, struct kvf_err *err);

/* Refuses a budget below window + sinks + 1 and an interval below 1; `full` takes any budget, which it ignores. */
KVF_MUSTCHECK int policy_check_budget(const struct policy *policy, int budget_tokens, int interval_tokens,
                                      struct kvf_err *err);

/* Whether a wave profile is needed. */
int policy_needs_profile(const struct policy *policy);
/* Whether layer budgets are measured at every compaction (plan.h) instead of once. */
int policy_plan_is_online(const struct policy *policy);

/* ---- listings: all return 0, or NULL, past the end; the order is the one to display ---- */

/* Preset names; a scorer's own name is a preset. */
const char *policy_preset_name(int index);

enum policy_part_kind { PART_PRESET, PART_SCORER, PART_PLAN, PART_ROUTER };
struct policy_part {
    const char *name, *source; /* source: the paper; "" where there is none */
    char meaning[96];          /* of a preset: the combination as policy_parse takes it; of a scorer: "" */
};
int policy_part_at(enum policy_part_kind kind, int index, struct policy_part *out);

struct policy_parameter {
    const char *name, *meaning;
    char values[96];   /* "a number from 0 to 1", "raw or relative" */
    char standard[32]; /* default */
    char used_by[192]; /* names of the parts that read it, comma-separated; "every policy but full" */
};
int policy_parameter_at(int index, struct policy_parameter *out);
/* Whether `policy` reads parameter `index`; then its value as policy_parse takes it. */
int policy_parameter_of(const struct policy *policy, int index, char *value, size_t cap);

#endif
