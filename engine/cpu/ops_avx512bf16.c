/* ops_avx512bf16.c: products and attention with AVX-512 and its bf16 dot product; the rest is the AVX2 set's.
 *
 * Activations of a product with bf16 weights are rounded to bf16, sums stay float: the logits differ from float compute
 * by what that rounding costs. The file keeps to a handful of intrinsics, so that a test can compile it against scalar
 * stand-ins (KVF_SIMD_SHIM names that header) on machines without AVX-512.
 */
#if defined(__x86_64__)
#if defined(KVF_SIMD_SHIM)
#include KVF_SIMD_SHIM
#else
#include <immintrin.h>
#endif
#include <math.h>
#include <string.h>
#include "engine/cpu/ops_avx2.h"

#define INLINE_512 static inline __attribute__((always_inline))
#define LANES_512  16

INLINE_512 __mmask16 lanes_below(int n)
{
    return n >= LANES_512 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}

/* ---- exp ---- */

/* exp_lanes of ops_avx2.c, bit for bit: the same sums, and the power of two multiplied in by scalef. */
INLINE_512 __m512 avx512_exp(__m512 x)
{
    const __mmask16 there = (__mmask16)~_mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.3f), _CMP_LT_OQ);
    x = _mm512_min_ps(_mm512_set1_ps(88.0f), x); /* this order keeps a NaN */
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8 /* nearest, no exception */);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.3888889e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3333333e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1666667e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666667e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(there, p, n);
}

static void avx512_exp_rows(const float *in, int n, float *out)
{
    int i = 0;
    for (; i + LANES_512 <= n; i += LANES_512) _mm512_storeu_ps(out + i, avx512_exp(_mm512_loadu_ps(in + i)));
    const __mmask16 rest = lanes_below(n - i);
    if (i < n) _mm512_mask_storeu_ps(out + i, rest, avx512_exp(_mm512_maskz_loadu_ps(rest, in + i)));
}

/* ---- gemm ---- */

static void avx512_to_half(const float *in, int n, uint16_t *out)
{
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, in + i, sizeof bits);
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        out[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
    }
}

INLINE_512 __m512bh pair_of(const uint16_t *in)
{
    int pair;
    memcpy(&pair, in, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* A tile of constants, as in ops_avx2.c: each accumulator takes the input pairs in order. */
INLINE_512 void avx512_tile(int rows, int panels, const struct gemm *gemm, int panel, int row)
{
    const struct panels *weight = gemm->weight;
    int64_t pairs = (weight->inputs + 1) / 2, size = pairs * LANES_512 * 2;
    const uint16_t *data = (const uint16_t *)weight->data + panel * size;
    const uint16_t *in = gemm->in_half + row * gemm->in_stride;
    __m512 sum[8][4];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) sum[i][p] = _mm512_setzero_ps();
    }
    for (int64_t k = 0; k < pairs; k++) {
        __m512bh w[4];
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) w[p] = (__m512bh)_mm512_loadu_si512(data + p * size + k * LANES_512 * 2);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            __m512bh x = pair_of(in + i * gemm->in_stride + 2 * k);
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) sum[i][p] = _mm512_dpbf16_ps(sum[i][p], x, w[p]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            int first = (panel + p) * PANEL_OUTPUTS;
            __mmask16 mask = lanes_below(weight->outputs - first);
            float *out = gemm->out + (row + i) * gemm->out_stride + first;
            __m512 value = sum[i][p];
            if (weight->bias != NULL) value = _mm512_add_ps(value, _mm512_loadu_ps(weight->bias + first));
            if (gemm->add) value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), value);
            _mm512_mask_storeu_ps(out, mask, value);
        }
    }
}

INLINE_512 void avx512_rows(int panels, const struct gemm *gemm, int panel)
{
    int row = 0;
    for (; row + 8 <= gemm->rows; row += 8) avx512_tile(8, panels, gemm, panel, row);
    if (gemm->rows - row >= 4) {
        avx512_tile(4, panels, gemm, panel, row);
        row += 4;
    }
    if (gemm->rows - row >= 2) {
        avx512_tile(2, panels, gemm, panel, row);
        row += 2;
    }
    if (row < gemm->rows) avx512_tile(1, panels, gemm, panel, row);
}

