/* ops_avx2.c: kernels for AVX2 + FMA. Compiled with those instructions, called only where kernels.c found them. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <string.h>
#include "engine/cpu/ops_avx2.h"

#define INLINE static inline __attribute__((always_inline))
#define LANES  8

/* ---- gemm ---- */

/* Weights of input k of one panel as two vectors: outputs 0-7 and 8-15. Widening bf16 is exact. */
INLINE void panel_row(enum panel_kind kind, const void *panel, int64_t k, __m256 *low, __m256 *high)
{
    if (kind == PANEL_F32) {
        const float *row = (const float *)panel + k * PANEL_OUTPUTS;
        *low = _mm256_load_ps(row);
        *high = _mm256_load_ps(row + LANES);
    } else {
        __m256i row = _mm256_load_si256((const __m256i *)((const uint16_t *)panel + k * PANEL_OUTPUTS));
        *low = _mm256_castsi256_ps(_mm256_slli_epi32(row, 16));
        *high = _mm256_castsi256_ps(_mm256_and_si256(row, _mm256_set1_epi32((int)0xffff0000u)));
    }
}

/* Adds bias, or what is there, and stores the outputs that exist. */
INLINE void tile_store(const struct gemm *gemm, int panel, int row, __m256 low, __m256 high)
{
    const struct panels *weight = gemm->weight;
    float *out = gemm->out + row * gemm->out_stride + (int64_t)panel * PANEL_OUTPUTS;
    if (weight->bias != NULL) {
        low = _mm256_add_ps(low, _mm256_loadu_ps(weight->bias + (int64_t)panel * PANEL_OUTPUTS));
        high = _mm256_add_ps(high, _mm256_loadu_ps(weight->bias + (int64_t)panel * PANEL_OUTPUTS + LANES));
    }
    int outputs = weight->outputs - panel * PANEL_OUTPUTS;
    if (outputs >= PANEL_OUTPUTS) {
        if (gemm->add) {
            low = _mm256_add_ps(_mm256_loadu_ps(out), low);
            high = _mm256_add_ps(_mm256_loadu_ps(out + LANES), high);
        }
        _mm256_storeu_ps(out, low);
        _mm256_storeu_ps(out + LANES, high);
        return;
    }
    float last[PANEL_OUTPUTS];
    _mm256_storeu_ps(last, low);
    _mm256_storeu_ps(last + LANES, high);
    for (int j = 0; j < outputs; j++) out[j] = gemm->add ? out[j] + last[j] : last[j];
}

/* `rows` x `panels` tile of constants: every accumulator sums over k in order, so a tile's shape changes no result.
 * `ahead`: what the tiles after this one read, fetched `step` bytes for each input; the cores' own prefetchers start
 * anew at every panel and leave a stream from memory at a third of its rate. */
INLINE void gemm_tile(enum panel_kind kind, int rows, int panels, const struct gemm *gemm, int panel, int row,
                      const char *ahead, int step)
{
    const struct panels *weight = gemm->weight;
    int64_t inputs = weight->inputs, size = inputs * PANEL_OUTPUTS * (kind == PANEL_F32 ? 4 : 2);
    const char *data = (const char *)weight->data + panel * size;
    const float *in = gemm->in + row * gemm->in_stride;
    __m256 sum[6][4][2];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) sum[i][p][0] = sum[i][p][1] = _mm256_setzero_ps();
    }
    for (int64_t k = 0; k < inputs; k++) {
        _mm_prefetch(ahead + k * step, _MM_HINT_T0);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            __m256 low, high;
            panel_row(kind, data + p * size, k, &low, &high);
#pragma GCC unroll 6
            for (int i = 0; i < rows; i++) {
                __m256 x = _mm256_broadcast_ss(in + i * gemm->in_stride + k);
                sum[i][p][0] = _mm256_fmadd_ps(x, low, sum[i][p][0]);
                sum[i][p][1] = _mm256_fmadd_ps(x, high, sum[i][p][1]);
            }
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) tile_store(gemm, panel + p, row + i, sum[i][p][0], sum[i][p][1]);
    }
}

