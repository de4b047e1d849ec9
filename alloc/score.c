/* score.c: importance, redundancy, random. */
#include "alloc/score.h"

#include <math.h>
#include <string.h>

#include "alloc/scorer.h"
#include "alloc/wide.h"

#define DOT_LANES 8

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

/* A row of a tile. The compiler keeps such a sum in registers, which it does not with an array. */
typedef float tile_row __attribute__((vector_size(SCORE_TILE * sizeof(float)), aligned(sizeof(float)), may_alias));
typedef uint32_t tile_bits __attribute__((vector_size(SCORE_TILE * sizeof(uint32_t))));
typedef uint16_t tile_half
    __attribute__((vector_size(SCORE_TILE * sizeof(uint16_t)), aligned(sizeof(uint16_t)), may_alias));

#define ROW_INLINE static inline __attribute__((always_inline))

ROW_INLINE void row_read(enum page_kind kind, const void *tile, int k, tile_row *row)
{
    if (kind == PAGE_F32)
        *row = ((const tile_row *)tile)[k];
    else
        *row = (tile_row)(__builtin_convertvector(((const tile_half *)tile)[k], tile_bits) << 16);
}

ROW_INLINE void dot_tile(enum page_kind kind, const float *a, const void *tile, int d, float *out)
{
    tile_row sum = {0}, row;
    for (int k = 0; k < d; k++) {
        row_read(kind, tile, k, &row);
        sum += a[k] * row;
    }
    memcpy(out, &sum, sizeof sum);
}

static void dot_tiles_plain(const float *const *a, int rows, const struct compact_tiles *tiles, int count, int d,
                            float *out, int64_t out_stride)
{
    for (int t = 0; t < count; t++)
        for (int r = 0; r < rows; r++) {
            float *to = out + r * out_stride + t * SCORE_TILE;
            if (tiles->kind == PAGE_F32)
                dot_tile(PAGE_F32, a[r], tiles->at[t], d, to);
            else
                dot_tile(PAGE_BF16, a[r], tiles->at[t], d, to);
        }
}