static void avx512_gemm(const struct gemm *gemm, int first_panel, int last_panel)
{
    if (gemm->weight->kind != PANEL_BF16_PAIRS) {
        avx2_gemm(gemm, first_panel, last_panel);
        return;
    }
    int panel = first_panel;
    if (gemm->rows < 8) {
        for (; panel + 4 <= last_panel; panel += 4) avx512_rows(4, gemm, panel);
    }
    for (; panel + 2 <= last_panel; panel += 2) avx512_rows(2, gemm, panel);
    for (; panel < last_panel; panel++) avx512_rows(1, gemm, panel);
}

/* ---- attention ---- */

/* Sixteen numbers of a page from element `index` on. Of f32 pages those outside the mask are zero and not read; bf16
 * ones are read whole, which stays inside the page since positions follow the values. */
INLINE_512 __m512 avx512_page_lanes(enum page_kind kind, __mmask16 mask, const void *page, int64_t index)
{
    if (kind == PAGE_F32) return _mm512_maskz_loadu_ps(mask, (const float *)page + index);
    __m256bh half;
    memcpy(&half, (const uint16_t *)page + index, sizeof half);
    return _mm512_cvtpbh_ps(half);
}

/* Logits of `heads` query heads, minus infinity past the entries; returns with exp(logit - highest) and its sum. */
INLINE_512 void avx512_weights(enum page_kind kind, const struct attention *a, int heads, const float *query,
                               float *logits, int padded, float *total)
{
    const int d = a->head_dim, size = kind == PAGE_F32 ? 4 : 2, ahead = attention_ahead_pages(a);
    const __m512 scale = _mm512_set1_ps(a->scale), nothing = _mm512_set1_ps(-INFINITY);
    __m512 top[4];
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++) top[h] = nothing;
    for (int first = 0; first < a->entries; first += CPU_PAGE_ENTRIES) {
        const void *key = a->pages[first / CPU_PAGE_ENTRIES];
        const char *next = attention_ahead(a, first / CPU_PAGE_ENTRIES, ahead); /* its keys here, its values below */
        __m512 even[4], odd[4];
#pragma GCC unroll 4
        for (int h = 0; h < heads; h++) even[h] = odd[h] = _mm512_setzero_ps();
        for (int k = 0; k < d; k += 2) {
            __builtin_prefetch(next + k * 16 * size);
            if (kind == PAGE_F32) __builtin_prefetch(next + k * 16 * size + 64);
            __m512 k0 = avx512_page_lanes(kind, 0xffff, key, k * LANES_512);
            __m512 k1 = avx512_page_lanes(kind, 0xffff, key, (k + 1) * LANES_512);
#pragma GCC unroll 4
            for (int h = 0; h < heads; h++) {
                even[h] = _mm512_fmadd_ps(_mm512_set1_ps(query[h * d + k]), k0, even[h]);
                odd[h] = _mm512_fmadd_ps(_mm512_set1_ps(query[h * d + k + 1]), k1, odd[h]);
            }
        }
        __mmask16 valid = lanes_below(a->entries - first);
#pragma GCC unroll 4
        for (int h = 0; h < heads; h++) {
            __m512 logit = _mm512_mul_ps(_mm512_add_ps(even[h], odd[h]), scale);
            logit = _mm512_mask_blend_ps(valid, nothing, logit);
            _mm512_storeu_ps(logits + h * padded + first, logit);
            top[h] = _mm512_max_ps(top[h], logit);
        }
    }
    for (int h = 0; h < heads; h++) {
        const __m512 highest = _mm512_set1_ps(_mm512_reduce_max_ps(top[h]));
        float *row = logits + h * padded;
        for (int i = 0; i < padded; i += LANES_512) {
            _mm512_storeu_ps(row + i, _mm512_sub_ps(_mm512_loadu_ps(row + i), highest));
        }
        avx512_exp_rows(row, padded, row);
        __m512 sum = _mm512_setzero_ps();
        for (int i = 0; i < padded; i += LANES_512) sum = _mm512_add_ps(sum, _mm512_loadu_ps(row + i));
        total[h] = _mm512_reduce_add_ps(sum);
    }
}

