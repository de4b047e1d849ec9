/* compact.c: one compaction of one layer: scores, head budgets, kept sets. */
#include "alloc/compact.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/score.h"
#include "alloc/select.h"
#include "alloc/wide.h"
#include "alloc/work.h"

struct compact_work *compact_work_new(int kv_heads, int group, int head_dim, int max_window, int max_entries)
{
    if (kv_heads < 1 || kv_heads > ROUTE_MAX_HEADS || group < 1 || head_dim < 1 || max_window < 1 || max_entries < 1)
        return NULL;
    struct compact_work *work = calloc(1, sizeof *work);
    if (work == NULL) return NULL;
    const size_t n = (size_t)max_entries, heads = (size_t)kv_heads, d = (size_t)head_dim;
    work->kv_heads = kv_heads;
    work->group = group;
    work->head_dim = head_dim;
    work->max_window = max_window;
    work->max_entries = max_entries;
    const size_t padded = (n + SCORE_TILE - 1) / SCORE_TILE * SCORE_TILE;
    const size_t words = SCORE_ROWS * padded + n + n + 2 * padded * d + 17 * d + d * d + padded + n +
                         COMPACT_SCAN_WORDS(n, d) + 3 * heads * n;
    const size_t tiles = padded / SCORE_TILE, bytes = 2 * tiles * sizeof(void *) + words * sizeof(float);
    const void **tile_at = malloc(bytes);
    if (tile_at == NULL) {
        free(work);
        return NULL;
    }
    work->bytes = (int64_t)(sizeof *work + bytes);
    work->scratch.tile_at = tile_at;
    work->scratch.unit_at = tile_at + tiles;
    float *at = (float *)(tile_at + 2 * tiles);
    work->scratch.row = at;
    work->scratch.first = at += SCORE_ROWS * padded;
    work->scratch.second = at += n;
    work->scratch.tile = at += n;
    work->scratch.unit = at += padded * d;
    work->scratch.vector = at += padded * d;
    work->scratch.matrix = at += 17 * d;
    work->scratch.column = at += d * d;
    work->scratch.marker = (int32_t *)(at += padded);
    work->scratch.scan = (int32_t *)(at += n);
    at += COMPACT_SCAN_WORDS(n, d);
    for (size_t t = 0; t < tiles; t++) {
        work->scratch.tile_at[t] = work->scratch.tile + t * d * SCORE_TILE;
        work->scratch.unit_at[t] = work->scratch.unit + t * d * SCORE_TILE;
    }
    for (size_t h = 0; h < heads; h++) work->score[h] = at + h * n;
    work->rank = (uint32_t *)(at += heads * n);
    work->kept = (int32_t *)(at += heads * n);
    return work;
}

void compact_work_destroy(struct compact_work **work)
{
    if (*work == NULL) return;
    free((*work)->scratch.tile_at);
    free(*work);
    *work = NULL;
}

int64_t compact_work_bytes(const struct compact_work *work)
{
    return work->bytes;
}

struct compact_kernels compact_kernels_of(const struct compact_kernels *lent)
{
    struct compact_kernels kernels = compact_kernels_plain();
    if (lent != NULL && lent->dot_rows != NULL) kernels.dot_rows = lent->dot_rows;
    if (lent != NULL && lent->dot_tiles != NULL) kernels.dot_tiles = lent->dot_tiles;
    if (lent != NULL && lent->newest_similar != NULL) kernels.newest_similar = lent->newest_similar;
    if (lent != NULL && lent->exp_rows != NULL) kernels.exp_rows = lent->exp_rows;
    return kernels;
}

/* ---- input ---- */

int compact_shape_check(const struct compact_input *in, const struct compact_work *work, int window,
                        struct kvf_err *err)
{
    if (in->kv_heads != work->kv_heads || in->group != work->group || in->head_dim != work->head_dim)
        return kvf_fail(err, KVF_EINVAL, "compaction of %d heads x %d queries x %d, the work area is for %d x %d x %d",
                        in->kv_heads, in->group, in->head_dim, work->kv_heads, work->group, work->head_dim);
    if (window > work->max_window)
        return kvf_fail(err, KVF_EINVAL, "compaction window %d, the work area is for %d", window, work->max_window);
    for (int h = 0; h < in->kv_heads; h++)
        if (in->entries[h] < 0 || in->entries[h] > work->max_entries)
            return kvf_fail(err, KVF_EINVAL, "compaction of %d entries in head %d, the work area is for %d",
                            in->entries[h], h, work->max_entries);
    return 0;
}

