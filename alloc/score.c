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

/* exp of x <= 0 to about one unit in the last place; NaN stays NaN. libm's expf takes its code, and its last bit, from
 * the machine; this gives the same float everywhere, and has no branch that would keep it from vectors. */
static inline float exp_negative(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number, found in the low bits */
    x = x < -104.0f ? -104.0f : x;   /* below the smallest denormal */
    const float shifted = x * 1.44269504f + magic, power = shifted - magic;
    const float r = (x - power * 0.693359375f) + power * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * r) * r + r + 1.0f;
    /* 2^power in two factors, as 2^-150 is no float: only the last product rounds. */
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    const int32_t exponent = (int32_t)((uint32_t)bits - 0x4B400000u), half = exponent >> 1;
    const uint32_t first = (uint32_t)(half + 127) << 23, second = (uint32_t)(exponent - half + 127) << 23;
    float scale[2];
    memcpy(&scale[0], &first, sizeof first);
    memcpy(&scale[1], &second, sizeof second);
    return (p * scale[0]) * scale[1];
}

static void exp_rows_plain(const float *in, int n, float *out)
{
    for (int i = 0; i < n; i++) out[i] = exp_negative(in[i]);
}

struct compact_kernels compact_kernels_plain(void)
{
    return (struct compact_kernels){.dot_rows = dot_rows_plain, .exp_rows = exp_rows_plain};
}

/* Eight maxima and eight sums, as in dot_rows_plain. */
float score_exp(const struct compact_kernels *kernels, float *x, int n)
{
    float top[DOT_LANES], sum[DOT_LANES] = {0};
    for (int lane = 0; lane < DOT_LANES; lane++) top[lane] = x[0];
    int j = 0;
    for (; j + DOT_LANES <= n; j += DOT_LANES)
        for (int lane = 0; lane < DOT_LANES; lane++) top[lane] = x[j + lane] > top[lane] ? x[j + lane] : top[lane];
    for (int lane = 0; j + lane < n; lane++) top[lane] = x[j + lane] > top[lane] ? x[j + lane] : top[lane];
    for (int lane = 1; lane < DOT_LANES; lane++) top[0] = top[lane] > top[0] ? top[lane] : top[0];
    for (j = 0; j < n; j++) x[j] -= top[0];
    kernels->exp_rows(x, n, x);
    for (j = 0; j + DOT_LANES <= n; j += DOT_LANES)
        for (int lane = 0; lane < DOT_LANES; lane++) sum[lane] += x[j + lane];
    for (int lane = 0; j + lane < n; lane++) sum[lane] += x[j + lane];
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
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
            /* A NaN wins and stays, so that it reaches the caller, who reports it. */
            for (int j = 0; j < past; j++)
                logit[j] = (other[j] > logit[j]) | (other[j] != other[j]) ? other[j] : logit[j];
        }
        for (int j = 0; j < past; j++) logit[j] *= scale;
        const float share = 1.0f / (score_exp(kernels, logit, past) * (float)rows);
        for (int j = 0; j < past; j++) importance[j] += logit[j] * share;
    }
}

void score_max_pool(const float *in, int n, int kernel, float *out)
{
    memcpy(out, in, (size_t)n * sizeof *out);
    for (int shift = 1; shift <= kernel / 2 && shift < n; shift++) {
        for (int j = shift; j < n; j++) out[j] = in[j - shift] > out[j] ? in[j - shift] : out[j];
        for (int j = 0; j + shift < n; j++) out[j] = in[j + shift] > out[j] ? in[j + shift] : out[j];
    }
}

/* Every sum from its oldest neighbour on: equal neighbourhoods give equal floats, and ties stay ties. */
void score_avg_pool(const float *in, int n, int kernel, float *out)
{
    memset(out, 0, (size_t)n * sizeof *out);
    for (int shift = -(kernel / 2); shift <= kernel / 2; shift++) {
        const int begin = shift < 0 ? -shift : 0, end = shift < 0 ? n : n - shift;
        for (int j = begin; j < end; j++) out[j] += in[j + shift];
    }
    for (int j = 0; j < n; j++) out[j] /= (float)kernel;
}

/* Newest entry after i whose cosine with i is above the threshold; -1 if there is none. */
static int32_t similar_after(const struct compact_kernels *kernels, const float *unit, int n, int d, int i,
                             float threshold)
{
    float row[SCAN_ROWS];
    for (int end = n; end > i + 1; end -= SCAN_ROWS) {
        const int begin = end - SCAN_ROWS > i + 1 ? end - SCAN_ROWS : i + 1;
        kernels->dot_rows(unit + (int64_t)i * d, unit + (int64_t)begin * d, end - begin, d, row);
        for (int j = end - 1; j >= begin; j--)
            if (row[j - begin] > threshold) return j;
    }
    return -1;
}

/* Newest entry before i whose cosine with i is above the threshold; 0 if there is none, as the rule wants. after[j] is
 * what entry j found after itself: it tells where pair (j, i) was already looked at, and cosines are symmetric. */
static int32_t similar_before(const struct compact_kernels *kernels, const float *unit, int d, int i, float threshold,
                              const int32_t *after)
{
    float row[SCAN_ROWS];
    for (int end = i; end > 0; end -= SCAN_ROWS) {
        const int begin = end > SCAN_ROWS ? end - SCAN_ROWS : 0;
        int open = 0;
        for (int j = begin; j < end; j++) open |= after[j] > i;
        if (open) kernels->dot_rows(unit + (int64_t)i * d, unit + (int64_t)begin * d, end - begin, d, row);
        for (int j = end - 1; j >= begin; j--)
            if (after[j] == i || (after[j] > i && row[j - begin] > threshold)) return j;
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
    for (int i = 0; i < n; i++)
        relieved[i] = isinf(threshold) ? 0 : similar_after(kernels, unit, n, d, i, (float)threshold);
    /* From the last entry on: those before i still say what they found after themselves. */
    for (int i = n - 1; i >= 0; i--)
        if (relieved[i] < 0) relieved[i] = similar_before(kernels, unit, d, i, (float)threshold, relieved);
    for (int i = 0; i < n; i++) {
        const float *own = unit + (int64_t)i * d;
        float dot;
        kernels->dot_rows(own, own, 1, d, &dot);
        column[i] -= dot;
        if (relieved[i] == i) continue; /* entry 0 without a similar one: its diagonal is gone already */
        kernels->dot_rows(own, unit + (int64_t)relieved[i] * d, 1, d, &dot);
        column[relieved[i]] -= dot;
    }
    for (int j = 0; j < n; j++) redundancy[j] = column[j] / (float)n;
    if (column != redundancy) memcpy(column, redundancy, (size_t)n * sizeof *column);
    const float total = score_exp(kernels, redundancy, n);
    for (int j = 0; j < n; j++) redundancy[j] /= total;
}

float score_l1(const float *x, int d)
{
    float sum[DOT_LANES] = {0};
    int k = 0;
    for (; k + DOT_LANES <= d; k += DOT_LANES)
        for (int lane = 0; lane < DOT_LANES; lane++) sum[lane] += fabsf(x[k + lane]);
    for (int lane = 0; k + lane < d; lane++) sum[lane] += fabsf(x[k + lane]);
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

float score_random(uint64_t key, int head, int32_t position)
{
    uint64_t z = key + 0x9E3779B97F4A7C15u * (((uint64_t)(uint32_t)head << 32 | (uint32_t)position) + 1);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)(z >> 40) * 0x1p-24f;
}
