/* cake_score.c: CAKE's token score (arXiv 2503.12491; alloc.md 1.3): mean plus 200 times variance of the attention that
 * the window's queries pay, so that entries which matter to some steps only are not averaged away.
 *
 * A query head's softmax runs over all entries up to the query's own; the variance over the window's rows is the
 * unbiased one (0 for a single row); average pooling, then the mean over the group. */
#include <math.h>
#include <string.h>

#include "alloc/score.h"
#include "alloc/scorer.h"

#define VARIANCE_WEIGHT 200.0f

static void cake_score(const struct policy *policy, const struct compact_input *in,
                       const struct compact_kernels *kernels, struct score_scratch *scratch, int window,
                       float *const *score)
{
    const int d = in->head_dim, group = in->group;
    const int64_t stride = (int64_t)in->kv_heads * group * d;
    const float *queries = in->queries + (in->query_rows - window) * stride, scale = 1.0f / sqrtf((float)d);
    const float weight = window > 1 ? VARIANCE_WEIGHT / (float)(window - 1) : 0.0f;
    float *row = scratch->row, *mean = scratch->first, *square = scratch->second, *sum = scratch->column;
    for (int h = 0; h < in->kv_heads; h++) {
        const int past = in->entries[h] - window;
        if (past < 1) continue;
        memset(sum, 0, (size_t)past * sizeof *sum);
        for (int g = 0; g < group; g++) {
            memset(mean, 0, (size_t)past * sizeof *mean);
            memset(square, 0, (size_t)past * sizeof *square);
            for (int w = 0; w < window; w++) {
                const int visible = past + w + 1;
                kernels->dot_rows(queries + w * stride + ((int64_t)h * group + g) * d, in->keys[h], visible, d, row);
                for (int j = 0; j < visible; j++) row[j] *= scale;
                const float share = 1.0f / score_exp(kernels, row, visible), part = 1.0f / (float)(w + 1);
                /* Welford's update: the difference of two large sums would lose a small variance. */
                for (int j = 0; j < past; j++) {
                    const float value = row[j] * share, before = value - mean[j];
                    mean[j] += before * part;
                    square[j] += before * (value - mean[j]);
                }
            }
            for (int j = 0; j < past; j++) sum[j] += (mean[j] + weight * square[j]) / (float)group;
        }
        score_avg_pool(sum, past, policy->kernel, score[h]);
    }
}

const struct scorer scorer_cake_score = {
    .name = "cake-score",
    .source = "CAKE, arXiv 2503.12491",
    .needs = NEEDS_ROWS | NEEDS_QUERIES,
    .keys = "kernel",
    .score = cake_score,
};
