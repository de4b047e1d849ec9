/* kv_compact.c: when a sequence is compacted, and how: gather the keys, let alloc/ decide, pack what stays in place. */
#include <string.h>

#include "engine/cpu/pool.h"
#include "engine/kv/kv_internal.h"

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
static void head_gather(const struct kv_pool *pool, struct kv_scratch *scratch, const struct kv_list *list, int head)
{
    int dim = pool->shape.head_dim;
    float *keys = scratch->gathered + (int64_t)head * pool->gather_entries * dim;
    int32_t *positions = scratch->gathered_positions + (int64_t)head * pool->gather_entries;
    for (int e = 0; e < list->entries; e++) kv_key_read(pool, list, e, keys + (int64_t)e * dim);
    for (int first = 0; first < list->entries; first += KV_PAGE_ENTRIES) {
        int lanes = list->entries - first < KV_PAGE_ENTRIES ? list->entries - first : KV_PAGE_ENTRIES;
        memcpy(positions + first, kv_entry_position(pool, list, first), (size_t)lanes * sizeof *positions);
    }
    scratch->head_entries[head] = list->entries;
}

/* Key numbers of one page: to[k][lane] = from[lane][k * 16] for 16 lanes at once, which makes whole rows of it. */
#define KEYS_PACK(type)                                                                                                \
    for (int k = 0; k < dim; k++) {                                                                                    \
        type row[KV_PAGE_ENTRIES];                                                                                     \
        for (int lane = 0; lane < KV_PAGE_ENTRIES; lane++) {                                                           \
            row[lane] = ((const type *)from[lane])[k * KV_PAGE_ENTRIES];                                               \
        }                                                                                                              \
        memcpy((type *)page + (ptrdiff_t)k * KV_PAGE_ENTRIES, row, sizeof row);                                        \
    }

/* kept[] ascends, so an entry only ever moves towards the front, onto one that moved before it or that goes: a page is
 * made of itself and of later ones, row by row. */
static void head_pack(const struct kv_pool *pool, const struct kv_scratch *scratch, struct kv_list *list, int head)
{
    int dim = pool->shape.head_dim, count = scratch->keep_count[head], first = 0;
    const int32_t *kept = scratch->kept[head], *positions = scratch->head_positions[head];
    size_t value_bytes = (size_t)dim * (size_t)pool->number_bytes;
    while (first < count && kept[first] == first) first++;
    for (int e = first; e < count; e++) {
        memcpy(kv_entry_value(pool, list, e), kv_entry_value(pool, list, kept[e]), value_bytes);
        *kv_entry_position(pool, list, e) = positions[kept[e]];
    }
    for (first -= first % KV_PAGE_ENTRIES; first < count; first += KV_PAGE_ENTRIES) {
        unsigned char *page = list->pages[first / KV_PAGE_ENTRIES];
        const void *from[KV_PAGE_ENTRIES];
        for (int lane = 0; lane < KV_PAGE_ENTRIES; lane++) { /* lanes past the last entry: anything that is there */
            int e = first + lane < count ? kept[first + lane] : kept[count - 1];
            from[lane] = list->pages[e / KV_PAGE_ENTRIES] + e % KV_PAGE_ENTRIES * pool->number_bytes;
        }
        if (pool->shape.half) {
            KEYS_PACK(uint16_t)
        } else {
            KEYS_PACK(float)
        }
    }
    list->entries = count;
}

/* Freed pages stay in their list until layer_settle: only the lists of this layer are touched. */
static int layer_compact(struct kv_pool *pool, const struct kv_due *due, int layer,
                         const struct compact_kernels *kernels, struct kv_scratch *scratch, struct kvf_err *err)
{
    const struct kv_shape *shape = &pool->shape;
    const struct policy *policy = due->policy;
    if (policy->scorer != SCORER_NONE && policy->window_tokens > shape->window_tokens) {
        return kvf_fail(err, KVF_EINVAL, "kv compact: window of policy %s: expected at most %d tokens, got %d",
                        policy->name, shape->window_tokens, policy->window_tokens);
    }
    for (int h = 0; h < shape->kv_heads; h++) head_gather(pool, scratch, kv_list_of(pool, due->seq, layer, h), h);
    int rows = kv_queries(pool, due->seq, layer, scratch->queries);
    int used = rows < policy->window_tokens ? rows : policy->window_tokens, noop = 0;
    struct compact_input input = {
        .kv_heads = shape->kv_heads,
        .group = shape->group,
        .head_dim = shape->head_dim,
        .keys = scratch->head_keys,
        .positions = scratch->head_positions,
        .entries = scratch->head_entries,
        .queries = scratch->queries + (int64_t)(rows - used) * shape->kv_heads * shape->group * shape->head_dim,
        .query_rows = used,
        .layer_budget = due->layer_budget[layer],
        .random_key = layer_key(due->seed, layer),
    };
    int rc = compact_layer(policy, &input, kernels, scratch->work, scratch->kept, scratch->keep_count, &noop, err);
    if (rc != 0 || noop) return rc;
    for (int h = 0; h < shape->kv_heads; h++) head_pack(pool, scratch, kv_list_of(pool, due->seq, layer, h), h);
    return 0;
}

struct compaction {
    struct kv_pool *pool;
    struct kv_due *due;
    const struct compact_kernels *kernels;
};

/* Item: one layer of one sequence. */
static void compaction_item(void *arg, int item, int thread)
{
    const struct compaction *c = arg;
    int layers = c->pool->shape.layers;
    c->pool->layer_rc[item] =
        layer_compact(c->pool, &c->due[item / layers], item % layers, c->kernels, &c->pool->scratch[thread], NULL);
}

static void due_settle(struct kv_pool *pool, struct kv_due *due, const int *layer_rc,
                       const struct compact_kernels *kernels)
{
    const struct kv_shape *shape = &pool->shape;
    due->rc = 0;
    due->stats.kept_entries = 0;
    for (int layer = 0; layer < shape->layers; layer++) {
        /* A refusal changed nothing, so asking again says why. */
        if (layer_rc[layer] != 0 && due->rc == 0) {
            due->rc = layer_compact(pool, due, layer, kernels, &pool->scratch[0], &due->err);
        }
        due->seq->room[layer] = 0;
        for (int h = 0; h < shape->kv_heads; h++) {
            struct kv_list *list = kv_list_of(pool, due->seq, layer, h);
            kv_list_trim(pool, due->seq, list);
            due->stats.kept_entries += list->entries;
        }
    }
    due->stats.evicted_entries -= due->stats.kept_entries; /* what was held before, until here */
    due->seq->compacted_at = due->seq->tokens_seen;
}

void kv_compact(struct kv_pool *pool, struct kv_due *due, int count, const struct compact_kernels *kernels,
                struct pool *threads)
{
    struct compaction compaction = {pool, due, kernels};
    int layers = pool->shape.layers;
    for (int i = 0; i < count; i++) due[i].stats.evicted_entries = kv_seq_entries(due[i].seq);
    if (threads == NULL) {
        for (int item = 0; item < count * layers; item++) compaction_item(&compaction, item, 0);
    } else {
        pool_run(threads, compaction_item, &compaction, count * layers);
    }
    for (int i = 0; i < count; i++) due_settle(pool, &due[i], pool->layer_rc + (int64_t)i * layers, kernels);
}
