/* random.c: a control without any knowledge: uniform numbers keyed by sample seed, layer, head and logical position, so
 * that an entry's number does not change from one compaction to the next. */
#include "alloc/score.h"
#include "alloc/scorer.h"

static void random_fill(const struct policy *policy, const struct compact_input *in,
                        const struct compact_kernels *kernels, struct score_scratch *scratch, int window,
                        float *const *score)
{
    (void)policy, (void)kernels, (void)scratch;
    for (int h = 0; h < in->kv_heads; h++)
        for (int j = 0; j < in->entries[h] - window; j++)
            score[h][j] = score_random(in->random_key, h, in->positions[h][j]);
}

const struct scorer scorer_random = {
    .name = "random",
    .source = "control",
    .keys = "",
    .needs = NEEDS_POSITIONS,
    .score = random_fill,
};
