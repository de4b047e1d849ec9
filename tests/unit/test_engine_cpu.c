/* Kernel sets: each operation against sums in double, and each set against plain C; rows of a product and entries of
 * attention do not depend on what else is in the call; the compute threads do all items once. */
#include <check.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "alloc/work.h"
#include "engine/cpu/ops.h"
#include "engine/cpu/panels.h"
#include "engine/cpu/pool.h"

/* The AVX-512 file once more, on scalar stand-ins. */
#define KVF_SIMD_SHIM      "tests/unit/avx512_shim.h"
#define cpu_ops_avx512bf16 cpu_ops_shim
#include "engine/cpu/ops_avx512bf16.c"
#undef cpu_ops_avx512bf16

/* Every set this machine runs, then the stand-in, which needs AVX2 for what it borrows. */
static const struct cpu_ops *set_at(int index)
{
    if (cpu_ops_at(index) != NULL) return cpu_ops_at(index);
    if (index > 0 && cpu_ops_at(index - 1) == NULL) return NULL;
#if defined(__x86_64__)
    if (cpu_ops_find("avx2") != NULL) return &cpu_ops_shim;
#endif
    return NULL;
}
#define SETS 4

static uint64_t random_state = 1;

static float random_float(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(random_state >> 32) * 0x1p-30f;
}

static float *random_floats(size_t count)
{
    float *values = aligned_alloc(64, (count * sizeof *values + 63) / 64 * 64);
    for (size_t i = 0; i < count; i++) values[i] = random_float();
    return values;
}

static float round_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- products ---- */

struct matrix {
    int outputs, inputs;
    float *values; /* as the weight holds them */
    void *stored;
    struct weight weight, bias;
};

static struct matrix matrix_new(int outputs, int inputs, enum model_dtype dtype)
{
    struct matrix m = {.outputs = outputs, .inputs = inputs};
    size_t count = (size_t)outputs * (size_t)inputs;
    m.values = random_floats(count);
    m.stored = m.values;
    if (dtype == DTYPE_BF16) {
        uint16_t *half = malloc(count * sizeof *half);
        for (size_t i = 0; i < count; i++) {
            m.values[i] = round_bf16(m.values[i]);
            uint32_t bits;
            memcpy(&bits, &m.values[i], sizeof bits);
            half[i] = (uint16_t)(bits >> 16);
        }
        m.stored = half;
    }
    m.weight = (struct weight){dtype, outputs, inputs, m.stored};
    m.bias = (struct weight){DTYPE_F32, 1, outputs, random_floats((size_t)outputs)};
    return m;
}

static void matrix_free(struct matrix *m)
{
    if (m->stored != m->values) free(m->stored);
    free(m->values);
    free((void *)m->bias.data);
}

static void *panel_memory(const struct weight *const *weights, int count)
{
    size_t bytes = (size_t)panels_bytes(weights, count);
    void *memory = aligned_alloc(64, bytes);
    ck_assert_ptr_nonnull(memory);
    return memset(memory, 0, bytes);
}

