/* vatp.c: value-aware token pruning (VATP, arXiv 2406.12335): attention times ||v||_1, first tokens kept, since sinks
 * receive much attention and carry small values. Here the attention is the window's, pooled, by default the mean of
 * probabilities over the group: mass is what the value is weighted with. */
#include "alloc/attention.h"
#include "alloc/score.h"

static void vatp_score(const struct policy *policy, const struct compact_input *in,
                       const struct compact_kernels *kernels, struct score_scratch *scratch, int window,
                       float *const *score)
{
    const int d = in->head_dim;
    for (int h = 0; h < in->kv_heads; h++) {
        const int past = in->entries[h] - window;
        if (past < 1) continue;
        attention_pooled(policy, REDUCE_MEAN_PROB, in, kernels, scratch, h, window, score[h]);
        for (int j = 0; j < past; j++) score[h][j] *= score_l1(in->values[h] + (int64_t)j * d, d);
    }
}

const struct scorer scorer_vatp = {
    .name = "vatp",
    .source = "VATP, arXiv 2406.12335",
    .needs = NEEDS_ROWS | NEEDS_QUERIES | NEEDS_VALUES,
    .sinks_tokens = 4,
    .keys = "kernel reduce pool",
    .score = vatp_score,
};