/* Eight accumulators hide the latency of an FMA: few rows take several panels at once. */
INLINE void gemm_kind(enum panel_kind kind, const struct gemm *gemm, int first, int last)
{
    const int line = PANEL_OUTPUTS * (kind == PANEL_F32 ? 4 : 2); /* bytes of one input of a panel */
    const int64_t size = (int64_t)gemm->weight->inputs * line;
    const char *data = gemm->weight->data;
    if (gemm->rows <= 2) {
        const int wide = gemm->rows == 1 ? 4 : 2;
        for (; first + wide <= last; first += wide) {
            const char *ahead = data + (first + wide) * size;
            if (wide == 4)
                gemm_tile(kind, 1, 4, gemm, first, 0, ahead, 4 * line);
            else
                gemm_tile(kind, 2, 2, gemm, first, 0, ahead, 2 * line);
        }
        for (; first < last; first++) {
            if (wide == 4)
                gemm_tile(kind, 1, 1, gemm, first, 0, data + (first + 1) * size, line);
            else
                gemm_tile(kind, 2, 1, gemm, first, 0, data + (first + 1) * size, line);
        }
        return;
    }
    int tiles = (gemm->rows + 5) / 6;
    int step = line / (tiles < 4 ? tiles : 4); /* the first tiles of a panel fetch the next one, a part each */
    for (int panel = first; panel < last; panel++) {
        const char *ahead = data + (panel + 1) * size;
        int row = 0;
        for (int tile = 0; tile < tiles; tile++) {
            int rows = (gemm->rows - row) / (tiles - tile); /* even tiles: 32 rows are 5 5 5 5 6 6 */
            switch (rows) {
            case 6:
                gemm_tile(kind, 6, 1, gemm, panel, row, ahead, step);
                break;
            case 5:
                gemm_tile(kind, 5, 1, gemm, panel, row, ahead, step);
                break;
            case 4:
                gemm_tile(kind, 4, 1, gemm, panel, row, ahead, step);
                break;
            default:
                gemm_tile(kind, 3, 1, gemm, panel, row, ahead, step);
                break;
            }
            if (tile < 3) ahead += gemm->weight->inputs * step;
            row += rows;
        }
    }
}

void avx2_gemm(const struct gemm *gemm, int first_panel, int last_panel)
{
    if (gemm->weight->kind == PANEL_F32)
        gemm_kind(PANEL_F32, gemm, first_panel, last_panel);
    else
        gemm_kind(PANEL_BF16, gemm, first_panel, last_panel);
}

/* ---- sums and exp ---- */