static void gemm_check(const struct cpu_ops *ops, enum model_dtype dtype, int rows, int outputs, int inputs, int biased,
                       int add)
{
    struct matrix m = matrix_new(outputs, inputs, dtype);
    const struct weight *weight = &m.weight, *bias = &m.bias;
    struct panels panels;
    void *memory = panel_memory(&weight, 1);
    ck_assert_int_eq(panels_pack(&panels, ops->bf16_kind, &weight, biased ? &bias : NULL, 1, memory, NULL), 0);
    int64_t in_stride = inputs + 5, out_stride = outputs + 3;
    float *in = random_floats((size_t)(rows * in_stride)), *out = random_floats((size_t)(rows * out_stride));
    int64_t half_stride = in_stride + in_stride % 2;
    uint16_t *half = calloc((size_t)(rows * half_stride), sizeof *half);
    if (panels.kind == PANEL_BF16_PAIRS) {
        in_stride = half_stride;
        free(in);
        in = random_floats((size_t)(rows * in_stride));
        for (int r = 0; r < rows; r++) {
            for (int k = 0; k < inputs; k++) in[r * in_stride + k] = round_bf16(in[r * in_stride + k]);
            ops->to_half(in + r * in_stride, inputs, half + r * in_stride);
        }
    }
    float *before = malloc((size_t)(rows * out_stride) * sizeof *before);
    memcpy(before, out, (size_t)(rows * out_stride) * sizeof *before);
    struct gemm gemm = {&panels, in, half, in_stride, rows, out, out_stride, add};
    ops->gemm(&gemm, 0, panels.count);
    for (int r = 0; r < rows; r++) {
        for (int o = 0; o < outputs; o++) {
            double sum = (biased ? ((const float *)m.bias.data)[o] : 0.0) + (add ? before[r * out_stride + o] : 0.0);
            for (int k = 0; k < inputs; k++) sum += (double)in[r * in_stride + k] * (double)m.values[o * inputs + k];
            ck_assert_msg(fabs(sum - (double)out[r * out_stride + o]) < 2e-5 * (1 + inputs), "%s %dx%dx%d: %g %g",
                          ops->name, rows, outputs, inputs, sum, (double)out[r * out_stride + o]);
        }
        for (int64_t o = outputs; o < out_stride; o++) {
            ck_assert_msg(out[r * out_stride + o] == before[r * out_stride + o], "%s writes past its outputs",
                          ops->name);
        }
    }
    /* Alone, and a panel at a time: the same bits. */
    for (int r = 0; r < rows; r++) {
        float *alone = malloc((size_t)out_stride * sizeof *alone);
        memcpy(alone, before + r * out_stride, (size_t)out_stride * sizeof *alone);
        struct gemm one = {&panels, in + r * in_stride, half + r * in_stride, in_stride, 1, alone, out_stride, add};
        if (r % 2 == 0) ops->gemm(&one, 0, panels.count);
        for (int p = 0; r % 2 == 1 && p < panels.count; p++) ops->gemm(&one, p, p + 1);
        ck_assert_mem_eq(alone, out + r * out_stride, (size_t)out_stride * sizeof *alone);
        free(alone);
    }
    free(in);
    free(out);
    free(half);
    free(before);
    free(memory);
    panels_free(&panels);
    matrix_free(&m);
}

START_TEST(products)
{
    const struct cpu_ops *ops = set_at(_i);
    if (ops == NULL) return;
    static const int rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 32, 67, 256};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int dtype = 0; dtype < 2; dtype++) {
            enum model_dtype type = dtype ? DTYPE_BF16 : DTYPE_F32;
            gemm_check(ops, type, rows[i], 96, 64, 0, 0);
            gemm_check(ops, type, rows[i], 41, 37, 1, 0);
            gemm_check(ops, type, rows[i], 7, 1, 1, 1);
        }
    }
}
END_TEST

START_TEST(stacked_weights)
{
    struct matrix q = matrix_new(20, 8, DTYPE_BF16), k = matrix_new(6, 8, DTYPE_F32);
    const struct weight *weights[] = {&q.weight, &k.weight};
    const struct weight none = {0}, *biases[] = {&none, &k.bias};
    struct panels panels;
    void *memory = panel_memory(weights, 2);
    ck_assert_int_eq(panels_pack(&panels, PANEL_BF16, weights, biases, 2, memory, NULL), 0);
    ck_assert_int_eq(panels.kind, PANEL_F32); /* one of them is not bf16 */
    ck_assert_int_eq(panels.outputs, 26);
    ck_assert_int_eq(panels.count, 2);
    float in[8] = {0, 0, 0, 1}, out[26];
    struct gemm gemm = {&panels, in, NULL, 8, 1, out, 26, 0};
    cpu_ops_plain.gemm(&gemm, 0, 2);
    for (int o = 0; o < 20; o++) ck_assert_float_eq(out[o], q.values[o * 8 + 3]);
    for (int o = 0; o < 6; o++) ck_assert_float_eq(out[20 + o], k.values[o * 8 + 3] + ((const float *)k.bias.data)[o]);
    panels_free(&panels);
    free(memory);
    matrix_free(&q);
    matrix_free(&k);
}
END_TEST

/* ---- attention ---- */

