/* ops_plain.c: the kernel set that every machine can run, and the specification of the others. */
#include <math.h>
#include <string.h>
#include "engine/cpu/ops.h"

static float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- gemm ---- */

/* One row of a panel: [16] weights of input k as floats. */
static void panel_row(const struct panels *weight, int panel, int k, float *w)
{
    if (weight->kind == PANEL_F32) {
        memcpy(w, (const float *)weight->data + ((int64_t)panel * weight->inputs + k) * PANEL_OUTPUTS,
               PANEL_OUTPUTS * sizeof *w);
        return;
    }
    const uint16_t *half = weight->data;
    half += ((int64_t)panel * weight->inputs + k) * PANEL_OUTPUTS;
    for (int j = 0; j < 8; j++) {
        w[j] = bits_float((uint32_t)half[2 * j] << 16);
        w[j + 8] = bits_float((uint32_t)half[2 * j + 1] << 16);
    }
}

#define TILE_ROWS 4

static void gemm_tile(const struct gemm *gemm, int panel, int row, int rows)
{
    const struct panels *weight = gemm->weight;
    float sum[TILE_ROWS][PANEL_OUTPUTS] = {{0}};
    for (int k = 0; k < weight->inputs; k++) {
        float w[PANEL_OUTPUTS];
        panel_row(weight, panel, k, w);
        for (int i = 0; i < rows; i++) {
            float x = gemm->in[(row + i) * gemm->in_stride + k];
            for (int j = 0; j < PANEL_OUTPUTS; j++) sum[i][j] += x * w[j];
        }
    }
    int outputs = weight->outputs - panel * PANEL_OUTPUTS;
    if (outputs > PANEL_OUTPUTS) outputs = PANEL_OUTPUTS;
    for (int i = 0; i < rows; i++) {
        float *out = gemm->out + (row + i) * gemm->out_stride + panel * PANEL_OUTPUTS;
        for (int j = 0; j < outputs; j++) {
            float value = sum[i][j];
            if (weight->bias != NULL) value += weight->bias[panel * PANEL_OUTPUTS + j];
            out[j] = gemm->add ? out[j] + value : value;
        }
    }
}

static void gemm(const struct gemm *gemm, int first_panel, int last_panel)
{
    for (int panel = first_panel; panel < last_panel; panel++) {
        for (int row = 0; row < gemm->rows; row += TILE_ROWS) {
            gemm_tile(gemm, panel, row, gemm->rows - row < TILE_ROWS ? gemm->rows - row : TILE_ROWS);
        }
    }
}

/* ---- exp ---- */

/* exp by Cody-Waite reduction and a polynomial of degree 6 (relative error below 2e-7 in its range); below -87.3 it is
 * 0, so that a masked logit of minus infinity weighs nothing; NaN stays NaN. */
static float exp_one(float x)
{
    if (x < -87.3f) return 0.0f;
    if (x > 88.0f) x = 88.0f;
    if (x != x) return x;
    float n = rintf(x * 1.44269504f);
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * bits_float((uint32_t)((int)n + 127) << 23);
}

static void exp_rows(const float *in, int n, float *out)
{
    for (int i = 0; i < n; i++) out[i] = exp_one(in[i]);
}

/* ---- attention ---- */

/* `count` <= 16 numbers of a page from `index` on: in place, or widened into `wide`. */
static const float *page_numbers(const struct attention *a, int page, int index, int count, float *wide)
{
    if (a->kind == PAGE_F32) return (const float *)a->pages[page] + index;
    const uint16_t *half = (const uint16_t *)a->pages[page] + index;
    for (int i = 0; i < count; i++) wide[i] = bits_float((uint32_t)half[i] << 16);
    return wide;
}

static void attend_head(const struct attention *a, const float *query, float *logits, float *out)
{
    int d = a->head_dim;
    float highest = -INFINITY, wide[CPU_PAGE_ENTRIES];
    for (int first = 0; first < a->entries; first += CPU_PAGE_ENTRIES) {
        float sum[CPU_PAGE_ENTRIES] = {0};
        for (int k = 0; k < d; k++) {
            const float *key = page_numbers(a, first / CPU_PAGE_ENTRIES, k * CPU_PAGE_ENTRIES, CPU_PAGE_ENTRIES, wide);
            for (int j = 0; j < CPU_PAGE_ENTRIES; j++) sum[j] += query[k] * key[j];
        }
        int valid = a->entries - first < CPU_PAGE_ENTRIES ? a->entries - first : CPU_PAGE_ENTRIES;
        for (int j = 0; j < valid; j++) {
            logits[first + j] = sum[j] * a->scale;
            if (logits[first + j] > highest) highest = logits[first + j];
        }
    }
    float total = 0.0f;
    for (int i = 0; i < a->entries; i++) {
        logits[i] = exp_one(logits[i] - highest);
        total += logits[i];
    }
    if (a->mass != NULL) {
        float share = attention_mass_share(a, total);
        for (int i = 0; i < a->entries; i++) a->mass[i] += logits[i] * share;
    }
    memset(out, 0, (size_t)d * sizeof *out);
    for (int i = 0; i < a->entries; i++) {
        int first = (CPU_PAGE_ENTRIES + i % CPU_PAGE_ENTRIES) * d;
        for (int k = 0; k < d; k += CPU_PAGE_ENTRIES) {
            int count = d - k < CPU_PAGE_ENTRIES ? d - k : CPU_PAGE_ENTRIES;
            const float *value = page_numbers(a, i / CPU_PAGE_ENTRIES, first + k, count, wide);
            for (int j = 0; j < count; j++) out[k + j] += logits[i] * value[j];
        }
    }
    for (int k = 0; k < d; k++) out[k] /= total;
}

static void attend(const struct attention *a)
{
    int padded = (a->entries + CPU_PAGE_ENTRIES - 1) / CPU_PAGE_ENTRIES * CPU_PAGE_ENTRIES;
    for (int g = 0; g < a->group; g++) {
        attend_head(a, a->query + g * a->head_dim, a->scratch + g * padded, a->out + g * a->head_dim);
    }
}

/* ---- vectors ---- */

static void rmsnorm(const float *in, const float *weight, float eps, int n, float *out)
{
    float sum = 0.0f;
    for (int i = 0; i < n; i++) sum += in[i] * in[i];
    float scale = 1.0f / sqrtf(sum / (float)n + eps);
    for (int i = 0; i < n; i++) out[i] = in[i] * scale * weight[i];
}

static void rope(const float *in, const float *cosines, const float *sines, int head_dim, float *out)
{
    int half = head_dim / 2;
    for (int i = 0; i < half; i++) {
        float a = in[i], b = in[i + half];
        out[i] = a * cosines[i] - b * sines[i];
        out[i + half] = b * cosines[i] + a * sines[i];
    }
}

static void silu_mul(const float *gate, const float *up, int n, float *out)
{
    for (int i = 0; i < n; i++) out[i] = gate[i] / (1.0f + exp_one(-gate[i])) * up[i];
}

static void dot_rows(const float *a, const float *rows, int n, int d, float *out)
{
    for (int i = 0; i < n; i++) {
        float sum = 0.0f;
        for (int k = 0; k < d; k++) sum += a[k] * rows[(int64_t)i * d + k];
        out[i] = sum;
    }
}

const struct cpu_ops cpu_ops_plain = {
    .name = "plain",
    .bf16_kind = PANEL_BF16,
    .gemm = gemm,
    .attend = attend,
    .rmsnorm = rmsnorm,
    .rope = rope,
    .silu_mul = silu_mul,
    .compact = {.dot_rows = dot_rows, .exp_rows = exp_rows},
};