INLINE float sum_lanes(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

INLINE float max_lanes(__m256 v)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/* As exp_one in ops_plain.c, fused. */
INLINE __m256 exp_lanes(__m256 x)
{
    __m256 under = _mm256_cmp_ps(x, _mm256_set1_ps(-87.3f), _CMP_LT_OQ);
    x = _mm256_min_ps(_mm256_set1_ps(88.0f), x); /* this order keeps a NaN */
    __m256 n =
        _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.3888889e-3f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3333333e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1666667e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666667e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(under, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}

/* Lanes below n. */
INLINE __m256i lanes_mask(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

void avx2_exp_rows(const float *in, int n, float *out)
{
    int i = 0;
    for (; i + LANES <= n; i += LANES) _mm256_storeu_ps(out + i, exp_lanes(_mm256_loadu_ps(in + i)));
    __m256i mask = lanes_mask(n - i);
    if (i < n) _mm256_maskstore_ps(out + i, mask, exp_lanes(_mm256_maskload_ps(in + i, mask)));
}

/* ---- attention ---- */

/* Eight numbers of a page from element `index` on. Widening bf16 is exact. */
INLINE __m256 page_lanes(enum page_kind kind, const void *page, int64_t index)
{
    if (kind == PAGE_F32) return _mm256_loadu_ps((const float *)page + index);
    __m128i half = _mm_loadu_si128((const __m128i *)((const uint16_t *)page + index));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* Logits of `heads` query heads over every page; a head's row has `padded` places, minus infinity past the entries. */
INLINE void attend_logits(enum page_kind kind, const struct attention *a, int heads, const float *query, float *logits,
                          int padded, float *highest)
{
    const int d = a->head_dim, size = kind == PAGE_F32 ? 4 : 2, ahead = attention_ahead_pages(a);
    const __m256 scale = _mm256_set1_ps(a->scale), nothing = _mm256_set1_ps(-INFINITY);
    __m256 top[4];
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++) top[h] = nothing;
    for (int first = 0; first < a->entries; first += CPU_PAGE_ENTRIES) {
        const void *key = a->pages[first / CPU_PAGE_ENTRIES];
        const char *next = attention_ahead(a, first / CPU_PAGE_ENTRIES, ahead); /* its keys here, its values below */
        __m256 even[4][2], odd[4][2];
#pragma GCC unroll 4
        for (int h = 0; h < heads; h++) even[h][0] = even[h][1] = odd[h][0] = odd[h][1] = _mm256_setzero_ps();
        for (int k = 0; k < d; k += 2) {
            _mm_prefetch(next + k * 16 * size, _MM_HINT_T0);
            if (kind == PAGE_F32) _mm_prefetch(next + k * 16 * size + 64, _MM_HINT_T0);
            __m256 k0 = page_lanes(kind, key, k * 16), k1 = page_lanes(kind, key, k * 16 + 8);
            __m256 k2 = page_lanes(kind, key, k * 16 + 16), k3 = page_lanes(kind, key, k * 16 + 24);
#pragma GCC unroll 4
            for (int h = 0; h < heads; h++) {
                __m256 q0 = _mm256_broadcast_ss(query + h * d + k), q1 = _mm256_broadcast_ss(query + h * d + k + 1);
                even[h][0] = _mm256_fmadd_ps(q0, k0, even[h][0]);
                even[h][1] = _mm256_fmadd_ps(q0, k1, even[h][1]);
                odd[h][0] = _mm256_fmadd_ps(q1, k2, odd[h][0]);
                odd[h][1] = _mm256_fmadd_ps(q1, k3, odd[h][1]);
            }
        }
        int valid = a->entries - first;
#pragma GCC unroll 4
        for (int h = 0; h < heads; h++) {
            __m256 low = _mm256_mul_ps(_mm256_add_ps(even[h][0], odd[h][0]), scale);
            __m256 high = _mm256_mul_ps(_mm256_add_ps(even[h][1], odd[h][1]), scale);
            if (valid < CPU_PAGE_ENTRIES) {
                low = _mm256_blendv_ps(nothing, low, _mm256_castsi256_ps(lanes_mask(valid)));
                high = _mm256_blendv_ps(nothing, high, _mm256_castsi256_ps(lanes_mask(valid - LANES)));
            }
            _mm256_storeu_ps(logits + h * padded + first, low);
            _mm256_storeu_ps(logits + h * padded + first + LANES, high);
            top[h] = _mm256_max_ps(top[h], _mm256_max_ps(low, high));
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++) highest[h] = max_lanes(top[h]);
}

/* logits -> exp(logit - highest) in place; returns the sum. */
INLINE float attend_exp(float *logits, int padded, float highest)
{
    const __m256 top = _mm256_set1_ps(highest);
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    for (int i = 0; i < padded; i += CPU_PAGE_ENTRIES) {
        __m256 a = exp_lanes(_mm256_sub_ps(_mm256_loadu_ps(logits + i), top));
        __m256 b = exp_lanes(_mm256_sub_ps(_mm256_loadu_ps(logits + i + LANES), top));
        _mm256_storeu_ps(logits + i, a);
        _mm256_storeu_ps(logits + i + LANES, b);
        low = _mm256_add_ps(low, a);
        high = _mm256_add_ps(high, b);
    }
    return sum_lanes(_mm256_add_ps(low, high));
}

/* Weights past the entries are 0 and leave what is there. */
void avx2_mass(const float *weights, int padded, float share, float *mass)
{
    const __m256 s = _mm256_set1_ps(share);
    for (int i = 0; i < padded; i += LANES) {
        _mm256_storeu_ps(mass + i, _mm256_fmadd_ps(_mm256_loadu_ps(weights + i), s, _mm256_loadu_ps(mass + i)));
    }
}

/* Dimensions column...column + 8 * vectors - 1 of the weighted sum of values. */
INLINE void attend_values(enum page_kind kind, const struct attention *a, int heads, int vectors, const float *weights,
                          int padded, const float *total, int column, float *out)
{
    const int d = a->head_dim, size = kind == PAGE_F32 ? 4 : 2, ahead = attention_ahead_pages(a);
    const int row_bytes = d * size;
    __m256 sum[4][8];
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) sum[h][v] = _mm256_setzero_ps();
    }
    for (int first = 0; first < a->entries; first += CPU_PAGE_ENTRIES) {
        const void *page = a->pages[first / CPU_PAGE_ENTRIES];
        const char *next = attention_ahead(a, first / CPU_PAGE_ENTRIES, ahead) + CPU_PAGE_ENTRIES * row_bytes;
        int64_t value = CPU_PAGE_ENTRIES * d + column;
        int valid = a->entries - first < CPU_PAGE_ENTRIES ? a->entries - first : CPU_PAGE_ENTRIES;
        for (int j = 0; j < valid; j++, value += d) {
            for (int byte = 0; column == 0 && byte < row_bytes; byte += 64) {
                _mm_prefetch(next + j * row_bytes + byte, _MM_HINT_T0);
            }
            __m256 w[4];
#pragma GCC unroll 4
            for (int h = 0; h < heads; h++) w[h] = _mm256_broadcast_ss(weights + h * padded + first + j);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) {
                __m256 x = page_lanes(kind, page, value + v * LANES);
#pragma GCC unroll 4
                for (int h = 0; h < heads; h++) sum[h][v] = _mm256_fmadd_ps(w[h], x, sum[h][v]);
            }
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++) {
        const __m256 t = _mm256_set1_ps(total[h]);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            _mm256_storeu_ps(out + h * d + column + v * LANES, _mm256_div_ps(sum[h][v], t));
        }
    }
}

/* The last four dimensions of a head_dim that is no multiple of eight. */
INLINE void attend_values_four(enum page_kind kind, const struct attention *a, int heads, const float *weights,
                               int padded, const float *total, int column, float *out)
{
    const int d = a->head_dim;
    for (int h = 0; h < heads; h++) {
        __m128 sum = _mm_setzero_ps();
        for (int i = 0; i < a->entries; i++) {
            const void *page = a->pages[i / CPU_PAGE_ENTRIES];
            int64_t value = (CPU_PAGE_ENTRIES + i % CPU_PAGE_ENTRIES) * d + column;
            __m128 x;
            if (kind == PAGE_F32) {
                x = _mm_loadu_ps((const float *)page + value);
            } else {
                __m128i half = _mm_loadl_epi64((const __m128i *)((const uint16_t *)page + value));
                x = _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(half), 16));
            }
            sum = _mm_fmadd_ps(_mm_set1_ps(weights[h * padded + i]), x, sum);
        }
        _mm_storeu_ps(out + h * d + column, _mm_div_ps(sum, _mm_set1_ps(total[h])));
    }
}

