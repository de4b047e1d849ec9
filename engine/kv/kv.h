/* kv.h: the paged, ragged KV cache: one slab cut in pages of 16 entries of one KV head. Internal to engine/.
 *
 * Every (sequence, layer, kv head) has its own page list and length. Logical position (tokens seen) and physical length
 * (entries kept) are two numbers. Keys are stored after RoPE at their original position. A page holds
 *     number key[head_dim][16]    transposed, so that 16 logits come from one pass over head_dim
 *     number value[16][head_dim]
 *     int32_t position[16]
 * where a number is a float or its upper half, bf16, rounded to nearest even. Sequences whose policy asks for it also
 * have float mass[16] a page, the attention that each entry received since it was appended; it lies beside the pages
 * and is counted with them. A pool belongs to one engine and one thread; nothing here locks. Memory is allocated by
 * kv_pool_new and kv_pool_prepare alone.
 */
#ifndef KVF_KV_H
#define KVF_KV_H

#include <stdint.h>
#include "alloc/compact.h"
#include "alloc/err.h"
#include "alloc/policy.h"

#define KV_PAGE_ENTRIES 16

struct kv_shape {
    int layers, kv_heads, group, head_dim;
    int window_tokens; /* rows of the query ring, >= 1 */
    int max_entries;   /* most entries of one (layer, head): the context length */
    int max_sequences;
    int half;    /* 1: K and V are stored as bf16 */
    int threads; /* most threads of kv_compact; 0: one */
};
struct kv_pool;
struct pool; /* engine/cpu/pool.h */
struct kv_seq;

/* `bytes` bounds the slab; it is reserved at once (address space) and touched as pages are used. */
KVF_MUSTCHECK int kv_pool_new(const struct kv_shape *shape, int64_t bytes, struct kv_pool **out, struct kvf_err *err);
void kv_pool_destroy(struct kv_pool **pool);

/* Allocates what sequences with this policy need beyond the usual, where no earlier call did: room to gather values,
 * attention mass (address space, touched as it is used). Before the first such sequence is opened. */
KVF_MUSTCHECK int kv_pool_prepare(struct kv_pool *pool, const struct policy *policy, struct kvf_err *err);

/* Attention mass is kept where `policy` (NULL: none) reads it; the pool was prepared for that. KVF_ENOMEM when
 * max_sequences are open. */
KVF_MUSTCHECK int kv_seq_open(struct kv_pool *pool, const struct policy *policy, struct kv_seq **out,
                              struct kvf_err *err);
/* Returns all its pages. */
void kv_seq_close(struct kv_pool *pool, struct kv_seq **seq);

/* Makes room for `tokens` more entries in every (layer, head), or changes nothing and returns KVF_ENOMEM. Room is
 * counted from the present length: asking twice before kv_put sets aside no more. */
KVF_MUSTCHECK int kv_reserve(struct kv_pool *pool, struct kv_seq *seq, int tokens);
/* Pages that no sequence holds or has reserved. */
int64_t kv_pool_free_pages(const struct kv_pool *pool);
/* Most pages that were in use at once since kv_pool_new. */
int64_t kv_pool_peak_pages(const struct kv_pool *pool);
/* Most pages that one sequence of `entries` mean entries a (layer, head) can need, however unevenly they lie: one entry
 * may be alone in the last page of every list. With kv_entries_bound: admission by budget. */
int64_t kv_pages_needed(const struct kv_pool *pool, int64_t entries);

/* Threads may put different sequences at once. Appends `tokens` rows of one layer at logical positions
 * first_position...: key, value [tokens][kv_heads][head_dim], query [tokens][kv_heads * group][head_dim] (after RoPE;
 * the last window rows are remembered). Room was reserved. `tokens_seen` moves when layer 0 is put. */
void kv_put(struct kv_pool *pool, struct kv_seq *seq, int layer, int tokens, int first_position, const float *key,
            const float *value, const float *query);

/* What attention reads: pages[p] -> key[head_dim][16] then value[16][head_dim] then position[16]. */
struct kv_view {
    const void *const *pages;
    int entries;
    int half;
    float *mass; /* [entries rounded up to 16] for attention to add to; NULL: not kept */
};
struct kv_view kv_head(const struct kv_pool *pool, const struct kv_seq *seq, int layer, int head);

int kv_tokens_seen(const struct kv_seq *seq);
/* Last min(wanted, window, seen) queries of a layer, oldest first, [rows][kv_heads * group][head_dim]; copies into out.
 */
