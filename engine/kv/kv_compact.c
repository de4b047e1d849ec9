/* kv_compact.c: when a sequence is compacted, and how: gather the keys, let alloc/ decide, pack what stays in place. */
#include "engine/kv/kv_internal.h"

#include <string.h>

int kv_compaction_due(const struct kv_seq *seq, const struct policy *policy, int budget_tokens, int interval_tokens)
{
    if (policy->scorer == SCORER_NONE) return 0;
    if (seq->compacted_at == 0) return seq->tokens_seen >= (int64_t)budget_tokens + interval_tokens;
    return seq->tokens_seen - seq->compacted_at >= interval_tokens;
}

/* Finaliser of splitmix64 over the sample's seed and the layer. */
static uint64_t layer_key(uint64_t seed, int layer)
{
    uint64_t z = seed + 0x9E3779B97F4A7C15u * ((uint64_t)layer + 1);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Keys out of their transposed pages into rows, so that scoring reads them one after the other. */
static void head_gather(struct kv_pool *pool, const struct kv_list *list, int head)
{
    int dim = pool->shape.head_dim;
    float *keys = pool->gathered + (int64_t)head * pool->gather_entries * dim;
    int32_t *positions = pool->gathered_positions + (int64_t)head * pool->gather_entries;
    for (int first = 0; first < list->entries; first += KV_PAGE_ENTRIES) {
        const float *page = list->pages[first / KV_PAGE_ENTRIES];
        int lanes = list->entries - first < KV_PAGE_ENTRIES ? list->entries - first : KV_PAGE_ENTRIES;
        for (int lane = 0; lane < lanes; lane++) {
            float *to = keys + (int64_t)(first + lane) * dim;
            for (int k = 0; k < dim; k++) to[k] = page[k * KV_PAGE_ENTRIES + lane];
        }
        memcpy(positions + first, kv_entry_position(list, first, dim), (size_t)lanes * sizeof *positions);
    }
    pool->head_entries[head] = list->entries;
}

/* kept[] ascends, so an entry only ever moves towards the front, onto one that moved before it or that goes. */
static void head_pack(const struct kv_pool *pool, struct kv_list *list, int head, const int32_t *kept, int count)
{
    int dim = pool->shape.head_dim;
    const float *keys = pool->head_keys[head];
    const int32_t *positions = pool->head_positions[head];
    for (int e = 0; e < count; e++) {
        int from = kept[e];
        if (from == e) continue;
        float *to = kv_entry_key(list, e);
        for (int k = 0; k < dim; k++) to[k * KV_PAGE_ENTRIES] = keys[(int64_t)from * dim + k];
        memcpy(kv_entry_value(list, e, dim), kv_entry_value(list, from, dim), (size_t)dim * sizeof *to);
        *kv_entry_position(list, e, dim) = positions[from];
    }
    list->entries = count;
}

static int layer_compact(struct kv_pool *pool, struct kv_seq *seq, int layer, const struct policy *policy,
                         int64_t layer_budget, uint64_t seed, const struct compact_kernels *kernels,
                         struct kv_compaction_stats *stats, struct kvf_err *err)
{
    const struct kv_shape *shape = &pool->shape;
    int64_t query_width = (int64_t)shape->kv_heads * shape->group * shape->head_dim;
    for (int h = 0; h < shape->kv_heads; h++) head_gather(pool, kv_list_of(pool, seq, layer, h), h);
    int rows = kv_queries(pool, seq, layer, pool->queries);
    int used = rows < policy->window_tokens ? rows : policy->window_tokens;

    struct compact_input input = {
        .kv_heads = shape->kv_heads,
        .group = shape->group,
        .head_dim = shape->head_dim,
        .keys = pool->head_keys,
        .positions = pool->head_positions,
        .entries = pool->head_entries,
        .queries = pool->queries + (rows - used) * query_width,
        .query_rows = used,
        .layer_budget = layer_budget,
        .random_key = layer_key(seed, layer),
    };
    int noop = 0;
    int rc = compact_layer(policy, &input, kernels, pool->work, pool->kept, pool->keep_count, &noop, err);
    if (rc != 0) return rc;

    seq->room[layer] = 0;
    for (int h = 0; h < shape->kv_heads; h++) {
        struct kv_list *list = kv_list_of(pool, seq, layer, h);
        int before = list->entries;
        if (!noop) head_pack(pool, list, h, pool->kept[h], pool->keep_count[h]);
        kv_list_trim(pool, seq, list);
        stats->evicted_entries += before - list->entries;
        stats->kept_entries += list->entries;
    }
    return 0;
}

int kv_compact(struct kv_pool *pool, struct kv_seq *seq, const struct policy *policy, const int64_t *layer_budget,
               uint64_t seed, const struct compact_kernels *kernels, struct kv_compaction_stats *stats,
               struct kvf_err *err)
{
    *stats = (struct kv_compaction_stats){0};
    if (policy->scorer != SCORER_NONE && policy->window_tokens > pool->shape.window_tokens) {
        return kvf_fail(err, KVF_EINVAL, "kv compact: window of policy %s: expected at most %d tokens, got %d",
                        policy->name, pool->shape.window_tokens, policy->window_tokens);
    }
    for (int layer = 0; layer < pool->shape.layers; layer++) {
        int rc = layer_compact(pool, seq, layer, policy, layer_budget[layer], seed, kernels, stats, err);
        if (rc != 0) return rc;
    }
    seq->compacted_at = seq->tokens_seen;
    return 0;
}