/* `wide` vectors of a value row at once: heads x wide accumulators stay in registers. */
INLINE void attend_heads(enum page_kind kind, const struct attention *a, int heads, int wide, int first_head)
{
    const int d = a->head_dim;
    int padded = (a->entries + CPU_PAGE_ENTRIES - 1) / CPU_PAGE_ENTRIES * CPU_PAGE_ENTRIES;
    float *logits = a->scratch + (int64_t)first_head * padded;
    float *out = a->out + first_head * d;
    float highest[4], total[4];
    attend_logits(kind, a, heads, a->query + first_head * d, logits, padded, highest);
    for (int h = 0; h < heads; h++) total[h] = attend_exp(logits + h * padded, padded, highest[h]);
    for (int h = 0; a->mass != NULL && h < heads; h++) {
        avx2_mass(logits + h * padded, padded, attention_mass_share(a, total[h]), a->mass);
    }
    int column = 0;
    for (; column + wide * LANES <= d; column += wide * LANES) {
        attend_values(kind, a, heads, wide, logits, padded, total, column, out);
    }
    for (; column + LANES <= d; column += LANES) attend_values(kind, a, heads, 1, logits, padded, total, column, out);
    if (column < d) attend_values_four(kind, a, heads, logits, padded, total, column, out);
}

INLINE void attend_kind(enum page_kind kind, const struct attention *a)
{
    int head = 0;
    for (; head + 4 <= a->group; head += 4) attend_heads(kind, a, 4, 2, head);
    for (; head + 2 <= a->group; head += 2) attend_heads(kind, a, 2, 4, head);
    if (head < a->group && a->head_dim >= 64)
        attend_heads(kind, a, 1, 8, head);
    else if (head < a->group)
        attend_heads(kind, a, 1, 4, head);
}

static void attend(const struct attention *a)
{
    if (a->kind == PAGE_F32)
        attend_kind(PAGE_F32, a);
    else
        attend_kind(PAGE_BF16, a);
}

/* ---- vectors ---- */

void avx2_rmsnorm(const float *in, const float *weight, float eps, int n, float *out)
{
    __m256 sum = _mm256_setzero_ps();
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m256 x = _mm256_loadu_ps(in + i);
        sum = _mm256_fmadd_ps(x, x, sum);
    }
    float total = sum_lanes(sum);
    for (; i < n; i++) total += in[i] * in[i];
    float scale = 1.0f / sqrtf(total / (float)n + eps);
    for (i = 0; i + LANES <= n; i += LANES) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(in + i), _mm256_set1_ps(scale));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(x, _mm256_loadu_ps(weight + i)));
    }
    for (; i < n; i++) out[i] = in[i] * scale * weight[i];
}