int kv_queries(const struct kv_pool *pool, const struct kv_seq *seq, int layer, int wanted, float *out);
/* Copies of one head's entries in list order, for tests, calibration and the debug dump. Any out may be NULL. */
void kv_read_head(const struct kv_pool *pool, const struct kv_seq *seq, int layer, int head, float *keys, float *values,
                  int32_t *positions);

/* ---- compaction ---- */

/* When a sequence is compacted: asked once its prompt is in the cache, and after every token that follows. */
struct kv_schedule {
    int prompt_tokens, budget_tokens, interval_tokens;
};
/* The schedule of policy.h and alloc.md 2.2: first when tokens_seen reaches budget + interval; for a prompt longer than
 * the budget when it is in the cache (PROMPT_AT_PREFILL) or `interval` tokens later; then every interval tokens. */
int kv_compaction_due(const struct kv_seq *seq, const struct policy *policy, const struct kv_schedule *schedule);
/* tokens_seen at which the first is due. */
int64_t kv_first_compaction(const struct policy *policy, const struct kv_schedule *schedule);
/* Most entries, a mean over (layer, head), that a sequence of up to longest_tokens tokens holds at any time on that
 * schedule. A compaction leaves layers * kv_heads * budget entries at most, whatever the scores, the plan or the
 * router; until the next one comes every head gains `interval`; the prompt is there whole before the first one. So
 *     max(prompt, budget) + interval, or max(prompt, budget + interval) where the prompt is compacted at prefill,
 * and never more than the length. Where compactions never happen or may cease (full cache, stop_after_think): the
 * length. */
int64_t kv_entries_bound(const struct policy *policy, const struct kv_schedule *schedule, int64_t longest_tokens);

struct kv_compaction_stats {
    int64_t evicted_entries; /* over all layers and heads */
    int64_t kept_entries;
    int64_t work_ns; /* over all layers, each by the thread that did it */
};
/* What scorers read of the model. */
struct kv_model {
    const float *rope_frequency; /* [head_dim / 2]; NULL: not needed */
    const float *output;         /* [layers][kv_heads * group][head_dim][hidden]; NULL: not needed */
    int hidden;
};
/* One sequence that is due. */
struct kv_due {
    struct kv_seq *seq;
    const struct policy *policy;
    const struct kv_model *model; /* may be NULL where the policy reads nothing of it */
    const int64_t *layer_budget;  /* [layers]; not read where the plan is online */
    int budget_tokens;            /* read where the plan is online */
    int protected_tokens;         /* of the prompt, which always stay; 0: none */
    double *memory;               /* policy_memory_doubles, the sequence's; NULL where that is 0 */
    uint64_t seed;                /* of the sample, for the random scorer */
    /* out */
    int rc;
    struct kvf_err err; /* where rc is not 0 */
    struct kv_compaction_stats stats;
};
/* Compacts every layer of every sequence to its budget, layers side by side on `threads` (NULL: this thread alone).
 * Where a plan is online all layers are measured first. Pages are packed in place and freed pages go back to the pool,
 * with the room that kv_reserve made. What stays does not depend on the number of threads. A layer that is refused (rc
 * KVF_EINVAL, the line begins with its number) stays as it was; the cache is sound. No sequence is there twice; count
 * <= max_sequences. */
void kv_compact(struct kv_pool *pool, struct kv_due *due, int count, const struct compact_kernels *kernels,
                struct pool *threads);

/* ---- figures ---- */
/* Pages in use x bytes of a page, its mass included where it is kept. */
int64_t kv_seq_live_bytes(const struct kv_pool *pool, const struct kv_seq *seq);
int64_t kv_seq_entries(const struct kv_seq *seq); /* over all layers and heads */
/* All pages, their mass included once the pool is prepared for that. */
int64_t kv_pool_reserved_bytes(const struct kv_pool *pool);
int64_t kv_pool_page_bytes(const struct kv_pool *pool);
int64_t kv_pool_workspace_bytes(const struct kv_pool *pool); /* page tables, query rings, compaction scratch */

/* Walks the pool: every page is on the free list or in exactly one list of one open sequence, every list is as long as
 * its length needs, positions ascend. Any thread that owns the pool; tests call it after every scenario. */
KVF_MUSTCHECK int kv_check(const struct kv_pool *pool, struct kvf_err *err);

#endif
