/* expected_attention.c: attention that queries to come are expected to pay (Expected Attention, arXiv 2510.00636, as
 * kvpress has it): (mean over the group of softmax_j(k.mu / sqrt(d) + k' Sigma k / (2 d)) + epsilon) * ||v||_2.
 *
 * mu and Sigma are mean and covariance of the window's queries after their own rotation is taken back and the mean
 * rotation of the next `future` positions is put on. Both are linear, and a rotation back by p_r and on by p + t is one
 * by t + (p - p_r): only the row's distance from the newest query matters, no position. Sigma itself is never built:
 * k' Sigma k is the mean over rows of the squared product with the centred query. The sinks are in no softmax. */
#include <math.h>
#include <string.h>

#include "alloc/attention.h"
#include "alloc/score.h"

/* turn [window][2][d / 2]: cosines and sines, mean over t = 1...future of the angle (t + distance) * frequency, which
 * is the middle angle times a ratio of sines. Angles in double: a float loses them at a few thousand positions. */
static void turn_fill(const float *frequency, int d, int window, int future, float *turn)
{
    const int half = d / 2;
    for (int i = 0; i < half; i++) {
        const double f = (double)frequency[i], sine = sin(f / 2);
        const double length = sine == 0 ? 1 : sin(future * f / 2) / (future * sine);
        for (int w = 0; w < window; w++) {
            const double middle = (window - 1 - w + (future + 1) / 2.0) * f;
            turn[(int64_t)w * d + i] = (float)(length * cos(middle));
            turn[(int64_t)w * d + half + i] = (float)(length * sin(middle));
        }
    }
}

static void turn_apply(const float *turn, const float *query, int d, float *out)
{
    const int half = d / 2;
    const float *cosine = turn, *sine = turn + half;
    for (int i = 0; i < half; i++) {
        out[i] = query[i] * cosine[i] - query[half + i] * sine[i];
        out[half + i] = query[i] * sine[i] + query[half + i] * cosine[i];
    }
}

/* sum[j] += weight * softmax of one query head's expected logits, j < n. queries: first row of the window. */
static void expected_add(const struct compact_kernels *kernels, struct score_scratch *scratch, const float *queries,
                         int window, int64_t stride, const float *keys, int n, int d, float weight, float *sum)
{
    float *mu = scratch->vector, *query = mu + d, *row = scratch->row, *square = scratch->first;
    const float *turn = scratch->unit;
    memset(mu, 0, (size_t)d * sizeof *mu);
    for (int w = 0; w < window; w++) {
        turn_apply(turn + (int64_t)w * d, queries + w * stride, d, query);
        for (int k = 0; k < d; k++) mu[k] += query[k];
    }
    for (int k = 0; k < d; k++) mu[k] /= (float)window;
    memset(square, 0, (size_t)n * sizeof *square);
    for (int w = 0; w < window; w++) {
        turn_apply(turn + (int64_t)w * d, queries + w * stride, d, query);
        for (int k = 0; k < d; k++) query[k] -= mu[k];
        kernels->dot_rows(query, keys, n, d, row);
        for (int j = 0; j < n; j++) square[j] += row[j] * row[j];
    }
    const float linear = 1.0f / sqrtf((float)d), quadratic = 1.0f / (2.0f * (float)d * (float)window);
    kernels->dot_rows(mu, keys, n, d, row);
    for (int j = 0; j < n; j++) row[j] = row[j] * linear + square[j] * quadratic;
    const float share = weight / score_exp(kernels, row, n);
    for (int j = 0; j < n; j++) sum[j] += row[j] * share;
}

static void expected_score(const struct policy *policy, const struct compact_input *in,
                           const struct compact_kernels *kernels, struct score_scratch *scratch, int window,
                           float *const *score)
{
    const int d = in->head_dim, group = in->group, sinks = policy->sinks_tokens;
    const int64_t stride = (int64_t)in->kv_heads * group * d;
    const float *queries = in->queries + (in->query_rows - window) * stride, epsilon = (float)policy->epsilon;
    float *expected = scratch->second;
    int turned = 0;
    for (int h = 0; h < in->kv_heads; h++) {
        const int n = in->entries[h] - sinks, past = in->entries[h] - window;
        for (int j = 0; j < past && j < sinks; j++) score[h][j] = 0.0f;
        if (past <= sinks) continue;
        /* The head holds more entries than the window, so the scratch has a row for each turn. */
        if (!turned) turn_fill(in->rope_frequency, d, window, policy->future_tokens, scratch->unit);
        turned = 1;
        memset(expected, 0, (size_t)n * sizeof *expected);
        for (int g = 0; g < group; g++)
            expected_add(kernels, scratch, queries + ((int64_t)h * group + g) * d, window, stride,
                         in->keys[h] + (int64_t)sinks * d, n, d, 1.0f / (float)group, expected);
        for (int j = sinks; j < past; j++) {
            const float *value = in->values[h] + (int64_t)j * d;
            float square;
            kernels->dot_rows(value, value, 1, d, &square);
            score[h][j] = (expected[j - sinks] + epsilon) * sqrtf(square);
        }
    }
}

const struct scorer scorer_expected_attention = {
    .name = "expected-attention",
    .source = "Expected Attention, arXiv 2510.00636",
    .needs = NEEDS_ROWS | NEEDS_QUERIES | NEEDS_VALUES | NEEDS_ROPE,
    .sinks_tokens = 4,
    .keys = "future epsilon",
    .score = expected_score,
};
