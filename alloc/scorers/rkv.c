/* rkv.c: R-KV (arXiv 2505.24133; alloc.md 2.1): lambda * importance - (1 - lambda) * redundancy. Importance is pooled
 * window attention; redundancy comes from the cosines of all keys of the head, the window's too. */
#include <math.h>

#include "alloc/attention.h"
#include "alloc/score.h"

static void rkv_score(const struct policy *policy, const struct compact_input *in,
                      const struct compact_kernels *kernels, struct score_scratch *scratch, int window,
                      float *const *score)
{
    const float lambda = (float)policy->lambda, rest = (float)(1 - policy->lambda);
    const double similarity = policy->retain == RETAIN_FIRST ? (double)INFINITY : policy->similarity;
    for (int h = 0; h < in->kv_heads; h++) {
        const int n = in->entries[h], past = n - window;
        if (past < 1) continue;
        attention_pooled(policy, REDUCE_MAX_LOGIT, in, kernels, scratch, h, window, score[h]);
        if (policy->lambda == 1) continue;
        const struct compact_tiles tiles = attention_tiles(in, scratch, h);
        score_redundancy(kernels, &tiles, n, in->head_dim, similarity, scratch, scratch->second);
        for (int j = 0; j < past; j++) score[h][j] = lambda * score[h][j] - rest * scratch->second[j];
    }
}

const struct scorer scorer_rkv = {
    .name = "rkv",
    .source = "R-KV, arXiv 2505.24133",
    .needs = NEEDS_QUERIES,
    .keys = "kernel reduce pool lambda similarity retain",
    .score = rkv_score,
};