/* `vectors` x 16 dimensions from column on, the last of them masked. */
INLINE_512 void avx512_values(enum page_kind kind, const struct attention *a, int heads, int vectors,
                              const float *weights, int padded, const float *total, int column, float *out)
{
    const int d = a->head_dim, row_bytes = d * (kind == PAGE_F32 ? 4 : 2), ahead = attention_ahead_pages(a);
    __m512 sum[4][4];
    __mmask16 mask[4];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
        mask[v] = lanes_below(d - column - v * LANES_512);
#pragma GCC unroll 4
        for (int h = 0; h < heads; h++) sum[h][v] = _mm512_setzero_ps();
    }
    for (int first = 0; first < a->entries; first += CPU_PAGE_ENTRIES) {
        const void *page = a->pages[first / CPU_PAGE_ENTRIES];
        const char *next = attention_ahead(a, first / CPU_PAGE_ENTRIES, ahead) + CPU_PAGE_ENTRIES * row_bytes;
        int64_t value = CPU_PAGE_ENTRIES * d + column;
        int valid = a->entries - first < CPU_PAGE_ENTRIES ? a->entries - first : CPU_PAGE_ENTRIES;
        for (int j = 0; j < valid; j++, value += d) {
            for (int byte = 0; column == 0 && byte < row_bytes; byte += 64) {
                __builtin_prefetch(next + j * row_bytes + byte);
            }
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                __m512 x = avx512_page_lanes(kind, mask[v], page, value + v * LANES_512);
#pragma GCC unroll 4
                for (int h = 0; h < heads; h++) {
                    sum[h][v] = _mm512_fmadd_ps(_mm512_set1_ps(weights[h * padded + first + j]), x, sum[h][v]);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++) {
        const __m512 t = _mm512_set1_ps(total[h]);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            _mm512_mask_storeu_ps(out + h * d + column + v * LANES_512, mask[v], _mm512_div_ps(sum[h][v], t));
        }
    }
}

INLINE_512 void avx512_heads(enum page_kind kind, const struct attention *a, int heads, int first_head)
{
    const int d = a->head_dim;
    int padded = (a->entries + CPU_PAGE_ENTRIES - 1) / CPU_PAGE_ENTRIES * CPU_PAGE_ENTRIES;
    float *weights = a->scratch + (int64_t)first_head * padded, *out = a->out + first_head * d;
    float total[4];
    avx512_weights(kind, a, heads, a->query + first_head * d, weights, padded, total);
    for (int h = 0; a->mass != NULL && h < heads; h++) {
        avx2_mass(weights + h * padded, padded, attention_mass_share(a, total[h]), a->mass);
    }
    int column = 0;
    for (; d - column > 3 * LANES_512; column += 4 * LANES_512) {
        avx512_values(kind, a, heads, 4, weights, padded, total, column, out);
    }
    for (; d - column > LANES_512; column += 2 * LANES_512) {
        avx512_values(kind, a, heads, 2, weights, padded, total, column, out);
    }
    if (column < d) avx512_values(kind, a, heads, 1, weights, padded, total, column, out);
}

INLINE_512 void avx512_attend_kind(enum page_kind kind, const struct attention *a)
{
    int head = 0;
    for (; head + 4 <= a->group; head += 4) avx512_heads(kind, a, 4, head);
    for (; head + 2 <= a->group; head += 2) avx512_heads(kind, a, 2, head);
    if (head < a->group) avx512_heads(kind, a, 1, head);
}

static void avx512_attend(const struct attention *a)
{
    if (a->kind == PAGE_F32)
        avx512_attend_kind(PAGE_F32, a);
    else
        avx512_attend_kind(PAGE_BF16, a);
}

/* ---- scores ---- */

