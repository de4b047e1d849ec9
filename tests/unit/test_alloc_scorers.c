/* Scorers against plain double-precision versions written from their formulas, on random ragged layers; and what they
 * do where there is little to score. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/compact.h"
#include "alloc/score.h"
#include "alloc/scorer.h"
#include "alloc/select.h"
#include "tests/unit/random.h"

enum { ROUNDS = 220, MOST_HEADS = 4, MOST_GROUP = 8, MOST_DIM = 128, MOST_ROWS = 40, MOST_ENTRIES = 200 };
enum { MOST_HIDDEN = 24, MOST_QUERIES = MOST_HEADS * MOST_GROUP };

static float next_value(void)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) sum += (float)(next_bits() >> 40) * 0x1p-24f - 0.5f;
    return 1.7f * sum;
}

/* ---- one random layer ---- */

static struct layer {
    int heads, group, d, window, rows, hidden;
    int entries[MOST_HEADS];
    float keys[MOST_HEADS][MOST_ENTRIES * MOST_DIM], values[MOST_HEADS][MOST_ENTRIES * MOST_DIM];
    float mass[MOST_HEADS][MOST_ENTRIES];
    int32_t positions[MOST_HEADS][MOST_ENTRIES], newest;
    float queries[MOST_ROWS * MOST_QUERIES * MOST_DIM];
    float frequency[MOST_DIM / 2];
    float output[MOST_QUERIES * MOST_DIM * MOST_HIDDEN];
} layer;

static const float *key_of(int h, int j)
{
    return layer.keys[h] + j * layer.d;
}
static const float *value_of(int h, int j)
{
    return layer.values[h] + j * layer.d;
}
/* Query of head h's g-th query head in row `row` of the window. */
static const float *query_of(int h, int g, int row)
{
    const int heads = layer.heads * layer.group;
    return layer.queries + ((layer.rows - layer.window + row) * heads + h * layer.group + g) * layer.d;
}
static int past_of(int h)
{
    return layer.entries[h] > layer.window ? layer.entries[h] - layer.window : 0;
}

static void values_fill(float *out, int n, float scale)
{
    for (int i = 0; i < n; i++) out[i] = scale * next_value();
}

/* Heads of very different length; some share the positions of the first one. */
static void layer_make(int most_heads)
{
    layer.heads = next_int(1, most_heads);
    layer.group = next_int(1, next_int(0, 1) ? MOST_GROUP : 2);
    layer.d = 2 * next_int(2, next_int(0, 2) == 0 ? MOST_DIM / 2 : 16);
    layer.window = next_int(1, next_int(0, 1) ? 32 : 8);
    layer.rows = layer.window + next_int(0, MOST_ROWS - 32);
    layer.hidden = next_int(1, MOST_HIDDEN);
    layer.newest = next_int(MOST_ENTRIES * 3, 6000);
    for (int h = 0; h < layer.heads; h++) {
        const int kind = next_int(0, 4);
        layer.entries[h] = next_int(1, kind == 0 ? layer.window + 2 : kind == 1 ? 40 : MOST_ENTRIES);
        if (h > 0 && next_int(0, 1)) layer.entries[h] = layer.entries[0];
        for (int j = 0; j < layer.entries[h]; j++)
            layer.positions[h][j] = (j > 0 ? layer.positions[h][j - 1] : -1) + next_int(1, 3);
        if (h > 0 && layer.entries[h] == layer.entries[0])
            memcpy(layer.positions[h], layer.positions[0], sizeof layer.positions[h]);
        float centre[MOST_DIM];
        values_fill(centre, layer.d, 1.0f);
        for (int j = 0; j < layer.entries[h]; j++) {
            const float size = 0.25f * (float)next_int(1, 8);
            for (int k = 0; k < layer.d; k++) {
                layer.keys[h][j * layer.d + k] = 0.5f * centre[k] + next_value();
                layer.values[h][j * layer.d + k] = size * next_value();
            }
            layer.mass[h][j] = 3.0f * fabsf(next_value());
        }
    }
    values_fill(layer.queries, layer.rows * layer.heads * layer.group * layer.d, 1.2f);
    values_fill(layer.output, layer.heads * layer.group * layer.d * layer.hidden, 0.3f);
    for (int i = 0; i < layer.d / 2; i++) layer.frequency[i] = powf(10000.0f, -2.0f * (float)i / (float)layer.d);
}

