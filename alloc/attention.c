/* attention.c: window attention of one head. */
#include "alloc/attention.h"

#include <math.h>
#include <string.h>

#include "alloc/score.h"

/* sum[j] += weight * softmax(query . keys / sqrt(d))[j], j < counted; the softmax runs over `visible` entries. */
static void softmax_add(const struct compact_kernels *kernels, const float *query, const float *keys, int visible,
                        int counted, int d, float weight, float *row, float *sum)
{
    const float scale = 1.0f / sqrtf((float)d);
    kernels->dot_rows(query, keys, visible, d, row);
    for (int j = 0; j < visible; j++) row[j] *= scale;
    const float share = weight / score_exp(kernels, row, visible);
    for (int j = 0; j < counted; j++) sum[j] += row[j] * share;
}

struct compact_tiles attention_tiles(const struct compact_input *in, struct score_scratch *scratch, int head)
{
    if (in->key_tiles != NULL) return in->key_tiles[head];
    score_tiles(in->keys[head], in->entries[head], in->head_dim, scratch->tile);
    return (struct compact_tiles){scratch->tile_at, PAGE_F32};
}

void attention_pooled(const struct policy *policy, enum policy_reduce method, const struct compact_input *in,
                      const struct compact_kernels *kernels, struct score_scratch *scratch, int head, int window,
                      float *out)
{
    const enum policy_reduce reduce = policy->reduce == REDUCE_METHOD ? method : policy->reduce;
    const int d = in->head_dim, group = in->group, past = in->entries[head] - window;
    const int64_t stride = (int64_t)in->kv_heads * group * d;
    const float *queries = in->queries + (in->query_rows - window) * stride + (int64_t)head * group * d;
    float *attention = scratch->second;
    if (reduce == REDUCE_MAX_LOGIT) {
        const struct compact_tiles tiles = attention_tiles(in, scratch, head);
        score_importance(kernels, &tiles, past, d, queries, window, stride, group, scratch->row, attention);
    } else {
        const int is_max = reduce == REDUCE_MAX_PROB;
        const float weight = 1.0f / (float)(is_max ? window : window * group);
        memset(attention, 0, (size_t)past * sizeof *attention);
        for (int g = 0; g < group; g++) {
            float *sum = is_max ? scratch->first : attention;
            if (is_max) memset(sum, 0, (size_t)past * sizeof *sum);
            for (int w = 0; w < window; w++)
                softmax_add(kernels, queries + w * stride + (int64_t)g * d, in->keys[head], past + w + 1, past, d,
                            weight, scratch->row, sum);
            if (!is_max) continue;
            /* A NaN wins and stays, so that it reaches the caller, who reports it. */
            for (int j = 0; j < past; j++)
                attention[j] = (sum[j] > attention[j]) | (sum[j] != sum[j]) ? sum[j] : attention[j];
        }
    }
    if (policy->pool == POOL_AVG)
        score_avg_pool(attention, past, policy->kernel, out);
    else
        score_max_pool(attention, past, policy->kernel, out);
}

void attention_newest(const struct compact_input *in, const struct compact_kernels *kernels,
                      struct score_scratch *scratch, int head, float *out)
{
    const int d = in->head_dim, group = in->group, n = in->entries[head];
    const float *query = in->queries + ((int64_t)(in->query_rows - 1) * in->kv_heads + head) * group * d;
    memset(out, 0, (size_t)n * sizeof *out);
    for (int g = 0; g < group; g++)
        softmax_add(kernels, query + (int64_t)g * d, in->keys[head], n, n, d, 1.0f / (float)group, scratch->row, out);
}