INLINE_512 void avx512_dot_tile(enum page_kind kind, const float *const *a, int rows, const void *tile,
                                const char *next, int d, float *out, int64_t out_stride)
{
    const int row_bytes = LANES_512 * page_element_bytes(kind);
    __m512 sum[COMPACT_DOT_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) sum[r] = _mm512_setzero_ps();
    for (int64_t k = 0; k < d; k++) {
        const __m512 lanes = avx512_page_lanes(kind, 0xffff, tile, k * LANES_512);
        __builtin_prefetch(next + k * row_bytes);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) sum[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[r][k]), lanes, sum[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) _mm512_storeu_ps(out + r * out_stride, sum[r]);
}

INLINE_512 void avx512_dot_tiles_kind(enum page_kind kind, const float *const *a, int rows, const void *const *tiles,
                                      int count, int d, float *out, int64_t out_stride)
{
    for (int t = 0; t < count; t++, out += LANES_512) {
        const char *next = tiles[t + (t < count - 1)]; /* pages lie anywhere */
        int r = 0;
        if (rows == COMPACT_DOT_ROWS) {
            avx512_dot_tile(kind, a, COMPACT_DOT_ROWS, tiles[t], next, d, out, out_stride);
            continue;
        }
        for (; r + 4 <= rows; r += 4)
            avx512_dot_tile(kind, a + r, 4, tiles[t], next, d, out + r * out_stride, out_stride);
        for (; r < rows; r++) avx512_dot_tile(kind, a + r, 1, tiles[t], next, d, out + r * out_stride, out_stride);
    }
}

static void avx512_dot_tiles(const float *const *a, int rows, const struct compact_tiles *tiles, int count, int d,
                             float *out, int64_t out_stride)
{
    if (tiles->kind == PAGE_F32)
        avx512_dot_tiles_kind(PAGE_F32, a, rows, tiles->at, count, d, out, out_stride);
    else
        avx512_dot_tiles_kind(PAGE_BF16, a, rows, tiles->at, count, d, out, out_stride);
}

/* ---- similarity ---- */

/* Most pairs of unit keys are nowhere near the threshold. So a first pass takes their inner products from numbers
 * rounded to whole 127ths, four a lane and instruction, and only what may be above is computed in float, from the
 * newest on.
 *
 * With a = 127 x = q + e, q whole: a.a' - q.q' = a.e' + a'.e - e.e', at most 127 |e'| + 127 |e| + |e| |e'|, and |e| is
 * at most sqrt(d) / 2. What either side may hide stands with it. */
struct coarse {
    int32_t *quad;    /* [tile][quads][16]: four signed numbers of one entry in each word */
    int32_t *start;   /* [entry] what its rounding may hide; and takes back what +128 in every number of the other side
                       * adds to a product */
    int32_t *limit;   /* [entry] the other side's: a product above the threshold is above it */
    int32_t *pending; /* entries that have found none yet */
    int32_t *found;   /* those that may have one in the tile at hand */
    int32_t *hits;    /* the same entries' lanes of it */
    int quads;
};

#define COARSE_ONE  127
#define COARSE_SELF 3 /* for the roundings of the limits, and of the float sums */