/* ---- the product: a scorer in memory that is exactly as large as it may use ---- */

struct output {
    float *score[MOST_HEADS];
};

static float *floats(size_t n)
{
    float *memory = malloc((n > 0 ? n : 1) * sizeof *memory);
    ck_assert_ptr_nonnull(memory);
    for (size_t i = 0; i < n; i++) memory[i] = NAN;
    return memory;
}

static struct score_scratch scratch_new(void)
{
    size_t most = 1;
    const size_t d = (size_t)layer.d;
    for (int h = 0; h < layer.heads; h++)
        if ((size_t)layer.entries[h] > most) most = (size_t)layer.entries[h];
    const size_t padded = (most + 15) / 16 * 16;
    struct score_scratch scratch = {.row = floats(SCORE_ROWS * padded),
                                    .first = floats(most),
                                    .second = floats(most),
                                    .tile = floats(padded * d),
                                    .unit = floats(padded * d),
                                    .tile_at = malloc(padded / 16 * sizeof(void *)),
                                    .unit_at = malloc(padded / 16 * sizeof(void *)),
                                    .vector = floats(17 * d),
                                    .matrix = floats(d * d),
                                    .column = floats(padded),
                                    .marker = malloc(most * sizeof(int32_t)),
                                    .scan = malloc(COMPACT_SCAN_WORDS(most, d) * sizeof(int32_t))};
    ck_assert(scratch.tile_at != NULL && scratch.unit_at != NULL && scratch.marker != NULL && scratch.scan != NULL);
    for (size_t t = 0; t < padded / 16; t++) {
        scratch.tile_at[t] = scratch.tile + t * d * 16;
        scratch.unit_at[t] = scratch.unit + t * d * 16;
    }
    return scratch;
}

static void scratch_free(struct score_scratch *scratch)
{
    float *all[] = {scratch->row,  scratch->first,  scratch->second, scratch->unit,
                    scratch->tile, scratch->vector, scratch->matrix, scratch->column};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    free(scratch->tile_at);
    free(scratch->unit_at);
    free(scratch->marker);
    free(scratch->scan);
}

/* Only what the scorer says it needs is there. */
static struct compact_input layer_input(const struct scorer *scorer)
{
    static const float *keys[MOST_HEADS], *values[MOST_HEADS], *mass[MOST_HEADS];
    static const int32_t *positions[MOST_HEADS];
    for (int h = 0; h < layer.heads; h++) {
        keys[h] = layer.keys[h];
        values[h] = layer.values[h];
        mass[h] = layer.mass[h];
        positions[h] = layer.positions[h];
    }
    struct compact_input in = {.kv_heads = layer.heads,
                               .group = layer.group,
                               .head_dim = layer.d,
                               .keys = keys,
                               .positions = positions,
                               .entries = layer.entries,
                               .query_rows = layer.rows,
                               .query_position = layer.newest};
    if (scorer->needs & NEEDS_QUERIES) in.queries = layer.queries;
    if (scorer->needs & NEEDS_VALUES) in.values = values;
    if (scorer->needs & NEEDS_MASS) in.mass = mass;
    if (scorer->needs & NEEDS_ROPE) in.rope_frequency = layer.frequency;
    if (scorer->needs & NEEDS_OUTPUT) in.output = layer.output, in.hidden = layer.hidden;
    return in;
}

static void scorer_run(const struct scorer *scorer, const struct policy *policy, struct score_scratch *scratch,
                       struct output *out)
{
    const struct compact_kernels kernels = compact_kernels_plain();
    const struct compact_input in = layer_input(scorer);
    for (int h = 0; h < layer.heads; h++) out->score[h] = floats((size_t)past_of(h));
    scorer->score(policy, &in, &kernels, scratch, layer.window, out->score);
}

static void output_free(struct output *out)
{
    for (int h = 0; h < layer.heads; h++) free(out->score[h]);
}

static const struct scorer *scorer_named(const char *name)
{
    const int index = scorer_find(name, (int)strlen(name));
    ck_assert_msg(index >= 0, "no scorer %s", name);
    return scorer_at(index);
}

/* ---- plain versions: score[h][j] of past entries, all in double ---- */

static double wide[MOST_HEADS][MOST_ENTRIES];

static double dot(const float *a, const float *b)
{
    double sum = 0;
    for (int k = 0; k < layer.d; k++) sum += (double)a[k] * (double)b[k];
    return sum;
}

