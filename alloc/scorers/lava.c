/* lava.c: LAVa's token score (arXiv 2509.09754): pooled window attention, the largest of the group, times the largest
 * ||v||_1 of the head. The factor is one number a head: it decides between heads, not inside one. All cached values
 * count for it, the window's too, because attention still reaches them. */
#include "alloc/attention.h"
#include "alloc/score.h"

static void lava_score(const struct policy *policy, const struct compact_input *in,
                       const struct compact_kernels *kernels, struct score_scratch *scratch, int window,
                       float *const *score)
{
    const int d = in->head_dim;
    for (int h = 0; h < in->kv_heads; h++) {
        const int n = in->entries[h], past = n - window;
        if (past < 1) continue;
        attention_pooled(policy, REDUCE_MAX_PROB, in, kernels, scratch, h, window, score[h]);
        float top = 0.0f;
        for (int j = 0; j < n; j++) {
            const float norm = score_l1(in->values[h] + (int64_t)j * d, d);
            top = norm > top || norm != norm ? norm : top;
        }
        for (int j = 0; j < past; j++) score[h][j] *= top;
    }
}

const struct scorer scorer_lava = {
    .name = "lava",
    .source = "LAVa, arXiv 2509.09754",
    .needs = NEEDS_ROWS | NEEDS_QUERIES | NEEDS_VALUES,
    .keys = "kernel reduce pool",
    .score = lava_score,
};
