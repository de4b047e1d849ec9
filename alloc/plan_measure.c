/* plan_measure.c: the statistics of online plans. */
#include <math.h>
#include <string.h>

#include "alloc/plan.h"
#include "alloc/score.h"
#include "alloc/select.h"
#include "alloc/work.h"

/* row[j], j < visible: softmax of query . keys / sqrt(d). */
static void softmax_row(const struct compact_kernels *kernels, const float *query, const float *keys, int visible,
                        int d, float *row)
{
    const float scale = 1.0f / sqrtf((float)d);
    kernels->dot_rows(query, keys, visible, d, row);
    for (int j = 0; j < visible; j++) row[j] *= scale;
    const float share = 1.0f / score_exp(kernels, row, visible);
    for (int j = 0; j < visible; j++) row[j] *= share;
}

/* Smallest number of values, all at least 0, whose sum reaches `target`, largest first; n where none does. By radix
 * over ranks: whole buckets from the top while they are needed, then inside the one that reaches it. NaN if a value is.
 */
static double count_to(const float *value, int n, double target)
{
    uint32_t prefix = 0, mask = 0;
    double sum = 0;
    int64_t count = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        double mass[256] = {0};
        int inside[256] = {0};
        for (int i = 0; i < n; i++) {
            const uint32_t rank = score_rank(value[i]);
            if (value[i] != value[i]) return NAN;
            if ((rank & mask) != prefix) continue;
            mass[rank >> shift & 255] += (double)value[i];
            inside[rank >> shift & 255]++;
        }
        int digit = 255;
        for (; digit >= 0 && sum + mass[digit] < target; digit--) {
            sum += mass[digit];
            count += inside[digit];
        }
        if (digit < 0) return n;
        prefix |= (uint32_t)digit << shift;
        mask |= 255u << shift;
    }
    /* What is left are equal values. */
    const double last = (double)rank_score(prefix);
    while (sum < target) {
        sum += last;
        count++;
    }
    return (double)count;
}

/* Mean over rows and group of the window's softmaxes, into score[head][0 ... n - 1]. */
static void attention_mean(const struct compact_input *in, const struct compact_kernels *kernels,
                           struct compact_work *work, int head, int window)
{
    const int d = in->head_dim, group = in->group, n = in->entries[head];
    const int64_t stride = (int64_t)in->kv_heads * group * d;
    const float *queries = in->queries + (in->query_rows - window) * stride + (int64_t)head * group * d;
    float *mean = work->score[head], *row = work->scratch.row;
    memset(mean, 0, (size_t)n * sizeof *mean);
    for (int w = 0; w < window; w++)
        for (int g = 0; g < group; g++) {
            const int visible = n - window + 1 + w;
            if (visible < 1) continue;
            softmax_row(kernels, queries + w * stride + (int64_t)g * d, in->keys[head], visible, d, row);
            for (int j = 0; j < visible; j++) mean[j] += row[j] / (float)(window * group);
        }
}

static double demand_measure(const struct policy *policy, const struct compact_input *in,
                             const struct compact_kernels *kernels, struct compact_work *work, int window)
{
    double counts = 0;
    int all = 0;
    for (int h = 0; h < in->kv_heads; h++) attention_mean(in, kernels, work, h, window);
    if (policy->demand == DEMAND_HEAD_MEAN) {
        for (int h = 0; h < in->kv_heads; h++) counts += count_to(work->score[h], in->entries[h], policy->rho);
        return counts / in->kv_heads;
    }
    /* The heads' values side by side: ranks are not needed yet, and have the room. */
    float *pooled = (float *)work->rank;
    for (int h = 0; h < in->kv_heads; all += in->entries[h], h++)
        memcpy(pooled + all, work->score[h], (size_t)in->entries[h] * sizeof *pooled);
    return count_to(pooled, all, policy->rho * in->kv_heads) / in->kv_heads;
}

/* Sums over query heads of entropy and of the variance over rows, of what goes to entries before the window. */
static double preference_measure(const struct policy *policy, const struct compact_input *in,
                                 const struct compact_kernels *kernels, struct compact_work *work, int window)
{
    const int d = in->head_dim, group = in->group;
    const int64_t stride = (int64_t)in->kv_heads * group * d;
    float *row = work->scratch.row, *mean = work->scratch.first, *spread = work->scratch.second;
    double entropy = 0, variance = 0;
    for (int h = 0; h < in->kv_heads; h++) {
        const int past = in->entries[h] - window;
        if (past < 1) continue;
        for (int g = 0; g < group; g++) {
            const float *query = in->queries + (in->query_rows - window) * stride + ((int64_t)h * group + g) * d;
            memset(mean, 0, (size_t)past * sizeof *mean);
            memset(spread, 0, (size_t)past * sizeof *spread);
            for (int w = 0; w < window; w++) {
                softmax_row(kernels, query + w * stride, in->keys[h], past + w + 1, d, row);
                for (int j = 0; j < past; j++) {
                    /* Mean and squared distance from it, updated row by row: no difference of large sums. */
                    const float from = row[j] - mean[j];
                    mean[j] += from / (float)(w + 1);
                    spread[j] += from * (row[j] - mean[j]);
                    entropy -= (double)row[j] * log((double)row[j] + 1e-10);
                }
            }
            for (int j = 0; window > 1 && j < past; j++) variance += (double)spread[j] / (window - 1);
        }
    }
    /* The 1e-10 lets an entropy of 0 come out below it. */
    if (entropy < 0) entropy = 0;
    return pow(entropy, 1 / policy->tau1) * pow(variance, 1 / policy->tau2);
}

int plan_measure(const struct policy *policy, const struct compact_input *in, const struct compact_kernels *lent,
                 struct compact_work *work, double *statistic, struct kvf_err *err)
{
    const int window = policy->window_tokens < in->query_rows ? policy->window_tokens : in->query_rows;
    int rc = compact_shape_check(in, work, window, err);
    if (rc != 0) return rc;
    if (window < 1 || in->queries == NULL)
        return kvf_fail(err, KVF_EINVAL, "layer plan of policy %s: no query rows, expected at least 1", policy->name);
    const struct compact_kernels kernels = compact_kernels_of(lent);
    *statistic = policy->plan == PLAN_CAKE ? preference_measure(policy, in, &kernels, work, window)
                                           : demand_measure(policy, in, &kernels, work, window);
    return 0;
}