static void softmax(double *x, int n)
{
    double top = -INFINITY, sum = 0;
    for (int j = 0; j < n; j++) top = fmax(top, x[j]);
    for (int j = 0; j < n; j++) sum += x[j] = exp(x[j] - top);
    for (int j = 0; j < n; j++) x[j] /= sum;
}

static double l1(const float *x)
{
    double sum = 0;
    for (int k = 0; k < layer.d; k++) sum += fabs((double)x[k]);
    return sum;
}

static void plain_attention(const struct policy *policy, enum policy_reduce method, int h, double *out)
{
    const enum policy_reduce reduce = policy->reduce == REDUCE_METHOD ? method : policy->reduce;
    const int past = past_of(h);
    double row[MOST_ENTRIES], mean[MOST_GROUP][MOST_ENTRIES] = {{0}}, one[MOST_ENTRIES];
    for (int r = 0; r < layer.window; r++) {
        if (reduce == REDUCE_MAX_LOGIT) {
            for (int j = 0; j < past; j++) {
                row[j] = -INFINITY;
                for (int g = 0; g < layer.group; g++)
                    row[j] = fmax(row[j], dot(query_of(h, g, r), key_of(h, j)) / sqrt(layer.d));
            }
            softmax(row, past);
            for (int j = 0; j < past; j++) mean[0][j] += row[j] / layer.window;
            continue;
        }
        for (int g = 0; g < layer.group; g++) {
            for (int j = 0; j < layer.entries[h]; j++)
                row[j] = j > past + r ? -INFINITY : dot(query_of(h, g, r), key_of(h, j)) / sqrt(layer.d);
            softmax(row, layer.entries[h]);
            for (int j = 0; j < past; j++) mean[g][j] += row[j] / layer.window;
        }
    }
    for (int j = 0; j < past; j++) {
        one[j] = mean[0][j];
        for (int g = 1; g < layer.group; g++) {
            if (reduce == REDUCE_MAX_PROB) one[j] = fmax(one[j], mean[g][j]);
            if (reduce == REDUCE_MEAN_PROB) one[j] += mean[g][j];
        }
        if (reduce == REDUCE_MEAN_PROB) one[j] /= layer.group;
    }
    for (int j = 0; j < past; j++) {
        out[j] = policy->pool == POOL_MAX ? -INFINITY : 0;
        for (int i = 0; i < past; i++) {
            if (abs(i - j) > policy->kernel / 2) continue;
            out[j] = policy->pool == POOL_MAX ? fmax(out[j], one[i]) : out[j] + one[i] / policy->kernel;
        }
    }
}

static void plain_h2o(const struct policy *policy)
{
    (void)policy;
    for (int h = 0; h < layer.heads; h++)
        for (int j = 0; j < past_of(h); j++) wide[h][j] = (double)layer.mass[h][j];
}

/* Of everything that stays, the share of the newest is safe. */
static int plain_h2o_first(const struct policy *policy, int h, int keep, double *score)
{
    const int stay = policy->sinks_tokens + keep + layer.window, past = past_of(h);
    const int safe = (int)floor(policy->recent_share * stay + 0.5);
    int left = keep;
    for (int j = past - 1; j >= 0 && layer.entries[h] - j <= safe && left > 0; j--, left--) score[j] = INFINITY;
    return 1;
}

static void plain_tova(const struct policy *policy)
{
    (void)policy;
    memset(wide, 0, sizeof wide);
    for (int from = 0; from < layer.heads; from++)
        for (int g = 0; g < layer.group; g++) {
            double row[MOST_ENTRIES];
            for (int j = 0; j < layer.entries[from]; j++)
                row[j] = dot(query_of(from, g, layer.window - 1), key_of(from, j)) / sqrt(layer.d);
            softmax(row, layer.entries[from]);
            for (int h = 0; h < layer.heads; h++)
                for (int j = 0; j < past_of(h); j++)
                    for (int i = 0; i < layer.entries[from]; i++)
                        if (layer.positions[from][i] == layer.positions[h][j])
                            wide[h][j] += row[i] / (layer.heads * layer.group);
        }
}

