/* score.h: how much an entry is worth: importance, redundancy and their mixture (R-KV, arXiv 2505.24133; alloc.md 2.1).
 * Internal to alloc/. float32 throughout; sums run in one fixed order. No allocation. */
#ifndef KVF_SCORE_H
#define KVF_SCORE_H

#include <stdint.h>
#include "alloc/compact.h"

struct score_scratch; /* scorer.h */

/* The plain C members for what the engine did not lend. */
struct compact_kernels compact_kernels_plain(void);

/* x[j] := exp(x[j] - max x) and returns the sum: a softmax but for the division. n >= 1. */
float score_exp(const struct compact_kernels *kernels, float *x, int n);

/* Entries of one tile: 16 logits come from one pass over head_dim. */
#define SCORE_TILE 16
/* keys [n][d] -> tiles [n / 16 rounded up][d][16]; entries that do not exist are 0. */
void score_tiles(const float *keys, int n, int d, float *tiles);

/* importance[j], j < past: mean over query rows of the softmax over past entries of the largest logit of the group.
 * tiles: of `past` or more keys; queries of this kv head: row w at queries + w * row_stride, [group][d]. logit: scratch
 * [SCORE_ROWS * (past rounded up to 16)]. */
void score_importance(const struct compact_kernels *kernels, const struct compact_tiles *tiles, int past, int d,
                      const float *queries, int rows, int64_t row_stride, int group, float *logit, float *importance);

/* out[j] = max of in[j - kernel/2 ... j + kernel/2] inside 0...n-1. */
void score_max_pool(const float *in, int n, int kernel, float *out);
/* out[j] = sum over the same neighbours / kernel: what lies outside counts as 0. */
void score_avg_pool(const float *in, int n, int kernel, float *out);

/* redundancy[j], j < n: softmax over entries of the column means of the cosine matrix, its diagonal and, in every row,
 * the most recent entry more similar than `threshold` (entry 0 where there is none) counted as 0. The matrix never
 * exists: column sums come from the sum of all unit keys, and newest_similar finds what a row exempts. Threshold
 * INFINITY: nothing is similar. Uses scratch unit, vector, column, scan, and marker: the entry that each row exempts.
 */
void score_redundancy(const struct compact_kernels *kernels, const struct compact_tiles *tiles, int n, int d,
                      double threshold, struct score_scratch *scratch, float *redundancy);

/* sum_k |x[k]|, k < d. */
float score_l1(const float *x, int d);

/* A number in [0, 1) for entry `position` of `head`, by a counter-based hash of `key`. */
float score_random(uint64_t key, int head, int32_t position);

#endif
