/* compact.c: one compaction of one layer: scores, head budgets, kept sets. */
#include "alloc/compact.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/route.h"
#include "alloc/score.h"
#include "alloc/select.h"

struct compact_work {
    int kv_heads, group, head_dim, max_window, max_entries;
    int64_t bytes;
    float *logit;      /* [2 * max_entries] */
    float *importance; /* [max_entries] */
    float *pooled;     /* [max_entries] */
    float *unit;       /* [max_entries][head_dim] */
    float *unit_sum;   /* [head_dim] */
    float *column;     /* [max_entries] */
    float *redundancy; /* [max_entries] */
    int32_t *relieved; /* [max_entries] */
    uint32_t *rank;    /* [kv_heads * max_entries] candidates of all heads, one after the other */
    int32_t *kept;     /* [kv_heads * max_entries] */
    struct route route;
};

struct compact_work *compact_work_new(int kv_heads, int group, int head_dim, int max_window, int max_entries)
{
    if (kv_heads < 1 || kv_heads > ROUTE_MAX_HEADS || group < 1 || head_dim < 1 || max_window < 1 || max_entries < 1)
        return NULL;
    struct compact_work *work = calloc(1, sizeof *work);
    if (work == NULL) return NULL;
    const size_t n = (size_t)max_entries, heads = (size_t)kv_heads, d = (size_t)head_dim;
    *work = (struct compact_work){.kv_heads = kv_heads,
                                  .group = group,
                                  .head_dim = head_dim,
                                  .max_window = max_window,
                                  .max_entries = max_entries};
    const size_t words = 2 * n + n + n + n * d + d + n + n + n + heads * n + heads * n;
    float *at = malloc(words * sizeof *at);
    if (at == NULL) {
        free(work);
        return NULL;
    }
    work->bytes = (int64_t)(sizeof *work + words * sizeof *at);
    work->logit = at;
    work->importance = at += 2 * n;
    work->pooled = at += n;
    work->unit = at += n;
    work->unit_sum = at += n * d;
    work->column = at += d;
    work->redundancy = at += n;
    work->relieved = (int32_t *)(at += n);
    work->rank = (uint32_t *)(at += n);
    work->kept = (int32_t *)(at += heads * n);
    return work;
}

void compact_work_destroy(struct compact_work **work)
{
    if (*work == NULL) return;
    free((*work)->logit);
    free(*work);
    *work = NULL;
}

int64_t compact_work_bytes(const struct compact_work *work)
{
    return work->bytes;
}

/* Ranks of head h's candidates, entries sinks ... n - window - 1, into rank. */
static void head_score(const struct policy *policy, const struct compact_input *in,
                       const struct compact_kernels *kernels, struct compact_work *work, int h, int window,
                       uint32_t *rank)
{
    const int n = in->entries[h], past = n - window, d = in->head_dim, sinks = policy->sinks_tokens;
    const float scale = policy->scores == SCORES_RELATIVE ? (float)n : 1.0f;
    if (past <= sinks) return;
    switch (policy->scorer) {
    case SCORER_NONE:
        break;
    case SCORER_STREAMING:
        for (int j = sinks; j < past; j++) rank[j - sinks] = score_rank((float)j);
        break;
    case SCORER_RANDOM:
        for (int j = sinks; j < past; j++)
            rank[j - sinks] = score_rank(score_random(in->random_key, h, in->positions[h][j]) * scale);
        break;
    case SCORER_SNAPKV:
    case SCORER_RKV: {
        const float *queries = in->queries + (int64_t)h * in->group * d;
        const int64_t row_stride = (int64_t)in->kv_heads * in->group * d;
        queries += (in->query_rows - window) * row_stride;
        score_importance(kernels, in->keys[h], past, d, queries, window, row_stride, in->group, work->logit,
                         work->importance);
        score_max_pool(work->importance, past, policy->kernel, work->pooled);
        if (policy->scorer == SCORER_SNAPKV || policy->lambda == 1) {
            for (int j = sinks; j < past; j++) rank[j - sinks] = score_rank(work->pooled[j] * scale);
            break;
        }
        score_redundancy(kernels, in->keys[h], n, d, policy->similarity, work->unit, work->unit_sum, work->relieved,
                         work->column, work->redundancy);
        const float lambda = (float)policy->lambda, rest = (float)(1 - policy->lambda);
        for (int j = sinks; j < past; j++)
            rank[j - sinks] = score_rank((lambda * work->pooled[j] - rest * work->redundancy[j]) * scale);
        break;
    }
    }
}