void avx2_rope(const float *in, const float *cosines, const float *sines, int head_dim, float *out)
{
    int half = head_dim / 2, i = 0;
    for (; i + LANES <= half; i += LANES) {
        __m256 a = _mm256_loadu_ps(in + i), b = _mm256_loadu_ps(in + half + i);
        __m256 c = _mm256_loadu_ps(cosines + i), s = _mm256_loadu_ps(sines + i);
        _mm256_storeu_ps(out + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(out + half + i, _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
    }
    for (; i < half; i++) {
        float a = in[i], b = in[half + i];
        out[i] = a * cosines[i] - b * sines[i];
        out[half + i] = b * cosines[i] + a * sines[i];
    }
}

INLINE __m256 silu_mul_lanes(__m256 gate, __m256 up)
{
    __m256 below = _mm256_add_ps(_mm256_set1_ps(1.0f), exp_lanes(_mm256_xor_ps(gate, _mm256_set1_ps(-0.0f))));
    return _mm256_mul_ps(_mm256_div_ps(gate, below), up);
}

void avx2_silu_mul(const float *gate, const float *up, int n, float *out)
{
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        _mm256_storeu_ps(out + i, silu_mul_lanes(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
    }
    if (i == n) return;
    __m256i mask = lanes_mask(n - i);
    __m256 last = silu_mul_lanes(_mm256_maskload_ps(gate + i, mask), _mm256_maskload_ps(up + i, mask));
    _mm256_maskstore_ps(out + i, mask, last);
}

/* Lane i of the result is the sum of the lanes of s[i]. */
INLINE __m256 sum_eight(const __m256 *s)
{
    __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(s[0], s[1]), _mm256_hadd_ps(s[2], s[3]));
    __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(s[4], s[5]), _mm256_hadd_ps(s[6], s[7]));
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
}

void avx2_dot_rows(const float *a, const float *rows, int n, int d, float *out)
{
    __m256i tail = lanes_mask(d % LANES);
    if (n == 1) { /* the same sums in the same order, without the seven other rows */
        __m256 sum = _mm256_setzero_ps();
        int k = 0;
        for (; k + LANES <= d; k += LANES) {
            sum = _mm256_fmadd_ps(_mm256_loadu_ps(a + k), _mm256_loadu_ps(rows + k), sum);
        }
        if (k < d) sum = _mm256_fmadd_ps(_mm256_maskload_ps(a + k, tail), _mm256_maskload_ps(rows + k, tail), sum);
        sum = _mm256_hadd_ps(sum, sum);
        sum = _mm256_hadd_ps(sum, sum);
        out[0] = _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1)));
        return;
    }
    for (int i = 0; i < n; i += LANES) {
        const float *row[LANES];
        for (int j = 0; j < LANES; j++) row[j] = rows + (int64_t)(i + j < n ? i + j : n - 1) * d;
        __m256 sum[LANES];
#pragma GCC unroll 8
        for (int j = 0; j < LANES; j++) sum[j] = _mm256_setzero_ps();
        int k = 0;
        for (; k + LANES <= d; k += LANES) {
            __m256 x = _mm256_loadu_ps(a + k);
#pragma GCC unroll 8
            for (int j = 0; j < LANES; j++) sum[j] = _mm256_fmadd_ps(x, _mm256_loadu_ps(row[j] + k), sum[j]);
        }
        if (k < d) {
            __m256 x = _mm256_maskload_ps(a + k, tail);
#pragma GCC unroll 8
            for (int j = 0; j < LANES; j++) {
                sum[j] = _mm256_fmadd_ps(x, _mm256_maskload_ps(row[j] + k, tail), sum[j]);
            }
        }
        __m256 dots = sum_eight(sum);
        if (i + LANES <= n)
            _mm256_storeu_ps(out + i, dots);
        else
            _mm256_maskstore_ps(out + i, lanes_mask(n - i), dots);
    }
}

/* Element k of row r is a[r][k * step]. */
INLINE void tile_sums(enum page_kind kind, const float *const *a, int64_t step, int rows, const void *tile, int d,
                      __m256 sum[4][2])
{
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (int64_t k = 0; k < d; k++) {
        __m256 low = page_lanes(kind, tile, k * 16), high = page_lanes(kind, tile, k * 16 + LANES);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m256 x = _mm256_broadcast_ss(a[r] + k * step);
            sum[r][0] = _mm256_fmadd_ps(x, low, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(x, high, sum[r][1]);
        }
    }
}

