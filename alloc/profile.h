/* profile.h: the wave profile: a model's measured per-layer demand (plan.h makes layer budgets of it). alloc.md 1.4;
 * ReasonAlloc 5.2 ("Reasoning Wave"). No I/O: JSON text in, JSON text out. */
#ifndef KVF_PROFILE_H
#define KVF_PROFILE_H

#include <stddef.h>
#include <stdint.h>
#include "alloc/err.h"

#define PROFILE_MAX_LAYERS 256
#define PROFILE_HASH_HEX   64

struct wave_profile {
    char model_hash[PROFILE_HASH_HEX + 1]; /* hex SHA-256 of the model (engine_info.model_hash) */
    int layers, kv_heads;
    int window_tokens;
    double rho;
    int probes, samples;               /* probe prompts and sampled steps behind the figures */
    double demand[PROFILE_MAX_LAYERS]; /* D_l, mean 1 over layers */
    /* Optional: the same from one count over all heads of a layer; and weights of plan `file`, written by hand. */
    int has_demand_pooled, has_layer_share;
    double demand_pooled[PROFILE_MAX_LAYERS], layer_share[PROFILE_MAX_LAYERS];
};

/* ---- measuring: x_l for one sampled step, alloc.md 1.4 ---- */

/* a(j) of one kv head: the mean over the last `rows` queries and the group of softmax_j(q.k / sqrt(d)), each query
 * seeing keys up to its own position. keys [n][d]; row w at queries + w * row_stride, [group][d]; scratch and attention
 * [n]. */
void demand_attention(const float *keys, int n, int d, const float *queries, int rows, int64_t row_stride, int group,
                      double *scratch, double *attention);

/* Smallest number of entries of one attention row [n] whose sum reaches rho, largest first. A row that never reaches
 * rho needs all n. Pooled demand: the rows of all heads as one, and rho times their number. `scratch` holds n. */
int demand_count(const double *attention, int n, double rho, double *scratch);

struct demand_sum { /* zero-initialise; one per calibration */
    double total[PROFILE_MAX_LAYERS];
    int samples;
};
/* Adds one sampled step: x[l] = mean over heads of demand_count; divides by the mean over layers. All zero -> all 1. */
void demand_add(struct demand_sum *sum, const double *x, int layers);
void demand_finish(const struct demand_sum *sum, int layers, double *demand);

/* ---- JSON ---- */

/* Writes a NUL-terminated document into text[cap]; KVF_ENOMEM when it does not fit. */
KVF_MUSTCHECK int profile_format(const struct wave_profile *profile, char *text, size_t cap, struct kvf_err *err);
/* demand_pooled and layer_share may be missing. Strict: unknown version, missing key, wrong count, NaN or negative
 * demand are refused. The parser reads just this flat document (no general JSON), so that `alloc/` depends on nothing.
 */
KVF_MUSTCHECK int profile_parse(const char *text, size_t len, struct wave_profile *out, struct kvf_err *err);
/* Refuses a profile of another model: the line holds both hashes, or both shapes. */
KVF_MUSTCHECK int profile_check(const struct wave_profile *profile, const char *model_hash, int layers, int kv_heads,
                                struct kvf_err *err);

#endif
