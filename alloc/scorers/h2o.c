/* h2o.c: heavy hitters (H2O, arXiv 2306.14048; golden/compress h2o): the entries that have received most attention
 * since they were appended, and the most recent ones.
 *
 * The engine accumulates the attention; an evicted entry's sum goes with it. The most recent share is measured on all
 * that the head keeps, window included, so that it protects candidates only where it is larger than the window. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "alloc/scorer.h"

static void h2o_score(const struct policy *policy, const struct compact_input *in,
                      const struct compact_kernels *kernels, struct score_scratch *scratch, int window,
                      float *const *score)
{
    (void)policy, (void)kernels, (void)scratch;
    for (int h = 0; h < in->kv_heads; h++) {
        const int past = in->entries[h] - window;
        if (past > 0) memcpy(score[h], in->mass[h], (size_t)past * sizeof *score[h]);
    }
}

static void h2o_refine(const struct policy *policy, const struct compact_input *in,
                       const struct compact_kernels *kernels, struct score_scratch *scratch, int head, int past,
                       int keep, float *score)
{
    (void)kernels, (void)scratch;
    const int window = in->entries[head] - past, kept = policy->sinks_tokens + keep + window;
    int recent = (int)lround(policy->recent_share * kept) - window;
    recent = recent < keep ? recent : keep;
    for (int j = past - recent; j < past; j++) score[j] = FLT_MAX;
}

const struct scorer scorer_h2o = {
    .name = "h2o",
    .source = "H2O, arXiv 2306.14048",
    .needs = NEEDS_MASS,
    .keys = "recent-share",
    .score = h2o_score,
    .refine = h2o_refine,
};