static void attend_check(const struct cpu_ops *ops, enum page_kind kind, int entries, int group, int d)
{
    int count = (entries + CPU_PAGE_ENTRIES - 1) / CPU_PAGE_ENTRIES;
    float **pages = malloc((size_t)count * sizeof *pages);
    for (int p = 0; p < count; p++) {
        pages[p] = random_floats((size_t)(2 * CPU_PAGE_ENTRIES * d));
        for (int j = entries - p * CPU_PAGE_ENTRIES; j < CPU_PAGE_ENTRIES; j++) {
            if (j < 0) continue;
            for (int k = 0; k < d; k++) { /* what nobody wrote must not matter */
                pages[p][k * CPU_PAGE_ENTRIES + j] = NAN;
                pages[p][(CPU_PAGE_ENTRIES + j) * d + k] = NAN;
            }
        }
    }
    /* The same numbers as bf16; the reference below then reads what was rounded. */
    uint16_t **halves = malloc((size_t)count * sizeof *halves);
    for (int p = 0; p < count; p++) {
        size_t numbers = (size_t)(2 * CPU_PAGE_ENTRIES * d);
        halves[p] = calloc(numbers + 2 * CPU_PAGE_ENTRIES, sizeof **halves); /* positions follow in a page */
        for (size_t i = 0; kind == PAGE_BF16 && i < numbers; i++) {
            pages[p][i] = round_bf16(pages[p][i]);
            uint32_t bits;
            memcpy(&bits, &pages[p][i], sizeof bits);
            halves[p][i] = (uint16_t)(bits >> 16);
        }
    }
    float *query = random_floats((size_t)(group * d)), *out = random_floats((size_t)(group * d));
    float *scratch = random_floats((size_t)(group * count * CPU_PAGE_ENTRIES));
    struct attention a = {.query = query,
                          .kind = kind,
                          .pages = kind == PAGE_F32 ? (const void *const *)pages : (const void *const *)halves,
                          .upcoming = entries % 2 ? (const void *const *)pages : NULL,
                          .upcoming_pages = entries % 2 ? count : 0,
                          .entries = entries,
                          .group = group,
                          .head_dim = d,
                          .scale = 0.7f,
                          .scratch = scratch,
                          .out = out};
    ops->attend(&a);
    /* The same with mass: the output's bits stay, the mass is added to, and nothing past the entries is. */
    float *with_mass = random_floats((size_t)(group * d)), *mass = random_floats((size_t)(count * CPU_PAGE_ENTRIES));
    double *expected = malloc((size_t)(count * CPU_PAGE_ENTRIES) * sizeof *expected);
    for (int i = 0; i < count * CPU_PAGE_ENTRIES; i++) expected[i] = (double)mass[i];
    a.out = with_mass;
    a.mass = mass;
    ops->attend(&a);
    ck_assert_mem_eq(with_mass, out, (size_t)(group * d) * sizeof *out);
    double *weight = malloc((size_t)entries * sizeof *weight);
    for (int g = 0; g < group; g++) {
        double highest = -INFINITY, total = 0;
        for (int i = 0; i < entries; i++) {
            weight[i] = 0;
            for (int k = 0; k < d; k++) {
                weight[i] += (double)query[g * d + k] *
                             (double)pages[i / CPU_PAGE_ENTRIES][k * CPU_PAGE_ENTRIES + i % CPU_PAGE_ENTRIES];
            }
            weight[i] *= (double)0.7f;
            if (weight[i] > highest) highest = weight[i];
        }
        for (int i = 0; i < entries; i++) total += weight[i] = exp(weight[i] - highest);
        for (int i = 0; i < entries; i++) expected[i] += weight[i] / total / group;
        for (int k = 0; k < d; k++) {
            double sum = 0;
            for (int i = 0; i < entries; i++) {
                sum += weight[i] / total *
                       (double)pages[i / CPU_PAGE_ENTRIES][(CPU_PAGE_ENTRIES + i % CPU_PAGE_ENTRIES) * d + k];
            }
            ck_assert_msg(fabs(sum - (double)out[g * d + k]) < 1e-4, "%s entries %d group %d dim %d: %g %g", ops->name,
                          entries, group, d, sum, (double)out[g * d + k]);
        }
    }
    for (int i = 0; i < count * CPU_PAGE_ENTRIES; i++) {
        ck_assert_msg(fabs((double)mass[i] - expected[i]) < 2e-6, "%s entries %d group %d: mass %d: %g, expected %g",
                      ops->name, entries, group, i, (double)mass[i], expected[i]);
    }
    free(with_mass);
    free(mass);
    free(expected);
    free(weight);
    for (int p = 0; p < count; p++) {
        free(pages[p]);
        free(halves[p]);
    }
    free(halves);
    free(pages);
    free(query);
    free(out);
    free(scratch);
}