static struct coarse coarse_make(const float *tiles, int n, int d, float threshold, int32_t *scratch)
{
    const int count = (n + LANES_512 - 1) / LANES_512, padded = count * LANES_512, quads = (d + 3) / 4;
    const struct coarse c = {.quad = scratch,
                             .start = scratch + padded * quads,
                             .limit = scratch + padded * (quads + 1),
                             .pending = scratch + padded * (quads + 2),
                             .found = scratch + padded * (quads + 3),
                             .hits = scratch + padded * (quads + 4),
                             .quads = quads};
    const __m512 one = _mm512_set1_ps(COARSE_ONE), other = _mm512_set1_ps(COARSE_ONE + sqrtf((float)d) / 2);
    const __m512 bound = _mm512_set1_ps(COARSE_ONE * COARSE_ONE * fminf(fmaxf(threshold, -2), 2) - COARSE_SELF);
    const __m512i byte = _mm512_set1_epi32(255);
    for (int t = 0; t < count; t++) {
        __m512i sum = _mm512_set1_epi32(0);
        __m512 square = _mm512_setzero_ps();
        for (int q = 0; q < quads; q++) {
            __m512i word = _mm512_set1_epi32(0);
            for (int k = 4 * q + 3; k >= 4 * q; k--) {
                __m512i number = _mm512_set1_epi32(0);
                if (k < d) {
                    const __m512 a = _mm512_mul_ps(_mm512_loadu_ps(tiles + ((int64_t)t * d + k) * LANES_512), one);
                    number = _mm512_cvtps_epi32(a);
                    const __m512 e = _mm512_sub_ps(a, _mm512_cvtepi32_ps(number));
                    square = _mm512_fmadd_ps(e, e, square);
                }
                sum = _mm512_sub_epi32(sum, number);
                word = _mm512_or_si512(_mm512_slli_epi32(word, 8), _mm512_and_si512(number, byte));
            }
            _mm512_storeu_si512(c.quad + (t * quads + q) * LANES_512, word);
        }
        const __m512 hidden = _mm512_sqrt_ps(square);
        const __m512i own = _mm512_cvtps_epi32(_mm512_mul_ps(hidden, one));
        _mm512_storeu_si512(c.start + t * LANES_512, _mm512_add_epi32(_mm512_slli_epi32(sum, 7), own));
        _mm512_storeu_si512(c.limit + t * LANES_512, _mm512_cvtps_epi32(_mm512_fnmadd_ps(hidden, other, bound)));
    }
    return c;
}

/* above[r]: the lanes of tile t whose product with entry[r] may be above the threshold, r < 16. `quads` is c->quads: a
 * constant keeps the tile in registers. */
INLINE_512 void coarse_above(const struct coarse *c, unsigned quads, const int32_t *entry, int t, int32_t *above)
{
    const int32_t *tile = c->quad + (unsigned)t * quads * LANES_512;
    const __m512i limit = _mm512_loadu_si512(c->limit + t * LANES_512), shift = _mm512_set1_epi32((int)0x80808080u);
    for (int r = 0; r < LANES_512; r++) {
        const unsigned own = (unsigned)entry[r];
        const int32_t *row = c->quad + own / LANES_512 * quads * LANES_512 + own % LANES_512;
        __m512i sum = _mm512_set1_epi32(c->start[own]);
#pragma GCC unroll 16
        for (unsigned q = 0; q < quads; q++)
            sum = _mm512_dpbusd_epi32(sum, _mm512_xor_si512(_mm512_loadu_si512(tile + q * LANES_512), shift),
                                      _mm512_set1_epi32(row[q * LANES_512]));
        above[r] = _mm512_cmpgt_epi32_mask(sum, limit);
    }
}

static void coarse_above_any(const struct coarse *c, const int32_t *entry, int t, int32_t *above)
{
    if (c->quads == 8)
        coarse_above(c, 8, entry, t, above);
    else if (c->quads == 16)
        coarse_above(c, 16, entry, t, above);
    else
        coarse_above(c, (unsigned)c->quads, entry, t, above);
}

/* Parts `pending` by tile t in those that may have found theirs in it, whose number it returns, and the rest, which
 * stay. */
static int coarse_part(const struct coarse *c, int n, int t, int *open)
{
    const int begin = t * LANES_512;
    const __m512i there = _mm512_set1_epi32(lanes_below(n - begin)), first = _mm512_set1_epi32(begin);
    int left = 0, found = 0;
    for (int at = 0; at < *open; at += LANES_512) {
        int32_t above[LANES_512], *entry = c->pending + at; /* past the end: entries that were taken before */
        coarse_above_any(c, entry, t, above);
        const __m512i i = _mm512_loadu_si512(entry);
        /* A shift by what is not 0...15 leaves nothing of bit 0, or a lane that the tile does not have. */
        const __m512i own = _mm512_sllv_epi32(_mm512_set1_epi32(1), _mm512_sub_epi32(i, first));
        const __m512i hits = _mm512_andnot_si512(own, _mm512_and_si512(_mm512_loadu_si512(above), there));
        const __mmask16 valid = lanes_below(*open - at), some = _mm512_test_epi32_mask(hits, hits) & valid;
        const __mmask16 none = (__mmask16)(valid & ~some);
        _mm512_storeu_si512(c->found + found, _mm512_maskz_compress_epi32(some, i));
        _mm512_storeu_si512(c->hits + found, _mm512_maskz_compress_epi32(some, hits));
        found += __builtin_popcount(some);
        _mm512_storeu_si512(c->pending + left, _mm512_maskz_compress_epi32(none, i));
        left += __builtin_popcount(none);
    }
    *open = left;
    return found;
}