static void newest_similar_plain(const float *tiles, int n, int d, float threshold, int32_t *scratch, int32_t *newest,
                                 float *product)
{
    (void)scratch;
    for (int i = 0; i < n; i++) {
        const float *own = tiles + (int64_t)(i / SCORE_TILE) * d * SCORE_TILE + i % SCORE_TILE;
        uint32_t above = 0;
        for (int t = isinf(threshold) ? 0 : (n - 1) / SCORE_TILE; t >= 0 && above == 0; t--) {
            const float *tile = tiles + (int64_t)t * d * SCORE_TILE;
            const int begin = t * SCORE_TILE, lanes = n - begin < SCORE_TILE ? n - begin : SCORE_TILE;
            float sum[SCORE_TILE] = {0};
            for (int k = 0; k < d; k++)
                for (int j = 0; j < SCORE_TILE; j++) sum[j] += own[k * SCORE_TILE] * tile[k * SCORE_TILE + j];
            for (int j = 0; j < lanes; j++) above |= (uint32_t)(sum[j] > threshold && begin + j != i) << j;
            const int lane = 31 - __builtin_clz(above | 1u);
            newest[i] = begin + lane;
            product[i] = sum[lane];
        }
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
    return (struct compact_kernels){.dot_rows = dot_rows_plain,
                                    .dot_tiles = dot_tiles_plain,
                                    .newest_similar = newest_similar_plain,
                                    .exp_rows = exp_rows_plain};
}

/* Eight maxima and eight sums, as in dot_rows_plain. */
KVF_WIDE float score_exp(const struct compact_kernels *kernels, float *x, int n)
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

void score_tiles(const float *keys, int n, int d, float *tiles)
{
    for (int first = 0; first < n; first += SCORE_TILE, tiles += (int64_t)d * SCORE_TILE) {
        const int lanes = n - first < SCORE_TILE ? n - first : SCORE_TILE;
        if (lanes < SCORE_TILE) memset(tiles, 0, (size_t)d * SCORE_TILE * sizeof *tiles);
        for (int lane = 0; lane < lanes; lane++) {
            const float *key = keys + (int64_t)(first + lane) * d;
            for (int k = 0; k < d; k++) tiles[k * SCORE_TILE + lane] = key[k];
        }
    }
}

static int tiles_of(int n)
{
    return (n + SCORE_TILE - 1) / SCORE_TILE;
}

KVF_WIDE void score_importance(const struct compact_kernels *kernels, const struct compact_tiles *tiles, int past,
                               int d, const float *queries, int rows, int64_t row_stride, int group, float *logit,
                               float *importance)
{
    const int count = tiles_of(past), padded = count * SCORE_TILE, all = rows * group;
    const float scale = 1.0f / sqrtf((float)d);
    float *top = logit + COMPACT_DOT_ROWS * (int64_t)padded; /* largest of the group so far */
    memset(importance, 0, (size_t)past * sizeof *importance);
    for (int first = 0; first < all; first += COMPACT_DOT_ROWS) {
        const int taken = all - first < COMPACT_DOT_ROWS ? all - first : COMPACT_DOT_ROWS;
        const float *query[COMPACT_DOT_ROWS];
        for (int i = 0; i < taken; i++)
            query[i] = queries + (first + i) / group * row_stride + (int64_t)((first + i) % group) * d;
        kernels->dot_tiles(query, taken, tiles, count, d, logit, padded);
        for (int i = 0; i < taken; i++) {
            const int g = (first + i) % group;
            const float *own = logit + (int64_t)i * padded;
            if (g == 0)
                memcpy(top, own, (size_t)past * sizeof *top);
            else /* a NaN wins and stays, so that it reaches the caller, who reports it */
                for (int j = 0; j < past; j++) top[j] = (own[j] > top[j]) | (own[j] != own[j]) ? own[j] : top[j];
            if (g < group - 1) continue;
            for (int j = 0; j < past; j++) top[j] *= scale;
            const float share = 1.0f / (score_exp(kernels, top, past) * (float)rows);
            for (int j = 0; j < past; j++) importance[j] += top[j] * share;
        }
    }
}

KVF_WIDE void score_max_pool(const float *in, int n, int kernel, float *out)
{
    memcpy(out, in, (size_t)n * sizeof *out);
    for (int shift = 1; shift <= kernel / 2 && shift < n; shift++) {
        for (int j = shift; j < n; j++) out[j] = in[j - shift] > out[j] ? in[j - shift] : out[j];
        for (int j = 0; j + shift < n; j++) out[j] = in[j + shift] > out[j] ? in[j + shift] : out[j];
    }
}

/* Every sum from its oldest neighbour on: equal neighbourhoods give equal floats, and ties stay ties. */
KVF_WIDE void score_avg_pool(const float *in, int n, int kernel, float *out)
{
    memset(out, 0, (size_t)n * sizeof *out);
    for (int shift = -(kernel / 2); shift <= kernel / 2; shift++) {
        const int begin = shift < 0 ? -shift : 0, end = shift < 0 ? n : n - shift;
        for (int j = begin; j < end; j++) out[j] += in[j + shift];
    }
    for (int j = 0; j < n; j++) out[j] /= (float)kernel;
}

/* Unit keys of one tile, added to the lanes of their sum [d][16]; own: the inner product of each with itself [16]. What
 * lies past the first `entries` becomes 0. */
ROW_INLINE void tile_normalise(enum page_kind kind, const void *tile, int entries, int d, float *unit, float *lanes,
                               float *own)
{
    tile_row *out = (tile_row *)unit, *sum = (tile_row *)lanes, norm = {0}, square = {0}, row;
    tile_bits there;
    for (int j = 0; j < SCORE_TILE; j++) there[j] = j < entries ? UINT32_MAX : 0;
    for (int k = 0; k < d; k++) {
        row_read(kind, tile, k, &row);
        norm += row * row;
    }
    memcpy(own, &norm, sizeof norm);
    for (int j = 0; j < SCORE_TILE; j++) own[j] = 1.0f / (sqrtf(own[j]) + 1e-8f);
    memcpy(&norm, own, sizeof norm);
    for (int k = 0; k < d; k++) {
        row_read(kind, tile, k, &row);
        row = (tile_row)((tile_bits)(row * norm) & there);
        out[k] = row;
        sum[k] += row;
        square += row * row;
    }
    memcpy(own, &square, sizeof square);
}

KVF_WIDE static void tiles_normalise(const struct compact_tiles *tiles, int n, int d, float *unit, float *lanes,
                                     float *own)
{
    for (int t = 0, left = n; left > 0; t++, left -= SCORE_TILE, unit += (int64_t)d * SCORE_TILE, own += SCORE_TILE) {
        if (tiles->kind == PAGE_F32)
            tile_normalise(PAGE_F32, tiles->at[t], left, d, unit, lanes, own);
        else
            tile_normalise(PAGE_BF16, tiles->at[t], left, d, unit, lanes, own);
    }
}

KVF_WIDE void score_redundancy(const struct compact_kernels *kernels, const struct compact_tiles *tiles, int n, int d,
                               double threshold, struct score_scratch *scratch, float *redundancy)
{
    float *sum = scratch->vector, *lanes = sum + d, *own = scratch->row, *column = scratch->column;
    int32_t *relieved = scratch->marker;
    memset(lanes, 0, (size_t)d * SCORE_TILE * sizeof *lanes);
    tiles_normalise(tiles, n, d, scratch->unit, lanes, own);
    for (int k = 0; k < d; k++) {
        const float *lane = lanes + k * SCORE_TILE;
        float half[DOT_LANES];
        for (int j = 0; j < DOT_LANES; j++) half[j] = lane[j] + lane[j + DOT_LANES];
        sum[k] = ((half[0] + half[4]) + (half[1] + half[5])) + ((half[2] + half[6]) + (half[3] + half[7]));
    }
    const float *one = sum;
    const struct compact_tiles unit = {scratch->unit_at, PAGE_F32};
    kernels->dot_tiles(&one, 1, &unit, tiles_of(n), d, column, 0);
    for (int j = 0; j < n; j++) column[j] -= own[j]; /* the diagonal */
    kernels->newest_similar(scratch->unit, n, d, (float)threshold, scratch->scan, relieved, redundancy);
    for (int i = 0; i < n; i++)
        if (relieved[i] != i) column[relieved[i]] -= redundancy[i];
    for (int j = 0; j < n; j++) redundancy[j] = column[j] /= (float)n;
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