START_TEST(attention)
{
    const struct cpu_ops *ops = set_at(_i);
    if (ops == NULL) return;
    static const int dims[] = {4, 12, 16, 20, 32, 64, 68, 96, 128}, counts[] = {1, 2, 15, 16, 17, 31, 100, 333};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
        for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
            for (int group = 1; group <= 8; group++) {
                attend_check(ops, PAGE_F32, counts[n], group, dims[d]);
                attend_check(ops, PAGE_BF16, counts[n], group, dims[d]);
            }
        }
    }
}
END_TEST

/* ---- vectors ---- */

START_TEST(exponential)
{
    const struct cpu_ops *ops = set_at(_i);
    if (ops == NULL) return;
    float in[1003], out[1003];
    for (int i = 0; i < 1003; i++) in[i] = -87.0f + (float)i * 0.17f;
    ops->compact.exp_rows(in, 1003, out);
    for (int i = 0; i < 1003; i++) {
        double expected = exp((double)in[i] > 88.0 ? 88.0 : (double)in[i]);
        ck_assert_msg(fabs((double)out[i] - expected) <= 4e-7 * expected, "%s: exp(%g) = %g, expected %g", ops->name,
                      (double)in[i], (double)out[i], expected);
    }
    float special[] = {-INFINITY, -1000.0f, 0.0f, NAN};
    ops->compact.exp_rows(special, 4, out);
    ck_assert(out[0] == 0.0f && out[1] == 0.0f && out[2] == 1.0f && isnan(out[3]));
}
END_TEST

START_TEST(vectors)
{
    const struct cpu_ops *ops = set_at(_i);
    if (ops == NULL) return;
    for (int n = 2; n < 150; n += 2) {
        float *a = random_floats((size_t)n), *b = random_floats((size_t)n), *out = random_floats((size_t)n);
        double mean = 0;
        for (int i = 0; i < n; i++) mean += (double)a[i] * (double)a[i] / n;
        ops->rmsnorm(a, b, 1e-3f, n, out);
        for (int i = 0; i < n; i++) {
            ck_assert(fabs((double)a[i] / sqrt(mean + 1e-3) * (double)b[i] - (double)out[i]) < 1e-5);
        }
        ops->silu_mul(a, b, n, out);
        for (int i = 0; i < n; i++) {
            ck_assert(fabs((double)a[i] / (1 + exp(-(double)a[i])) * (double)b[i] - (double)out[i]) < 1e-5);
        }
        float *cosines = random_floats((size_t)n / 2), *sines = random_floats((size_t)n / 2);
        ops->rope(a, cosines, sines, n, out);
        for (int i = 0; i < n / 2; i++) {
            ck_assert_float_eq_tol(out[i], a[i] * cosines[i] - a[i + n / 2] * sines[i], 1e-5f);
            ck_assert_float_eq_tol(out[i + n / 2], a[i + n / 2] * cosines[i] + a[i] * sines[i], 1e-5f);
        }
        free(cosines);
        free(sines);
        free(a);
        free(b);
        free(out);
    }
}
END_TEST

/* The sum of a row depends on neither the number of rows nor the row's place. */
START_TEST(dots)
{
    const struct cpu_ops *ops = set_at(_i);
    if (ops == NULL) return;
    for (int d = 1; d < 140; d += d < 40 ? 1 : 33) {
        float *a = random_floats((size_t)d), *rows = random_floats((size_t)(37 * d)), out[37], one;
        for (int n = 1; n <= 37; n++) {
            ops->compact.dot_rows(a, rows, n, d, out);
            for (int i = 0; i < n; i++) {
                double sum = 0;
                for (int k = 0; k < d; k++) sum += (double)a[k] * (double)rows[i * d + k];
                ck_assert_msg(fabs(sum - (double)out[i]) < 1e-4, "%s n %d d %d", ops->name, n, d);
                ops->compact.dot_rows(a, rows + i * d, 1, d, &one);
                ck_assert_mem_eq(&one, &out[i], sizeof one);
            }
        }
        free(a);
        free(rows);
    }
}
END_TEST

