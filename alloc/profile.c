/* profile.c: measuring layer demand; whose profile it is. */
#include "alloc/profile.h"

#include <math.h>
#include <string.h>

void demand_attention(const float *keys, int n, int d, const float *queries, int rows, int64_t row_stride, int group,
                      double *scratch, double *attention)
{
    for (int j = 0; j < n; j++) attention[j] = 0;
    const double scale = 1 / sqrt((double)d);
    for (int w = 0; w < rows; w++) {
        const int visible = n - rows + 1 + w; /* a query sees keys up to its own position */
        for (int g = 0; g < group; g++) {
            const float *query = queries + w * row_stride + (int64_t)g * d;
            double top = -INFINITY, total = 0;
            for (int j = 0; j < visible; j++) {
                double dot = 0;
                for (int k = 0; k < d; k++) dot += (double)query[k] * keys[(int64_t)j * d + k];
                scratch[j] = dot * scale;
                top = fmax(top, scratch[j]);
            }
            for (int j = 0; j < visible; j++) total += scratch[j] = exp(scratch[j] - top);
            for (int j = 0; j < visible; j++) attention[j] += scratch[j] / total / (rows * group);
        }
    }
}

/* Sifts entry `at` of a max-heap of n down. */
static void heap_sift(double *heap, int n, int at)
{
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] > heap[child]) child++;
        if (heap[at] >= heap[child]) return;
        double swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
    }
}

int demand_count(const double *attention, int n, double rho, double *scratch)
{
    memcpy(scratch, attention, (size_t)n * sizeof *scratch);
    for (int i = n / 2 - 1; i >= 0; i--) heap_sift(scratch, n, i);
    double sum = 0;
    for (int left = n; left > 0; left--) {
        sum += scratch[0];
        if (sum >= rho) return n - left + 1;
        scratch[0] = scratch[left - 1];
        heap_sift(scratch, left - 1, 0);
    }
    return n;
}

void demand_add(struct demand_sum *sum, const double *x, int layers)
{
    double mean = 0;
    for (int l = 0; l < layers; l++) mean += x[l] / layers;
    for (int l = 0; l < layers; l++) sum->total[l] += mean > 0 ? x[l] / mean : 1;
    sum->samples++;
}

void demand_finish(const struct demand_sum *sum, int layers, double *demand)
{
    for (int l = 0; l < layers; l++) demand[l] = sum->samples > 0 ? sum->total[l] / sum->samples : 1;
}

int profile_check(const struct wave_profile *profile, const char *model_hash, int layers, int kv_heads,
                  struct kvf_err *err)
{
    if (strcmp(profile->model_hash, model_hash) != 0)
        return kvf_fail(err, KVF_EINVAL,
                        "wave profile is of model %s, this model is %s: run `kvfleet calibrate` for it",
                        profile->model_hash, model_hash);
    if (profile->layers != layers || profile->kv_heads != kv_heads)
        return kvf_fail(err, KVF_EINVAL, "wave profile is of %d layers x %d kv heads, the model has %d x %d",
                        profile->layers, profile->kv_heads, layers, kv_heads);
    return 0;
}