static int input_check(const struct policy *policy, const struct compact_input *in, const struct compact_work *work,
                       int window, struct kvf_err *err)
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
    const int64_t least = (int64_t)in->kv_heads * (window + policy->sinks_tokens + 1);
    if (in->layer_budget < least)
        return kvf_fail(err, KVF_EINVAL,
                        "layer budget %lld, expected at least %lld: %d heads x (window %d + sinks %d + 1)",
                        (long long)in->layer_budget, (long long)least, in->kv_heads, window, policy->sinks_tokens);
    return 0;
}

int compact_layer(const struct policy *policy, const struct compact_input *in, const struct compact_kernels *lent,
                  struct compact_work *work, const int32_t **kept, int *keep_count, int *noop, struct kvf_err *err)
{
    *noop = 1;
    if (policy->scorer == SCORER_NONE) return 0;
    const int window = policy->window_tokens < in->query_rows ? policy->window_tokens : in->query_rows;
    int rc = input_check(policy, in, work, window, err);
    if (rc != 0) return rc;

    struct compact_kernels kernels = compact_kernels_plain();
    if (lent != NULL && lent->dot_rows != NULL) kernels.dot_rows = lent->dot_rows;
    if (lent != NULL && lent->exp_rows != NULL) kernels.exp_rows = lent->exp_rows;

    const int pooled = policy->router == ROUTER_REASONALLOC;
    int64_t held = 0;
    int candidates[ROUTE_MAX_HEADS], full_heads = 0;
    if (!pooled) route_uniform(in->kv_heads, in->entries, in->layer_budget, &work->route);
    for (int h = 0; h < in->kv_heads; h++) {
        const int n = in->entries[h], inner = n - window - policy->sinks_tokens;
        candidates[h] = inner > 0 ? inner : 0;
        held += n;
        full_heads += !pooled && work->route.budget[h] >= n;
    }
    /* Everything fits: the pooled router looks at the layer's total, the uniform one at each head. */
    if (pooled ? held <= in->layer_budget : full_heads == in->kv_heads) return 0;
    if (window < 1 && (policy->scorer == SCORER_SNAPKV || policy->scorer == SCORER_RKV))
        return kvf_fail(err, KVF_EINVAL, "compaction with policy %s: no query rows, expected at least 1", policy->name);

    uint32_t *rank = work->rank;
    for (int h = 0; h < in->kv_heads; h++) {
        /* A head that keeps everything needs scores only where they are pooled. */
        if (pooled || work->route.budget[h] < in->entries[h]) head_score(policy, in, &kernels, work, h, window, rank);
        rank += candidates[h];
    }
    if (pooled) {
        rc = route_reasonalloc(policy, window, in->kv_heads, in->entries, candidates, work->rank, NULL,
                               in->layer_budget, &work->route, err);
        if (rc != 0) return rc;
    }

    rank = work->rank;
    for (int h = 0; h < in->kv_heads; h++) {
        int32_t *out = work->kept + (int64_t)h * work->max_entries;
        const int n = in->entries[h], budget = (int)work->route.budget[h];
        int count = 0;
        if (budget >= n) {
            for (; count < n; count++) out[count] = count;
        } else {
            const int sinks = policy->sinks_tokens;
            for (; count < sinks; count++) out[count] = count;
            count += select_best(rank, candidates[h], budget - window - sinks, sinks, out + count);
            for (int j = n - window; j < n; j++) out[count++] = j;
        }
        kept[h] = out;
        keep_count[h] = count;
        rank += candidates[h];
    }
    *noop = 0;
    return 0;
}
