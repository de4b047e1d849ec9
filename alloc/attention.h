/* attention.h: how much attention the window's queries pay to the entries before the window: what the attention-based
 * scorers share. alloc.md 2.1, 3; golden/compress snap_score. Internal to alloc/. No allocation. */
#ifndef KVF_ATTENTION_H
#define KVF_ATTENTION_H

#include "alloc/scorer.h"

/* out[j], j < past = entries[head] - window, past >= 1: window attention of kv head `head`, mean over the window's
 * rows, reduced over the group by policy.reduce (`method` where that is REDUCE_METHOD, which is not itself a `method`),
 * then pooled over neighbours (policy.pool, policy.kernel). REDUCE_MAX_LOGIT: score_importance; entries of the window
 * do not count in the softmax. REDUCE_MEAN_PROB, REDUCE_MAX_PROB: a query head's softmax runs over all entries up to
 * the query's own, the row's mean comes first, then the group's mean or maximum. With max pooling a maximum over the
 * group may come before or after it: it is the same. Uses scratch row, first, second. */
void attention_pooled(const struct policy *policy, enum policy_reduce method, const struct compact_input *in,
                      const struct compact_kernels *kernels, struct score_scratch *scratch, int head, int window,
                      float *out);

/* out[j], j < n: mean over the group of the softmax of the newest query over all n entries of kv head `head`. Uses
 * scratch row. */
void attention_newest(const struct compact_input *in, const struct compact_kernels *kernels,
                      struct score_scratch *scratch, int head, float *out);

/* The head's keys as tiles: those given, or made in scratch->tile. */
struct compact_tiles attention_tiles(const struct compact_input *in, struct score_scratch *scratch, int head);

#endif