static int budget_check(const struct policy *policy, const struct compact_input *in, int window, struct kvf_err *err)
{
    const int64_t least = (int64_t)in->kv_heads * (window + policy->sinks_tokens + 1);
    if (in->layer_budget < least)
        return kvf_fail(err, KVF_EINVAL,
                        "layer budget %lld, expected at least %lld: %d heads x (window %d + sinks %d + 1)",
                        (long long)in->layer_budget, (long long)least, in->kv_heads, window, policy->sinks_tokens);
    return 0;
}

/* Whether all that the scorer reads is there. */
int compact_reads_rows(const struct policy *policy)
{
    const struct scorer *scorer = scorer_at(policy->scorer);
    /* Window attention reads tiles only where the group's largest logit is taken. */
    const int by_method = policy->reduce == REDUCE_METHOD || policy->reduce == REDUCE_MAX_LOGIT;
    return (scorer->needs & NEEDS_ROWS) || ((scorer->needs & NEEDS_QUERIES) && !by_method) ||
           policy_plan_is_online(policy);
}

static int needs_check(const struct policy *policy, const struct compact_input *in, int window, struct kvf_err *err)
{
    const struct scorer *scorer = scorer_at(policy->scorer);
    const struct {
        unsigned need;
        int there;
        const char *what;
    } needs[] = {
        {NEEDS_QUERIES, in->queries != NULL && window > 0, "query rows"},
        {NEEDS_VALUES, in->values != NULL, "values"},
        {NEEDS_MASS, in->mass != NULL, "attention mass"},
        {NEEDS_OUTPUT, in->output != NULL, "output projection"},
        {NEEDS_POSITIONS, in->positions != NULL, "positions"},
        {NEEDS_ROPE, in->rope_frequency != NULL, "rotation frequencies"},
    };
    if (in->keys == NULL && (in->key_tiles == NULL || compact_reads_rows(policy)))
        return kvf_fail(err, KVF_EINVAL, "compaction with policy %s: no keys, expected %s", policy->name,
                        compact_reads_rows(policy) ? "rows" : "tiles or rows");
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++)
        if ((scorer->needs & needs[i].need) && !needs[i].there)
            return kvf_fail(err, KVF_EINVAL, "compaction with policy %s: no %s, expected what scorer %s reads",
                            policy->name, needs[i].what, scorer->name);
    if (policy->smooth > 0 && policy->router == ROUTER_REASONALLOC && in->demand == NULL)
        return kvf_fail(err, KVF_EINVAL, "compaction with policy %s: no memory of demand, expected %d numbers",
                        policy->name, in->kv_heads);
    return 0;
}

/* Where each head's candidates begin: after the sinks, and after what is protected but for the window, which stays
 * anyway. */
static void first_find(const struct policy *policy, const struct compact_input *in, int window, int *first)
{
    for (int h = 0; h < in->kv_heads; h++) {
        int safe = 0;
        while (safe < in->entries[h] - window && in->protected_positions > 0 &&
               in->positions[h][safe] < in->protected_positions)
            safe++;
        first[h] = safe > policy->sinks_tokens ? safe : policy->sinks_tokens;
    }
}

/* The error of a head that must shrink and has no choice, because of what is protected. */
static int protected_fail(const struct policy *policy, int head, int first, int window, int64_t budget,
                          struct kvf_err *err)
{
    return kvf_fail(err, KVF_EINVAL,
                    "policy %s: the protected prompt does not fit: head %d may keep %lld entries, expected at least "
                    "%d: %d of the prompt + window %d + 1",
                    policy->name, head, (long long)budget, first + window + 1, first, window);
}

/* ---- scores ---- */

static int score_bad(float score)
{
    union {
        float f;
        uint32_t u;
    } bits = {score};
    return (bits.u & 0x7F800000u) == 0x7F800000u;
}

/* Ranks of entries first ... past - 1 of one head, each score times `scale`. */
KVF_WIDE static int head_rank(const struct policy *policy, int head, const float *score, int first, int past,
                              float scale, uint32_t *rank, struct kvf_err *err)
{
    int bad = 0;
    for (int j = first; j < past; j++) {
        const float scaled = score[j] * scale;
        bad |= score_bad(scaled);
        rank[j - first] = score_rank(scaled);
    }
    for (int j = first; bad && j < past; j++)
        if (score_bad(score[j] * scale))
            return kvf_fail(err, KVF_EINVAL,
                            "policy %s: the score of head %d, entry %d is %g, expected a finite number", policy->name,
                            head, j, (double)(score[j] * scale));
    return 0;
}

/* The final choice of one head by the scorer's own rule, once it is known how many candidates stay. Protected entries
 * are sinks to it. */
