/* critical_kv.c: CriticalKV (arXiv 2502.03805): the first part of what a head keeps goes by window attention alone, the
 * rest by (attention + 1e-4) * ||W_o v||_1, the size of what the entry adds to the layer's output.
 *
 * The parts are shares of the candidates that stay: window and sinks count in neither. Attention is SnapKV's, by
 * default the mean of probabilities, as in the source. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "alloc/attention.h"
#include "alloc/select.h"

#define CRITICAL_EPSILON 1e-4f

static void critical_score(const struct policy *policy, const struct compact_input *in,
                           const struct compact_kernels *kernels, struct score_scratch *scratch, int window,
                           float *const *score)
{
    for (int h = 0; h < in->kv_heads; h++)
        if (in->entries[h] > window)
            attention_pooled(policy, REDUCE_MEAN_PROB, in, kernels, scratch, h, window, score[h]);
}

/* image[j], j < n: mean over the group of ||W_o v_j||_1. A column of the projection at a time, so that all values meet
 * it in one sweep of dot_rows. */
static void image_norm(const struct compact_input *in, const struct compact_kernels *kernels,
                       struct score_scratch *scratch, int head, const float *values, int n, float *image)
{
    const int d = in->head_dim, hidden = in->hidden;
    float *column = scratch->vector, *row = scratch->row;
    memset(image, 0, (size_t)n * sizeof *image);
    for (int g = 0; g < in->group; g++) {
        const float *output = in->output + ((int64_t)head * in->group + g) * d * hidden;
        for (int c = 0; c < hidden; c++) {
            for (int k = 0; k < d; k++) column[k] = output[(int64_t)k * hidden + c];
            kernels->dot_rows(column, values, n, d, row);
            for (int j = 0; j < n; j++) image[j] += fabsf(row[j]);
        }
    }
    for (int j = 0; j < n; j++) image[j] /= (float)in->group;
}

static void critical_refine(const struct policy *policy, const struct compact_input *in,
                            const struct compact_kernels *kernels, struct score_scratch *scratch, int head, int past,
                            int keep, float *score)
{
    const int sinks = policy->sinks_tokens, count = past - sinks;
    if (count < 1) return;
    int first = (int)floor(policy->first_share * keep);
    first = first < count ? first : count;
    float *own = score + sinks, *image = scratch->first;
    uint32_t *rank = (uint32_t *)scratch->marker;
    for (int j = 0; j < count; j++) rank[j] = score_rank(own[j]);
    image_norm(in, kernels, scratch, head, in->values[head] + (int64_t)sinks * in->head_dim, count, image);
    for (int j = 0; j < count; j++) own[j] = (own[j] + CRITICAL_EPSILON) * image[j];
    if (first < 1) return;
    const uint32_t cut = select_rank(rank, count, first);
    for (int j = 0; j < count; j++) first -= rank[j] > cut;
    for (int j = 0; j < count; j++)
        if (rank[j] > cut || (rank[j] == cut && first-- > 0)) own[j] = FLT_MAX;
}

const struct scorer scorer_critical_kv = {
    .name = "critical-kv",
    .source = "CriticalKV, arXiv 2502.03805",
    .needs = NEEDS_ROWS | NEEDS_QUERIES | NEEDS_VALUES | NEEDS_OUTPUT,
    .keys = "kernel reduce pool first-share",
    .score = critical_score,
    .refine = critical_refine,
};