/* Each output is one sum over k in order: the same with any number of rows and tiles. */
START_TEST(tile_dots)
{
    const struct cpu_ops *ops = set_at(_i);
    if (ops == NULL) return;
    const struct compact_kernels kernels = compact_kernels_of(&ops->compact);
    enum { TILES = 3, STRIDE = 16 * TILES + 5 };
    for (int d = 1; d < 140; d += d < 40 ? 1 : 33) {
        float *a = random_floats((size_t)(COMPACT_DOT_ROWS * d)), *tiles = random_floats((size_t)(16 * TILES * d));
        uint16_t *half = malloc((size_t)(16 * TILES * d) * sizeof *half);
        const float *row[COMPACT_DOT_ROWS];
        const void *wide_at[TILES], *half_at[TILES];
        for (int i = 0; i < 16 * TILES * d; i++) {
            tiles[i] = round_bf16(tiles[i]);
            memcpy(half + i, (const char *)(tiles + i) + 2, sizeof *half);
        }
        for (int t = 0; t < TILES; t++) {
            wide_at[t] = tiles + (ptrdiff_t)t * d * 16;
            half_at[t] = half + (ptrdiff_t)t * d * 16;
        }
        for (int r = 0; r < COMPACT_DOT_ROWS; r++) row[r] = a + r * d;
        for (int rows = 1; rows <= COMPACT_DOT_ROWS; rows++) {
            float out[COMPACT_DOT_ROWS * STRIDE], from_half[COMPACT_DOT_ROWS * STRIDE], one[16];
            for (int i = 0; i < COMPACT_DOT_ROWS * STRIDE; i++) out[i] = from_half[i] = NAN;
            kernels.dot_tiles(row, rows, &(struct compact_tiles){wide_at, PAGE_F32}, TILES, d, out, STRIDE);
            kernels.dot_tiles(row, rows, &(struct compact_tiles){half_at, PAGE_BF16}, TILES, d, from_half, STRIDE);
            ck_assert_mem_eq(out, from_half, sizeof out);
            for (int r = 0; r < rows; r++) {
                for (int j = 0; j < 16 * TILES; j++) {
                    double sum = 0;
                    for (int k = 0; k < d; k++) {
                        sum += (double)row[r][k] * (double)tiles[(j / 16 * d + k) * 16 + j % 16];
                    }
                    ck_assert_msg(fabs(sum - (double)out[r * STRIDE + j]) < 1e-4, "%s rows %d d %d", ops->name, rows,
                                  d);
                }
                for (int t = 0; t < TILES; t++) {
                    kernels.dot_tiles(row + r, 1, &(struct compact_tiles){wide_at + t, PAGE_F32}, 1, d, one, 0);
                    ck_assert_mem_eq(one, out + r * STRIDE + t * 16, sizeof one);
                }
                for (int j = 16 * TILES; j < STRIDE; j++) ck_assert(isnan(out[r * STRIDE + j]));
            }
            for (int i = rows * STRIDE; i < COMPACT_DOT_ROWS * STRIDE; i++) ck_assert(isnan(out[i]));
        }
        free(a);
        free(tiles);
        free(half);
    }
}
END_TEST

/* n unit keys in tiles, in loose families, so that products lie on both sides of any threshold. */
static float *random_unit_tiles(int n, int d)
{
    const int count = (n + 15) / 16;
    float *tiles = calloc((size_t)count * 16 * (size_t)d, sizeof *tiles);
    float *family = random_floats((size_t)(4 * d)), *key = malloc((size_t)d * sizeof *key);
    for (int i = 0; i < n; i++) {
        double norm = 0;
        for (int k = 0; k < d; k++) {
            key[k] = family[i * 7 % 4 * d + k] + (1 + (float)(i % 5)) / 3 * random_float();
            norm += (double)key[k] * (double)key[k];
        }
        for (int k = 0; k < d; k++) tiles[((ptrdiff_t)(i / 16) * d + k) * 16 + i % 16] = key[k] / (float)sqrt(norm);
    }
    free(family);
    free(key);
    return tiles;
}

/* In float, in order of k, as the kernels promise; fused or not, as the set has it. */
static float tile_dot(const float *tiles, int d, int i, int j, int fused)
{
    float sum = 0;
    for (int k = 0; k < d; k++) {
        const float a = tiles[((ptrdiff_t)(i / 16) * d + k) * 16 + i % 16];
        const float b = tiles[((ptrdiff_t)(j / 16) * d + k) * 16 + j % 16];
        if (fused)
            sum = fmaf(a, b, sum);
        else
            sum += a * b;
    }
    return sum;
}