static void plain_keydiff(const struct policy *policy)
{
    (void)policy;
    for (int h = 0; h < layer.heads; h++) {
        double mean[MOST_DIM] = {0}, square = 0;
        for (int j = 0; j < layer.entries[h]; j++)
            for (int k = 0; k < layer.d; k++)
                mean[k] += (double)key_of(h, j)[k] / sqrt(dot(key_of(h, j), key_of(h, j))) / layer.entries[h];
        for (int k = 0; k < layer.d; k++) square += mean[k] * mean[k];
        for (int j = 0; j < past_of(h); j++) {
            double product = 0;
            for (int k = 0; k < layer.d; k++) product += (double)key_of(h, j)[k] * mean[k];
            wide[h][j] = -product / sqrt(dot(key_of(h, j), key_of(h, j)) * square);
        }
    }
}

static void plain_knorm(const struct policy *policy)
{
    (void)policy;
    for (int h = 0; h < layer.heads; h++)
        for (int j = 0; j < past_of(h); j++) wide[h][j] = -sqrt(dot(key_of(h, j), key_of(h, j)));
}

static void plain_lava(const struct policy *policy)
{
    for (int h = 0; h < layer.heads; h++) {
        double top = 0;
        plain_attention(policy, REDUCE_MAX_PROB, h, wide[h]);
        for (int j = 0; j < layer.entries[h]; j++) top = fmax(top, l1(value_of(h, j)));
        for (int j = 0; j < past_of(h); j++) wide[h][j] *= top;
    }
}

static void plain_vatp(const struct policy *policy)
{
    for (int h = 0; h < layer.heads; h++) {
        plain_attention(policy, REDUCE_MEAN_PROB, h, wide[h]);
        for (int j = 0; j < past_of(h); j++) wide[h][j] *= l1(value_of(h, j));
    }
}

/* Rotation by `angle` of the pairs (i, i + d / 2), from `in` to `out`. */
static void rotate(const double *in, double position, double *out)
{
    const int half = layer.d / 2;
    for (int i = 0; i < half; i++) {
        const double angle = position * (double)layer.frequency[i];
        out[i] = in[i] * cos(angle) - in[half + i] * sin(angle);
        out[half + i] = in[i] * sin(angle) + in[half + i] * cos(angle);
    }
}

static double turn[MOST_DIM][MOST_DIM], covariance[MOST_DIM][MOST_DIM], half_turned[MOST_DIM][MOST_DIM];

/* One query head: every row back by its own position, mean, covariance, then the mean rotation of the positions to
 * come as a matrix on both; softmax over the entries after the sinks. */
static void plain_expected(int h, int g, int sinks, double *row)
{
    const int d = layer.d, n = layer.entries[h];
    double plain[MOST_ROWS][MOST_DIM], mean[MOST_DIM] = {0}, turned[MOST_DIM] = {0};
    for (int r = 0; r < layer.window; r++) {
        double query[MOST_DIM];
        for (int k = 0; k < d; k++) query[k] = (double)query_of(h, g, r)[k];
        rotate(query, -(double)(layer.newest - (layer.window - 1 - r)), plain[r]);
        for (int k = 0; k < d; k++) mean[k] += plain[r][k] / layer.window;
    }
    memset(covariance, 0, sizeof covariance);
    memset(half_turned, 0, sizeof half_turned);
    for (int a = 0; a < d; a++)
        for (int b = 0; b < d; b++)
            for (int r = 0; r < layer.window; r++)
                covariance[a][b] += (plain[r][a] - mean[a]) * (plain[r][b] - mean[b]) / layer.window;
    for (int a = 0; a < d; a++)
        for (int k = 0; k < d; k++) {
            if (turn[a][k] == 0) continue;
            turned[a] += turn[a][k] * mean[k];
            for (int b = 0; b < d; b++) half_turned[a][b] += turn[a][k] * covariance[k][b];
        }
    memset(covariance, 0, sizeof covariance);
    for (int b = 0; b < d; b++)
        for (int k = 0; k < d; k++) {
            if (turn[b][k] == 0) continue;
            for (int a = 0; a < d; a++) covariance[a][b] += half_turned[a][k] * turn[b][k];
        }
    for (int j = sinks; j < n; j++) {
        double linear = 0, square = 0;
        for (int a = 0; a < d; a++) {
            linear += (double)key_of(h, j)[a] * turned[a];
            for (int b = 0; b < d; b++) square += (double)key_of(h, j)[a] * covariance[a][b] * (double)key_of(h, j)[b];
        }
        row[j] = linear / sqrt(d) + square / (2 * d);
    }
    if (n > sinks) softmax(row + sinks, n - sinks);
}

