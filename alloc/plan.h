/* plan.h: layer plans: how many entries each layer keeps. alloc.md 1.3, 1.4, 3.
 *
 * A plan gives B_l for every layer, in entries of the whole layer (all kv heads, window and sinks included). Their sum
 * is exactly layers * kv_heads * budget_tokens. A policy whose scorer keeps one set of entries for all heads, and the
 * pyramid, get multiples of kv_heads. Offline plans are built once, when a sequence starts. Online plans start uniform
 * and are measured anew at every compaction, in two passes over the layers: plan_measure for each of them, plan_refresh
 * for all, then compact_layer with the new budgets. No allocation, no I/O, any thread.
 */
#ifndef KVF_PLAN_H
#define KVF_PLAN_H

#include <stdint.h>
#include "alloc/compact.h"
#include "alloc/profile.h"

/* `profile` may be NULL where policy_needs_profile is 0. KVF_EINVAL: no profile, or one of another shape or without the
 * figures that the plan reads; more than PROFILE_MAX_LAYERS; floors (clip, window + sinks + 1) that exceed the total.
 * Online plans: the uniform budgets that hold until the first plan_refresh. */
KVF_MUSTCHECK int layer_plan_build(const struct policy *policy, const struct wave_profile *profile, int layers,
                                   int kv_heads, int budget_tokens, int64_t *layer_budget, struct kvf_err *err);

/* One layer's statistic, PLAN_DYNAMIC: entries that hold a share rho of the window's attention (mean of softmaxes over
 * rows and group, each query up to its own position), by `demand`: mean over heads, or over all (head, entry) pairs
 * divided by heads. PLAN_CAKE: the preference H^(1/tau1) * V^(1/tau2) with entropy H and temporal variance V (over the
 * window's rows) of the attention to entries before the window, both summed over query heads; V is 0 for a single row.
 * The window is min(policy window, query_rows). NaN where the keys or queries are not finite: plan_refresh refuses it.
 */
KVF_MUSTCHECK int plan_measure(const struct policy *policy, const struct compact_input *input,
                               const struct compact_kernels *kernels, struct compact_work *work, double *statistic,
                               struct kvf_err *err);

/* B_l from the statistics of all layers. held[l]: entries that layer l holds now. Evicted entries cannot return, so no
 * layer is given more than it holds while others could use it; where the layers together hold no more than the total,
 * there is nothing to evict and the plan is uniform. `memory`: the sequence's, see below; NULL unless policy.ema > 0.
 */
KVF_MUSTCHECK int plan_refresh(const struct policy *policy, const double *statistic, const int64_t *held,
                               double *memory, int layers, int kv_heads, int budget_tokens, int64_t *layer_budget,
                               struct kvf_err *err);

/* ---- what a sequence carries from one compaction to the next ---- */

/* How many doubles, all 0 for a new sequence and owned by it; 0: the policy carries nothing. */
int policy_memory_doubles(const struct policy *policy, int layers, int kv_heads);
/* The part for plan_refresh, and the part for compact_input.demand of one layer; NULL in, NULL out. */
double *policy_memory_plan(double *memory);
double *policy_memory_layer(double *memory, int layers, int kv_heads, int layer);

/* ---- for plans, and for tests ---- */

/* The pyramid's shares of one head in each layer: weights fall linearly from 2 * tokens - tokens / beta to tokens /
 * beta, ALLOC of layers * tokens between lo and hi. One layer: everything. */
KVF_MUSTCHECK int pyramid_share(double beta, int layers, int tokens, int64_t lo, int64_t hi, int64_t *share,
                                struct kvf_err *err);

#endif