static int head_refine(const struct policy *policy, const struct compact_input *in,
                       const struct compact_kernels *kernels, struct compact_work *work, int head, int first, int past,
                       int keep, uint32_t *rank, struct kvf_err *err)
{
    struct policy own = *policy;
    own.sinks_tokens = first;
    scorer_at(policy->scorer)->refine(&own, in, kernels, &work->scratch, head, past, keep, work->score[head]);
    return head_rank(policy, head, work->score[head], first, past, 1.0f, rank, err);
}

/* ---- the layer ---- */

static int route_layer(const struct policy *policy, const struct compact_input *in, struct compact_work *work,
                       const int *always, const int *candidates, struct kvf_err *err)
{
    const struct route_input route = {.heads = in->kv_heads,
                                      .entries = in->entries,
                                      .always = always,
                                      .candidates = candidates,
                                      .rank = work->rank,
                                      .layer_budget = in->layer_budget,
                                      .demand = in->demand};
    return policy->router == ROUTER_ADA ? route_ada(policy, &route, &work->route, err)
                                        : route_reasonalloc(policy, &route, &work->route, err);
}

int compact_layer(const struct policy *policy, const struct compact_input *in, const struct compact_kernels *lent,
                  struct compact_work *work, const int32_t **kept, int *keep_count, int *noop, struct kvf_err *err)
{
    *noop = 1;
    if (policy->scorer == SCORER_NONE) return 0;
    const struct scorer *scorer = scorer_at(policy->scorer);
    const int window = policy->window_tokens < in->query_rows ? policy->window_tokens : in->query_rows;
    int rc = compact_shape_check(in, work, window, err);
    if (rc == 0) rc = budget_check(policy, in, window, err);
    if (rc != 0) return rc;

    const int heads = in->kv_heads, pooled = policy->router != ROUTER_UNIFORM;
    int first[ROUTE_MAX_HEADS], always[ROUTE_MAX_HEADS], candidates[ROUTE_MAX_HEADS], full_heads = 0;
    int64_t held = 0, safe = 0;
    /* Heads that share their entries keep equally many, so what is left over stays unused. */
    const int64_t left_over = scorer->shared_entries ? in->layer_budget % heads : 0;
    if (!pooled) route_uniform(heads, in->entries, in->layer_budget - left_over, &work->route);
    first_find(policy, in, window, first);
    for (int h = 0; h < heads; h++) {
        always[h] = window + first[h];
        candidates[h] = in->entries[h] > always[h] ? in->entries[h] - always[h] : 0;
        held += in->entries[h];
        safe += always[h];
        full_heads += !pooled && work->route.budget[h] >= in->entries[h];
    }
    /* Everything fits: a pooled router looks at the layer's total, the uniform one at each head. */
    if (pooled ? held <= in->layer_budget : full_heads == heads) return 0;
    if (pooled && in->layer_budget < safe + heads)
        return protected_fail(policy, 0, first[0], window, in->layer_budget / heads, err);
    for (int h = 0; !pooled && h < heads; h++)
        if (work->route.budget[h] < in->entries[h] && work->route.budget[h] <= always[h])
            return protected_fail(policy, h, first[h], window, work->route.budget[h], err);
    rc = needs_check(policy, in, window, err);
    if (rc != 0) return rc;

    const struct compact_kernels kernels = compact_kernels_of(lent);
    scorer->score(policy, in, &kernels, &work->scratch, window, work->score);
    uint32_t *rank = work->rank;
    for (int h = 0; h < heads; rank += candidates[h], h++) {
        const float scale = policy->scores == SCORES_RELATIVE ? (float)in->entries[h] : 1.0f;
        rc = head_rank(policy, h, work->score[h], first[h], first[h] + candidates[h], scale, rank, err);
        if (rc != 0) return rc;
    }
    if (pooled && (rc = route_layer(policy, in, work, always, candidates, err)) != 0) return rc;

    rank = work->rank;
    for (int h = 0; h < heads; rank += candidates[h], h++) {
        int32_t *out = work->kept + (int64_t)h * work->max_entries;
        const int n = in->entries[h], budget = (int)work->route.budget[h], keep = budget - always[h];
        int count = 0;
        if (budget >= n) {
            for (; count < n; count++) out[count] = count;
        } else {
            if (scorer->refine != NULL &&
                (rc = head_refine(policy, in, &kernels, work, h, first[h], n - window, keep, rank, err)) != 0)
                return rc;
            for (; count < first[h]; count++) out[count] = count;
            count += select_best(rank, candidates[h], keep, first[h], out + count);
            for (int j = n - window; j < n; j++) out[count++] = j;
        }
        kept[h] = out;
        keep_count[h] = count;
    }
    *noop = 0;
    return 0;
}