static void plain_expected_attention(const struct policy *policy)
{
    const int sinks = policy->sinks_tokens, half = layer.d / 2, future = policy->future_tokens;
    memset(turn, 0, sizeof turn);
    memset(wide, 0, sizeof wide);
    for (int i = 0; i < half; i++)
        for (int t = 1; t <= future; t++) {
            const double angle = (double)(layer.newest + t) * (double)layer.frequency[i];
            turn[i][i] += cos(angle) / future;
            turn[half + i][half + i] += cos(angle) / future;
            turn[i][half + i] -= sin(angle) / future;
            turn[half + i][i] += sin(angle) / future;
        }
    for (int h = 0; h < layer.heads; h++) {
        if (past_of(h) <= sinks) continue;
        for (int g = 0; g < layer.group; g++) {
            double row[MOST_ENTRIES];
            plain_expected(h, g, sinks, row);
            for (int j = sinks; j < past_of(h); j++) wide[h][j] += row[j] / layer.group;
        }
        for (int j = sinks; j < past_of(h); j++)
            wide[h][j] = (wide[h][j] + policy->epsilon) * sqrt(dot(value_of(h, j), value_of(h, j)));
    }
}

static void plain_critical(const struct policy *policy)
{
    for (int h = 0; h < layer.heads; h++) plain_attention(policy, REDUCE_MEAN_PROB, h, wide[h]);
}

/* 0 when rounding may decide the first part. */
static int plain_critical_first(const struct policy *policy, int h, int keep, double *score)
{
    const int past = past_of(h), sinks = policy->sinks_tokens, first = (int)(policy->first_share * keep);
    double second[MOST_ENTRIES], cut = INFINITY, next = -INFINITY;
    int safe[MOST_ENTRIES] = {0};
    for (int j = sinks; j < past; j++) {
        int before = 0;
        for (int i = sinks; i < past; i++) before += score[i] > score[j] || (score[i] == score[j] && i < j);
        safe[j] = before < first;
        if (safe[j])
            cut = fmin(cut, score[j]);
        else
            next = fmax(next, score[j]);
        double size = 0;
        for (int g = 0; g < layer.group; g++)
            for (int c = 0; c < layer.hidden; c++) {
                double image = 0;
                const float *output = layer.output + (h * layer.group + g) * layer.d * layer.hidden;
                for (int k = 0; k < layer.d; k++)
                    image += (double)value_of(h, j)[k] * (double)output[k * layer.hidden + c];
                size += fabs(image) / layer.group;
            }
        second[j] = (score[j] + 1e-4) * size;
    }
    for (int j = sinks; j < past; j++) score[j] = safe[j] ? INFINITY : second[j];
    return cut == next || cut - next > 2e-6;
}

static void plain_cake(const struct policy *policy)
{
    for (int h = 0; h < layer.heads; h++) {
        const int past = past_of(h), n = layer.entries[h];
        double sum[MOST_ENTRIES] = {0}, row[MOST_ROWS][MOST_ENTRIES];
        for (int g = 0; g < layer.group; g++) {
            for (int r = 0; r < layer.window; r++) {
                for (int j = 0; j < n; j++)
                    row[r][j] = j > past + r ? -INFINITY : dot(query_of(h, g, r), key_of(h, j)) / sqrt(layer.d);
                softmax(row[r], n);
            }
            for (int j = 0; j < past; j++) {
                double mean = 0, square = 0;
                for (int r = 0; r < layer.window; r++) mean += row[r][j] / layer.window;
                for (int r = 0; r < layer.window; r++) square += (row[r][j] - mean) * (row[r][j] - mean);
                const double variance = layer.window > 1 ? square / (layer.window - 1) : 0;
                sum[j] += (mean + 200 * variance) / layer.group;
            }
        }
        for (int j = 0; j < past; j++) {
            wide[h][j] = 0;
            for (int i = 0; i < past; i++)
                if (abs(i - j) <= policy->kernel / 2) wide[h][j] += sum[i] / policy->kernel;
        }
    }
}

/* ---- comparing ---- */

static double tolerance_of(const double *score, int from, int past)
{
    double top = 0;
    for (int j = from; j < past; j++)
        if (isfinite(score[j])) top = fmax(top, fabs(score[j]));
    return 1e-6 + 1e-5 * top;
}