#define SETTLE_ROWS 4 /* as many sums as a multiply-add takes cycles */

/* Inner products of four entries with those of one tile. */
INLINE_512 void tile_products(const float *tiles, const int32_t *entry, const float *tile, int d, __m512 *sum)
{
    const float *a[SETTLE_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < SETTLE_ROWS; r++) {
        a[r] = tiles + (int64_t)(entry[r] / LANES_512) * d * LANES_512 + entry[r] % LANES_512;
        sum[r] = _mm512_setzero_ps();
    }
    for (int64_t k = 0; k < d; k++) {
        const __m512 lanes = _mm512_loadu_ps(tile + k * LANES_512);
#pragma GCC unroll 4
        for (int r = 0; r < SETTLE_ROWS; r++)
            sum[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[r][k * LANES_512]), lanes, sum[r]);
    }
}

/* Settles those of `found` that are above the threshold in tile t; the others go back to `pending`. */
static void found_settle(const struct coarse *c, const float *tiles, int d, float threshold, int t, int found,
                         int *open, int32_t *newest, float *product)
{
    const __m512 bound = _mm512_set1_ps(threshold);
    for (int at = 0; at < found; at += SETTLE_ROWS) {
        const int32_t *entry = c->found + at; /* past the end: entries that were taken before */
        __m512 sum[SETTLE_ROWS];
        tile_products(tiles, entry, tiles + (int64_t)t * d * LANES_512, d, sum);
#pragma GCC unroll 4
        for (int r = 0; r < SETTLE_ROWS; r++) {
            if (at + r >= found) break;
            float dot[LANES_512];
            const int i = entry[r];
            const uint32_t hits = (uint32_t)c->hits[at + r] & _mm512_cmp_ps_mask(sum[r], bound, _CMP_GT_OQ);
            const int lane = 31 - __builtin_clz(hits | 1u);
            _mm512_storeu_ps(dot, sum[r]);
            newest[i] = t * LANES_512 + lane;
            product[i] = dot[lane];
            c->pending[*open] = i;
            *open += hits == 0;
        }
    }
}

static void avx512_newest_similar(const float *tiles, int n, int d, float threshold, int32_t *scratch, int32_t *newest,
                                  float *product)
{
    const struct coarse c = coarse_make(tiles, n, d, threshold, scratch);
    int open = n;
    for (int i = 0; i < n; i++) c.pending[i] = c.found[i] = i;
    for (int i = n; i % LANES_512 != 0; i++) c.pending[i] = c.found[i] = 0;
    for (int t = isinf(threshold) ? -1 : (n - 1) / LANES_512; t >= 0 && open > 0; t--) {
        const int found = coarse_part(&c, n, t, &open);
        found_settle(&c, tiles, d, threshold, t, found, &open, newest, product);
    }
    /* The rest takes entry 0. */
    for (int at = 0; at < open; at++) c.found[at] = c.pending[at];
    const int rest = open;
    open = 0;
    found_settle(&c, tiles, d, INFINITY, 0, rest, &open, newest, product);
}

const struct cpu_ops cpu_ops_avx512bf16 = {
    .name = "avx512bf16",
    .bf16_kind = PANEL_BF16_PAIRS,
    .gemm = avx512_gemm,
    .attend = avx512_attend,
    .rmsnorm = avx2_rmsnorm,
    .rope = avx2_rope,
    .silu_mul = avx2_silu_mul,
    .compact = {.dot_rows = avx2_dot_rows,
                .dot_tiles = avx512_dot_tiles,
                .newest_similar = avx512_newest_similar,
                .exp_rows = avx512_exp_rows},
    .to_half = avx512_to_half,
};
#endif
