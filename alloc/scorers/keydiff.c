/* keydiff.c: keys unlike the others stay (KeyDiff, arXiv 2504.15364): -cos(k, mean of all unit keys of the head), the
 * window's among them. No queries. */
#include <math.h>
#include <string.h>

#include "alloc/scorer.h"

static void keydiff_score(const struct policy *policy, const struct compact_input *in,
                          const struct compact_kernels *kernels, struct score_scratch *scratch, int window,
                          float *const *score)
{
    (void)policy;
    const int d = in->head_dim;
    float *anchor = scratch->vector, square;
    for (int h = 0; h < in->kv_heads; h++) {
        const int n = in->entries[h], past = n - window;
        if (past < 1) continue;
        memset(anchor, 0, (size_t)d * sizeof *anchor);
        for (int j = 0; j < n; j++) {
            const float *key = in->keys[h] + (int64_t)j * d;
            float *unit = scratch->unit + (int64_t)j * d;
            kernels->dot_rows(key, key, 1, d, &square);
            const float norm = fmaxf(sqrtf(square), 1e-12f);
            for (int k = 0; k < d; k++) unit[k] = key[k] / norm;
            for (int k = 0; k < d; k++) anchor[k] += unit[k];
        }
        for (int k = 0; k < d; k++) anchor[k] /= (float)n;
        kernels->dot_rows(anchor, anchor, 1, d, &square);
        const float norm = fmaxf(sqrtf(square), 1e-8f);
        for (int k = 0; k < d; k++) anchor[k] /= norm;
        kernels->dot_rows(anchor, scratch->unit, past, d, score[h]);
        for (int j = 0; j < past; j++) score[h][j] = -score[h][j];
    }
}

const struct scorer scorer_keydiff = {
    .name = "keydiff",
    .source = "KeyDiff, arXiv 2504.15364",
    .needs = NEEDS_ROWS,
    .keys = "",
    .score = keydiff_score,
};