static void scores_expect(const char *name, const struct output *out, int sinks)
{
    for (int h = 0; h < layer.heads; h++) {
        const double tolerance = tolerance_of(wide[h], sinks, past_of(h));
        for (int j = 0; j < past_of(h); j++) ck_assert_msg(isfinite(out->score[h][j]), "%s: score %d", name, j);
        for (int j = sinks; j < past_of(h); j++)
            ck_assert_msg(fabs((double)out->score[h][j] - wide[h][j]) <= tolerance,
                          "%s, %d entries, window %d, group %d, d %d: score[%d][%d] is %.9g, expected %.9g", name,
                          layer.entries[h], layer.window, layer.group, layer.d, h, j, (double)out->score[h][j],
                          wide[h][j]);
    }
}

/* kept: `keep` candidates, ascending, which may differ from the plain scores' best only next to the cut. Returns
 * whether they are the same. */
static int kept_expect(const char *name, const int32_t *kept, const double *plain, int sinks, int past, int keep)
{
    int chosen[MOST_ENTRIES] = {0}, same = 1;
    double cut = INFINITY;
    for (int j = sinks; j < past; j++) {
        int before = 0;
        for (int i = sinks; i < past; i++) before += plain[i] > plain[j] || (plain[i] == plain[j] && i < j);
        chosen[j] = before < keep;
        if (chosen[j]) cut = fmin(cut, plain[j]);
    }
    const double tolerance = 2 * tolerance_of(plain, sinks, past);
    for (int i = 0; i < keep; i++) {
        ck_assert(kept[i] >= sinks && kept[i] < past && (i == 0 || kept[i] > kept[i - 1]));
        if (chosen[kept[i]]) continue;
        same = 0;
        ck_assert_msg(fabs(plain[kept[i]] - cut) <= tolerance, "%s: keeps entry %d of score %.9g, the cut is %.9g",
                      name, kept[i], plain[kept[i]], cut);
    }
    return same;
}

/* The same for a head's float scores. */
static int best_expect(const char *name, const float *score, const double *plain, int sinks, int past, int keep)
{
    uint32_t rank[MOST_ENTRIES];
    int32_t kept[MOST_ENTRIES];
    for (int j = sinks; j < past; j++) rank[j - sinks] = score_rank(score[j]);
    ck_assert_int_eq(select_best(rank, past - sinks, keep, sinks, kept), keep);
    return kept_expect(name, kept, plain, sinks, past, keep);
}

static struct policy policy_random(int sinks)
{
    struct policy policy = {.sinks_tokens = sinks,
                            .kernel = 2 * next_int(0, 3) + 1,
                            .reduce = (enum policy_reduce)next_int(REDUCE_METHOD, REDUCE_MAX_PROB),
                            .pool = next_int(0, 2) == 0 ? POOL_AVG : POOL_MAX,
                            .recent_share = next_int(0, 20) / 20.0,
                            .first_share = next_int(0, 16) / 16.0,
                            .future_tokens = next_int(1, next_int(0, 1) ? 512 : 4),
                            .epsilon = next_int(0, 1) ? 0.02 : 0};
    return policy;
}

struct plain {
    const char *name;
    void (*score)(const struct policy *policy);
    int (*first)(const struct policy *policy, int head, int keep, double *score); /* NULL: scores decide alone */
};

static const struct plain plains[] = {
    {"h2o", plain_h2o, plain_h2o_first},
    {"tova", plain_tova, NULL},
    {"keydiff", plain_keydiff, NULL},
    {"knorm", plain_knorm, NULL},
    {"lava", plain_lava, NULL},
    {"vatp", plain_vatp, NULL},
    {"expected-attention", plain_expected_attention, NULL},
    {"critical-kv", plain_critical, plain_critical_first},
    {"cake-score", plain_cake, NULL},
};
enum { PLAINS = sizeof plains / sizeof plains[0] };

