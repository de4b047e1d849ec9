/* snapkv.c: window attention, pooled over neighbours (SnapKV, arXiv 2404.14469), as R-KV's baseline runs it while
 * decoding: by default the largest logit of the group, and a softmax that the window's own entries do not enter. */
#include "alloc/attention.h"

static void snapkv_score(const struct policy *policy, const struct compact_input *in,
                         const struct compact_kernels *kernels, struct score_scratch *scratch, int window,
                         float *const *score)
{
    for (int h = 0; h < in->kv_heads; h++)
        if (in->entries[h] > window)
            attention_pooled(policy, REDUCE_MAX_LOGIT, in, kernels, scratch, h, window, score[h]);
}

const struct scorer scorer_snapkv = {
    .name = "snapkv",
    .source = "SnapKV, arXiv 2404.14469, as R-KV runs it while decoding",
    .needs = NEEDS_QUERIES,
    .keys = "kernel reduce pool",
    .score = snapkv_score,
};