START_TEST(newest_similar)
{
    const struct cpu_ops *ops = set_at(_i);
    if (ops == NULL) return;
    const struct compact_kernels kernels = compact_kernels_of(&ops->compact);
    const int fused = ops != &cpu_ops_plain;
    static const int lengths[] = {1, 2, 15, 16, 17, 31, 40, 100, 161}, dims[] = {1, 3, 4, 16, 31, 32, 64, 128};
    int64_t none = 0, some = 0;
    for (int at = 0; at < 9 * 8; at++) {
        const int n = lengths[at / 8], d = dims[at % 8];
        float *tiles = random_unit_tiles(n, d);
        /* Thresholds that products equal and miss by one bit, too. */
        const float edge = tile_dot(tiles, d, n / 2, n / 3, fused);
        const float thresholds[] = {0.5f, 0.8f, -0.2f, 0.0f, 1.0f, -1.0f, edge, nextafterf(edge, -2), INFINITY};
        int32_t *scratch = malloc(COMPACT_SCAN_WORDS(n, d) * sizeof *scratch);
        for (int t = 0; t < 9; t++) {
            int32_t newest[162];
            float product[162];
            for (int i = 0; i <= n; i++) newest[i] = -7;
            kernels.newest_similar(tiles, n, d, thresholds[t], scratch, newest, product);
            for (int i = 0; i < n; i++) {
                int expected = n - 1;
                while (expected > 0 && (expected == i || !(tile_dot(tiles, d, i, expected, fused) > thresholds[t])))
                    expected--;
                ck_assert_msg(newest[i] == expected, "%s n %d d %d threshold %g: entry %d: expected %d, got %d",
                              ops->name, n, d, (double)thresholds[t], i, expected, newest[i]);
                if (expected != i) ck_assert(product[i] == tile_dot(tiles, d, i, expected, fused));
                none += expected == 0;
                some += expected != 0;
            }
            ck_assert_int_eq(newest[n], -7);
        }
        free(scratch);
        free(tiles);
    }
    ck_assert_int_gt(none, 3000);
    ck_assert_int_gt(some, 3000);
}
END_TEST

START_TEST(sets_by_name)
{
    ck_assert_ptr_eq(cpu_ops_find("auto"), cpu_ops_at(0));
    ck_assert_ptr_eq(cpu_ops_find("plain"), &cpu_ops_plain);
    ck_assert_ptr_null(cpu_ops_find("avx1024"));
    int count = 0;
    while (cpu_ops_at(count) != NULL) count++;
    ck_assert_int_ge(count, 1);
    ck_assert_ptr_eq(cpu_ops_at(count - 1), &cpu_ops_plain);
}
END_TEST

/* ---- compute threads ---- */

struct tally {
    atomic_int taken[1000];
    int thread_limit;
};

static void tally_item(void *arg, int item, int thread)
{
    struct tally *tally = arg;
    ck_assert(thread >= 0 && thread < tally->thread_limit);
    atomic_fetch_add(&tally->taken[item], 1);
}

START_TEST(threads_take_each_item_once)
{
    static const int threads[] = {1, 2, 5};
    struct pool *pool = NULL;
    ck_assert_int_eq(pool_new(threads[_i], &pool, NULL), 0);
    ck_assert_int_eq(pool_threads(pool), threads[_i]);
    struct tally tally = {.thread_limit = threads[_i]};
    for (int round = 1; round <= 300; round++) pool_run(pool, tally_item, &tally, round % 3 == 0 ? 1000 : round % 7);
    for (int item = 0; item < 1000; item++) {
        int expected = 0;
        for (int round = 1; round <= 300; round++) expected += item < (round % 3 == 0 ? 1000 : round % 7);
        ck_assert_int_eq(atomic_load(&tally.taken[item]), expected);
    }
    pool_destroy(&pool);
    ck_assert_ptr_null(pool);
    struct kvf_err err;
    ck_assert_int_eq(pool_new(0, &pool, &err), KVF_EINVAL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine cpu");
    TCase *tc = tcase_create("kernels");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, products, 0, SETS);
    tcase_add_test(tc, stacked_weights);
    tcase_add_loop_test(tc, attention, 0, SETS);
    tcase_add_loop_test(tc, exponential, 0, SETS);
    tcase_add_loop_test(tc, vectors, 0, SETS);
    tcase_add_loop_test(tc, dots, 0, SETS);
    tcase_add_loop_test(tc, tile_dots, 0, SETS);
    tcase_add_loop_test(tc, newest_similar, 0, SETS);
    tcase_add_test(tc, sets_by_name);
    tcase_add_loop_test(tc, threads_take_each_item_once, 0, 3);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