START_TEST(scorer_equals_plain_version)
{
    const struct plain *plain = &plains[_i];
    const struct scorer *scorer = scorer_named(plain->name);
    const struct compact_kernels kernels = compact_kernels_plain();
    int compared = 0, same = 0, unsure = 0;
    ck_assert_int_eq(scorer->refine != NULL, plain->first != NULL);
    state = 100 + (uint64_t)_i;
    for (int round = 0; round < ROUNDS; round++) {
        layer_make(MOST_HEADS);
        const struct policy policy = policy_random(round % 3 == 0 ? next_int(0, 6) : 0);
        struct score_scratch scratch = scratch_new();
        struct output out;
        scorer_run(scorer, &policy, &scratch, &out);
        plain->score(&policy);
        scores_expect(plain->name, &out, policy.sinks_tokens);
        const struct compact_input in = layer_input(scorer);
        for (int h = 0; h < layer.heads; h++) {
            const int past = past_of(h), candidates = past - policy.sinks_tokens;
            if (candidates < 1) continue;
            const int keep = next_int(1, candidates);
            int sure = 1;
            if (scorer->refine != NULL) {
                scorer->refine(&policy, &in, &kernels, &scratch, h, past, keep, out.score[h]);
                sure = plain->first(&policy, h, keep, wide[h]);
            }
            compared += sure;
            unsure += !sure;
            if (sure) same += best_expect(plain->name, out.score[h], wide[h], policy.sinks_tokens, past, keep);
        }
        output_free(&out);
        scratch_free(&scratch);
    }
    ck_assert_int_gt(compared, ROUNDS);
    ck_assert_msg(same * 100 >= compared * 97 && unsure * 20 <= compared, "%s: %d of %d kept sets equal, %d left out",
                  plain->name, same, compared, unsure);
}
END_TEST

/* Through the whole compaction and every router that takes the scorer: each head keeps sinks, window, and the best of
 * the rest as many as its budget leaves. */
START_TEST(compaction_keeps_the_best)
{
    static const char *const routers[] = {"", "+ada", "+reasonalloc"};
    const struct plain *plain = &plains[_i];
    const struct scorer *scorer = scorer_named(plain->name);
    const int one_router = scorer->shared_entries || scorer->incomparable;
    int compared = 0, same = 0;
    state = 400 + (uint64_t)_i;
    for (int round = 0; round < 100; round++) {
        layer_make(MOST_HEADS);
        for (int h = 1; h < layer.heads && scorer->shared_entries; h++) {
            const int n = layer.entries[h] = layer.entries[0];
            memcpy(layer.positions[h], layer.positions[0], sizeof layer.positions[h]);
            values_fill(layer.keys[h], n * layer.d, 1.0f);
        }
        char text[POLICY_NAME_MAX];
        struct kvf_err err = {""};
        struct policy policy;
        const struct policy drawn = policy_random(next_int(0, 4));
        snprintf(text, sizeof text, "%s%s", plain->name, one_router ? "" : routers[round % 3]);
        ck_assert_msg(policy_parse(text, &policy, &err) == 0, "%s", err.text);
        policy.window_tokens = layer.window;
        policy.sinks_tokens = drawn.sinks_tokens;
        policy.kernel = drawn.kernel, policy.reduce = drawn.reduce, policy.pool = drawn.pool;
        policy.recent_share = drawn.recent_share, policy.first_share = drawn.first_share;
        policy.future_tokens = drawn.future_tokens, policy.epsilon = drawn.epsilon;

        const int sinks = policy.sinks_tokens, least = layer.window + sinks + 1;
        int most = 1;
        for (int h = 0; h < layer.heads; h++) most = layer.entries[h] > most ? layer.entries[h] : most;
        struct compact_input in = layer_input(scorer);
        in.layer_budget = (int64_t)layer.heads * next_int(least, most > least ? most : least);
        struct compact_work *work = compact_work_new(layer.heads, layer.group, layer.d, layer.window, most);
        const int32_t *kept[MOST_HEADS];
        int count[MOST_HEADS], noop;
        ck_assert_msg(compact_layer(&policy, &in, NULL, work, kept, count, &noop, &err) == 0, "%s: %s", text, err.text);
        if (!noop) plain->score(&policy);
        for (int h = 0; h < layer.heads && !noop; h++) {
            const int n = layer.entries[h], past = past_of(h), keep = count[h] - layer.window - sinks;
            if (count[h] == n) continue;
            ck_assert_int_ge(keep, policy.router == ROUTER_ADA ? 0 : 1); /* Ada-KV's floor is 0 of a few candidates */
            for (int j = 0; j < sinks; j++) ck_assert_int_eq(kept[h][j], j);
            for (int j = 0; j < layer.window; j++) ck_assert_int_eq(kept[h][sinks + keep + j], past + j);
            if (plain->first != NULL && !plain->first(&policy, h, keep, wide[h])) continue;
            same += kept_expect(text, kept[h] + sinks, wide[h], sinks, past, keep);
            compared++;
        }
        compact_work_destroy(&work);
    }
    ck_assert_int_gt(compared, 60);
    ck_assert_int_ge(same * 100, compared * 97);
}
END_TEST

