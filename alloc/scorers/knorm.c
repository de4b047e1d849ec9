/* knorm.c: keys of small norm stay (arXiv 2406.11430): -||k||. */
#include <math.h>

#include "alloc/scorer.h"

static void knorm_score(const struct policy *policy, const struct compact_input *in,
                        const struct compact_kernels *kernels, struct score_scratch *scratch, int window,
                        float *const *score)
{
    (void)policy, (void)scratch;
    const int d = in->head_dim;
    for (int h = 0; h < in->kv_heads; h++)
        for (int j = 0; j < in->entries[h] - window; j++) {
            const float *key = in->keys[h] + (int64_t)j * d;
            float square;
            kernels->dot_rows(key, key, 1, d, &square);
            score[h][j] = -sqrtf(square);
        }
}

/* The norm of a head's keys is the model's choice: its queries make up for it. */
const struct scorer scorer_knorm = {
    .name = "knorm",
    .source = "L2 norm of keys, arXiv 2406.11430",
    .needs = NEEDS_ROWS,
    .keys = "",
    .incomparable = 1,
    .score = knorm_score,
};
