/* score.c: importance, redundancy, random. */
#include "alloc/score.h"

#include <math.h>
#include <string.h>

#define DOT_LANES 8
#define SCAN_ROWS 16

/* Eight partial sums, so that the compiler may use vectors without changing the order that the source fixes. */
static void dot_rows_plain(const float *a, const float *rows, int n, int d, float *out)
{
    for (int i = 0; i < n; i++, rows += d) {
        float sum[DOT_LANES] = {0};
        int k = 0;
        for (; k + DOT_LANES <= d; k += DOT_LANES)
            for (int lane = 0; lane < DOT_LANES; lane++) sum[lane] += a[k + lane] * rows[k + lane];
        for (int lane = 0; k + lane < d; lane++) sum[lane] += a[k + lane] * rows[k + lane];
        out[i] = ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
    }
}

static void exp_rows_plain(const float *in, int n, float *out)
{
    for (int i = 0; i < n; i++) out[i] = expf(in[i]);
}

struct compact_kernels compact_kernels_plain(void)
{
    return (struct compact_kernels){.dot_rows = dot_rows_plain, .exp_rows = exp_rows_plain};
}

/* x[j] := exp(x[j] - max) and returns the sum; the maximum of no entries never matters. */
static float exp_shifted(const struct compact_kernels *kernels, float *x, int n)
{
    float top = -INFINITY, sum = 0;
    for (int j = 0; j < n; j++) top = x[j] > top ? x[j] : top;
    for (int j = 0; j < n; j++) x[j] -= top;
    kernels->exp_rows(x, n, x);
    for (int j = 0; j < n; j++) sum += x[j];
    return sum;
}

void score_importance(const struct compact_kernels *kernels, const float *keys, int past, int d, const float *queries,
                      int rows, int64_t row_stride, int group, float *logit, float *importance)
{
    float *other = logit + past;
    const float scale = 1.0f / sqrtf((float)d);
    memset(importance, 0, (size_t)past * sizeof *importance);
    for (int w = 0; w < rows; w++) {
        const float *query = queries + w * row_stride;
        kernels->dot_rows(query, keys, past, d, logit);
        for (int g = 1; g < group; g++) {
            kernels->dot_rows(query + (int64_t)g * d, keys, past, d, other);
            for (int j = 0; j < past; j++) logit[j] = other[j] > logit[j] ? other[j] : logit[j];
        }
        for (int j = 0; j < past; j++) logit[j] *= scale;
        const float share = 1.0f / (exp_shifted(kernels, logit, past) * (float)rows);
        for (int j = 0; j < past; j++) importance[j] += logit[j] * share;
    }
}

void score_max_pool(const float *in, int n, int kernel, float *out)
{
    const int half = kernel / 2;
    for (int j = 0; j < n; j++) {
        int from = j < half ? 0 : j - half, to = j + half < n ? j + half : n - 1;
        float top = in[from];
        for (int i = from + 1; i <= to; i++) top = in[i] > top ? in[i] : top;
        out[j] = top;
    }
}

/* Newest entry other than i whose cosine with i is above the threshold; 0 if there is none. *cosine: that of the answer. */
static int most_recent_similar(const struct compact_kernels *kernels, const float *unit, int n, int d, int i,
                               float threshold, float *cosine)
{
    float row[SCAN_ROWS];
    *cosine = 0;
    for (int end = n; end > 0; end -= SCAN_ROWS) {
        int begin = end > SCAN_ROWS ? end - SCAN_ROWS : 0;
        kernels->dot_rows(unit + (int64_t)i * d, unit + (int64_t)begin * d, end - begin, d, row);
        for (int j = end - 1; j >= begin; j--) {
            if (j == i || !(row[j - begin] > threshold)) continue;
            *cosine = row[j - begin];
            return j;
        }
        if (begin == 0 && i != 0) *cosine = row[0];
    }
    return 0;
}

void score_redundancy(const struct compact_kernels *kernels, const float *keys, int n, int d, double threshold,
                      float *unit, float *sum, int32_t *relieved, float *column, float *redundancy)
{
    memset(sum, 0, (size_t)d * sizeof *sum);
    for (int i = 0; i < n; i++) {
        const float *key = keys + (int64_t)i * d;
        float *to = unit + (int64_t)i * d, square;
        kernels->dot_rows(key, key, 1, d, &square);
        const float norm = sqrtf(square) + 1e-8f;
        for (int k = 0; k < d; k++) to[k] = key[k] / norm;
        for (int k = 0; k < d; k++) sum[k] += to[k];
    }
    kernels->dot_rows(sum, unit, n, d, column);
    for (int i = 0; i < n; i++) {
        float self, cosine;
        kernels->dot_rows(unit + (int64_t)i * d, unit + (int64_t)i * d, 1, d, &self);
        column[i] -= self;
        relieved[i] = most_recent_similar(kernels, unit, n, d, i, (float)threshold, &cosine);
        column[relieved[i]] -= cosine;
    }
    for (int j = 0; j < n; j++) redundancy[j] = column[j] / (float)n;
    if (column != redundancy) memcpy(column, redundancy, (size_t)n * sizeof *column);
    const float total = exp_shifted(kernels, redundancy, n);
    for (int j = 0; j < n; j++) redundancy[j] /= total;
}

float score_random(uint64_t key, int head, int32_t position)
{
    uint64_t z = key + 0x9E3779B97F4A7C15u * (((uint64_t)(uint32_t)head << 32 | (uint32_t)position) + 1);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)(z >> 40) * 0x1p-24f;
}
