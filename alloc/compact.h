/* compact.h: one compaction of one layer of one sequence: scores, head budgets, kept sets. alloc.md 1.4, 2.1.
 *
 * Pure computation on caller memory. All scratch lives in a `compact_work` made once for the largest layer, so that a
 * compaction never allocates. One work area a thread. Everything is deterministic; ties go by score descending, then
 * index ascending. A score that is not finite decides nothing: it is an error.
 */
#ifndef KVF_COMPACT_H
#define KVF_COMPACT_H

#include <stdint.h>
#include "alloc/err.h"
#include "alloc/policy.h"

/* How a page of the cache stores its numbers. */
enum page_kind {
    PAGE_F32,  /* float */
    PAGE_BF16, /* uint16: the upper half of a float */
};

/* Keys of one head as the cache stores them: tile t holds number k of entry 16 t + j at [k * 16 + j]. What no entry
 * fills may be anything. */
struct compact_tiles {
    const void *const *at; /* [entry / 16 rounded up] -> [head_dim][16] */
    enum page_kind kind;
};

#define COMPACT_DOT_ROWS         8
#define COMPACT_SCAN_WORDS(n, d) (((size_t)(n) + 15) / 16 * 16 * (((size_t)(d) + 3) / 4 + 5))

/* The loops that decide the cost, so that the engine can lend its SIMD versions; NULL members: plain C. */
struct compact_kernels {
    /* out[i] = sum_k a[k] * rows[i * d + k], i < n; the order of summation depends on d only. */
    void (*dot_rows)(const float *a, const float *rows, int n, int d, float *out);
    /* out[r * out_stride + j] = sum over k, in order, of a[r][k] times number k of entry j, r < rows <=
     * COMPACT_DOT_ROWS, j < 16 * count: some vectors against the entries of `count` tiles. */
    void (*dot_tiles)(const float *const *a, int rows, const struct compact_tiles *tiles, int count, int d, float *out,
                      int64_t out_stride);
    /* For each entry i of n in `tiles` (float tiles, one after the other; what is past n being 0): newest[i], the last
     * other entry whose inner product with it is above `threshold`, entry 0 where there is none (INFINITY: there is
     * none), and product[i], that inner product, a sum over k in order. scratch: COMPACT_SCAN_WORDS(n, d). */
    void (*newest_similar)(const float *tiles, int n, int d, float threshold, int32_t *scratch, int32_t *newest,
                           float *product);
    /* out[i] = exp(in[i]), in <= 0; in == out is allowed. */
    void (*exp_rows)(const float *in, int n, float *out);
};

struct compact_input {
    int kv_heads;
    int group; /* query heads per kv head */
    int head_dim;
    const float *const *keys;              /* [kv_head] -> [entry][head_dim], after RoPE, oldest first */
    const struct compact_tiles *key_tiles; /* [kv_head] the same keys as the cache stores them; may be NULL. Where they
                                            * are given, `keys` may be NULL unless compact_reads_rows */
    const float *const *values;            /* [kv_head] -> [entry][head_dim]; NULL unless the scorer needs values */
    const float *const *mass;        /* [kv_head] -> [entry] attention received since the entry was appended: the sum
                                      * over steps of the mean over the group of the softmax; NULL unless needed */
    const int32_t *const *positions; /* [kv_head] -> [entry] logical position, ascending; NULL unless the scorer
                                      * needs them or some are protected */
    const int *entries;              /* [kv_head] n_i */
    const float *queries;   /* [window][kv_heads * group][head_dim], last row newest; rows: min(window, tokens seen) */
    int query_rows;         /* rows valid in `queries`; the window is min(policy window, query_rows) */
    int32_t query_position; /* logical position of the newest query */
    const float
        *rope_frequency; /* [head_dim / 2] radians a position, pairs (i, i + head_dim / 2); NULL unless needed */
    const float *output; /* [kv_heads * group][head_dim][hidden]: the output projection, transposed a head at a
                          * time, so that a value's image is sum_k v[k] * output[q][k]; NULL unless needed */
    int hidden;          /* columns of `output` */
    int32_t protected_positions; /* entries of a smaller logical position always stay, as sinks do; 0: none */
    int64_t layer_budget;        /* B_l, window and sinks of all heads included */
    uint64_t random_key;         /* for scorer random: sample seed mixed with the layer */
    double *demand; /* [kv_head] the layer's part of the sequence's memory (plan.h), updated by a compaction
                     * that evicts; NULL unless policy_memory_doubles asks for it */
};

/* Whether scoring (or measuring an online plan) reads keys one after the other, in `keys`. */
int compact_reads_rows(const struct policy *policy);

struct compact_work; /* opaque scratch */
/* For layers of up to max_entries entries in each of kv_heads heads. Memory grows on no later call. */
struct compact_work *compact_work_new(int kv_heads, int group, int head_dim, int max_window, int max_entries);
void compact_work_destroy(struct compact_work **work);
int64_t compact_work_bytes(const struct compact_work *work);

/* Decides what stays, in a layer of 0 or more entries a head. KVF_EINVAL: a budget below what always stays, protected
 * entries that leave no room for a choice in a head that must shrink, input that the scorer needs and that is NULL, a
 * score that is not finite (the line names policy, head, entry and value). On return kept[h] points into `work` (valid
 * until the next call): keep_count[h] ascending entry indices of head h. *noop is set when the layer already fits; then
 * nothing else is written. */
KVF_MUSTCHECK int compact_layer(const struct policy *policy, const struct compact_input *input,
                                const struct compact_kernels *kernels, struct compact_work *work, const int32_t **kept,
                                int *keep_count, int *noop, struct kvf_err *err);

#endif