/* Layers of which a formula may divide by nothing: every score stays a number. */
START_TEST(scores_are_numbers_where_little_is_there)
{
    const struct scorer *scorer = scorer_named(plains[_i].name);
    const struct compact_kernels kernels = compact_kernels_plain();
    state = 200 + (uint64_t)_i;
    for (int round = 0; round < 120; round++) {
        layer_make(MOST_HEADS);
        const size_t row = (size_t)layer.d * sizeof(float);
        for (int h = 0; h < layer.heads; h++) {
            const int n = layer.entries[h];
            if (round % 6 == 0) memset(layer.keys[h], 0, (size_t)n * row);
            if (round % 6 == 1)
                for (int j = 1; j < n; j++) memcpy(layer.keys[h] + j * layer.d, layer.keys[h], row);
            if (round % 6 == 2) memset(layer.values[h], 0, (size_t)n * row);
            if (round % 6 == 3) memset(layer.mass[h], 0, (size_t)n * sizeof(float));
            if (round % 6 == 4) layer.entries[h] = layer.window + next_int(-1, 1);
            if (round % 6 == 4 && layer.entries[h] < 1) layer.entries[h] = 1;
            if (round % 6 == 5) layer.entries[h] = 1;
            for (int j = n; j < layer.entries[h]; j++) {
                layer.positions[h][j] = layer.positions[h][j - 1] + 1;
                values_fill(layer.keys[h] + j * layer.d, layer.d, 1.0f);
                values_fill(layer.values[h] + j * layer.d, layer.d, 1.0f);
                layer.mass[h][j] = 0.0f;
            }
        }
        if (round % 12 < 6) memset(layer.queries, 0, sizeof layer.queries);
        const struct policy policy = policy_random(next_int(0, 4));
        struct score_scratch scratch = scratch_new();
        struct output out;
        scorer_run(scorer, &policy, &scratch, &out);
        const struct compact_input in = layer_input(scorer);
        for (int h = 0; h < layer.heads; h++) {
            const int past = past_of(h), candidates = past - policy.sinks_tokens;
            for (int j = 0; j < past; j++) ck_assert_msg(isfinite(out.score[h][j]), "round %d: score %d", round, j);
            if (candidates < 1 || scorer->refine == NULL) continue;
            scorer->refine(&policy, &in, &kernels, &scratch, h, past, next_int(0, candidates), out.score[h]);
            for (int j = 0; j < past; j++) ck_assert_msg(isfinite(out.score[h][j]), "round %d: refined %d", round, j);
        }
        output_free(&out);
        scratch_free(&scratch);
    }
}
END_TEST

/* What reaches a scorer as NaN must leave it as NaN, where compaction finds it. */
START_TEST(nan_is_not_hidden)
{
    const struct scorer *scorer = scorer_named(plains[_i].name);
    state = 300 + (uint64_t)_i;
    for (int round = 0; round < 60; round++) {
        do layer_make(1);
        while (past_of(0) < 2);
        const int at = next_int(0, past_of(0) - 1), k = next_int(0, layer.d - 1);
        int hurt = 0;
        layer.mass[0][at] = NAN;
        layer.keys[0][at * layer.d + k] = NAN;
        struct policy policy = policy_random(0);
        struct score_scratch scratch = scratch_new();
        struct output out;
        scorer_run(scorer, &policy, &scratch, &out);
        for (int j = 0; j < past_of(0); j++) hurt += isnan(out.score[0][j]);
        ck_assert_msg(hurt > 0, "%s hides a NaN", scorer->name);
        output_free(&out);
        scratch_free(&scratch);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scorers");
    TCase *tc = tcase_create("against plain versions");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, scorer_equals_plain_version, 0, PLAINS);
    tcase_add_loop_test(tc, compaction_keeps_the_best, 0, PLAINS);
    tcase_add_loop_test(tc, scores_are_numbers_where_little_is_there, 0, PLAINS);
    tcase_add_loop_test(tc, nan_is_not_hidden, 0, PLAINS);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