INLINE void dot_tile(enum page_kind kind, const float *const *a, int rows, const void *tile, int d, float *out,
                     int64_t out_stride)
{
    __m256 sum[4][2];
    tile_sums(kind, a, 1, rows, tile, d, sum);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        _mm256_storeu_ps(out + r * out_stride, sum[r][0]);
        _mm256_storeu_ps(out + r * out_stride + LANES, sum[r][1]);
    }
}

INLINE void dot_tiles_kind(enum page_kind kind, const float *const *a, int rows, const void *const *tiles, int count,
                           int d, float *out, int64_t out_stride)
{
    for (int t = 0; t < count; t++, out += 16) {
        int r = 0;
        for (; r + 4 <= rows; r += 4) dot_tile(kind, a + r, 4, tiles[t], d, out + r * out_stride, out_stride);
        for (; r < rows; r++) dot_tile(kind, a + r, 1, tiles[t], d, out + r * out_stride, out_stride);
    }
}

static void dot_tiles(const float *const *a, int rows, const struct compact_tiles *tiles, int count, int d, float *out,
                      int64_t out_stride)
{
    if (tiles->kind == PAGE_F32)
        dot_tiles_kind(PAGE_F32, a, rows, tiles->at, count, d, out, out_stride);
    else
        dot_tiles_kind(PAGE_BF16, a, rows, tiles->at, count, d, out, out_stride);
}

/* Inner products of four entries with those of one tile, and which are above `threshold`. */
INLINE void tile_hits(const float *tiles, const int32_t *entry, const float *tile, int d, float threshold,
                      float (*dot)[CPU_PAGE_ENTRIES], uint32_t *above)
{
    const __m256 bound = _mm256_set1_ps(threshold);
    const float *a[4];
    __m256 sum[4][2];
    for (int r = 0; r < 4; r++) a[r] = tiles + (int64_t)(entry[r] / 16) * d * 16 + entry[r] % 16;
    tile_sums(PAGE_F32, a, 16, 4, tile, d, sum);
    for (int r = 0; r < 4; r++) {
        _mm256_storeu_ps(dot[r], sum[r][0]);
        _mm256_storeu_ps(dot[r] + LANES, sum[r][1]);
        above[r] = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(sum[r][0], bound, _CMP_GT_OQ)) |
                   (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(sum[r][1], bound, _CMP_GT_OQ)) << LANES;
    }
}

/* Tile by tile from the newest; an entry leaves `pending` with its first hit. Without branches: where an entry finds
 * its like is a toss-up. */
static void newest_similar(const float *tiles, int n, int d, float threshold, int32_t *pending, int32_t *newest,
                           float *product)
{
    int open = n;
    for (int i = 0; i < n; i++) pending[i] = i;
    for (int t = isinf(threshold) ? 0 : (n - 1) / 16; t >= 0 && open > 0; t--) {
        const int begin = t * 16, lanes = n - begin < 16 ? n - begin : 16;
        int left = 0;
        for (int at = 0; at < open; at += 4) {
            const int rows = open - at < 4 ? open - at : 4;
            int32_t entry[4];
            float dot[4][CPU_PAGE_ENTRIES];
            uint32_t above[4];
            for (int r = 0; r < 4; r++) entry[r] = pending[at + (r < rows ? r : 0)];
            tile_hits(tiles, entry, tiles + (int64_t)begin * d, d, threshold, dot, above);
            for (int r = 0; r < rows; r++) {
                const int i = entry[r];
                const uint32_t own = (uint32_t)(i / 16 == t) << i % 16;
                const uint32_t hits = above[r] & ((1u << lanes) - 1) & ~own;
                const int lane = 31 - __builtin_clz(hits | 1u);
                newest[i] = begin + lane;
                product[i] = dot[r][lane];
                pending[left] = i;
                left += hits == 0;
            }
        }
        open = left;
    }
}

const struct cpu_ops cpu_ops_avx2 = {
    .name = "avx2",
    .bf16_kind = PANEL_BF16,
    .gemm = avx2_gemm,
    .attend = attend,
    .rmsnorm = avx2_rmsnorm,
    .rope = avx2_rope,
    .silu_mul = avx2_silu_mul,
    .compact = {.dot_rows = avx2_dot_rows,
                .dot_tiles = dot_tiles,
                .newest_similar = newest_similar,
                .exp_rows = avx2_exp_rows},
};
#endif
