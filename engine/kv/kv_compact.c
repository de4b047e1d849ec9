/* kv_compact.c: when a sequence is compacted, and how: gather what the scorer reads, let alloc/ decide, pack what stays
 * in place. */
#include <string.h>

#include "alloc/plan.h"
#include "alloc/scorer.h"
#include "alloc/wide.h"
#include "engine/clock.h"
#include "engine/cpu/pool.h"
#include "engine/kv/kv_internal.h"

/* ---- when ---- */

int64_t kv_first_compaction(const struct policy *policy, const struct kv_schedule *schedule)
{
    int64_t prompt = schedule->prompt_tokens, budget = schedule->budget_tokens;
    if (prompt <= budget) return budget + schedule->interval_tokens;
    return policy->prompt == PROMPT_AT_PREFILL ? prompt : prompt + schedule->interval_tokens;
}

int kv_compaction_due(const struct kv_seq *seq, const struct policy *policy, const struct kv_schedule *schedule)
{
    if (policy->scorer == SCORER_NONE) return 0;
    if (seq->compacted_at == 0) return seq->tokens_seen >= kv_first_compaction(policy, schedule);
    return seq->tokens_seen - seq->compacted_at >= schedule->interval_tokens;
}

int64_t kv_entries_bound(const struct policy *policy, const struct kv_schedule *schedule, int64_t longest_tokens)
{
    if (policy->scorer == SCORER_NONE || policy->stop_after_think) return longest_tokens;
    int64_t most = (int64_t)schedule->budget_tokens + schedule->interval_tokens,
            first = kv_first_compaction(policy, schedule);
    if (most < first) most = first;
    return most < longest_tokens ? most : longest_tokens;
}

/* ---- how ---- */

/* Finaliser of splitmix64 over the sample's seed and the layer. */
static uint64_t layer_key(uint64_t seed, int layer)
{
    uint64_t z = seed + 0x9E3779B97F4A7C15u * ((uint64_t)layer + 1);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* What the scorer reads: keys where they lie, or out of their transposed pages into rows; values only for scorers that
 * read them, and positions likewise. */
static void head_gather(const struct kv_pool *pool, const struct kv_seq *seq, int layer, int head, int rows, int values,
                        int positions, struct kv_scratch *scratch)
{
    const struct kv_list *list = kv_list_of(pool, seq, layer, head);
    int dim = pool->shape.head_dim;
    int64_t first_row = (int64_t)head * pool->gather_entries;
    float *keys = scratch->gathered + first_row * dim;
    for (int e = 0; rows && e < list->entries; e++) kv_key_read(pool, list, e, keys + (int64_t)e * dim);
    for (int e = 0; values && e < list->entries; e++)
        kv_value_read(pool, list, e, scratch->gathered_values + (first_row + e) * dim);
    for (int e = 0; positions && e < list->entries; e++)
        scratch->gathered_positions[first_row + e] = *kv_entry_position(pool, list, e);
    scratch->head_tiles[head] =
        (struct compact_tiles){(const void *const *)list->pages, pool->shape.half ? PAGE_BF16 : PAGE_F32};
    scratch->head_entries[head] = list->entries;
    scratch->head_mass[head] = kv_list_mass(pool, seq, layer, head);
}

/* All that alloc/ is told about one layer, but for its budget. */
static struct compact_input layer_gather(const struct kv_pool *pool, const struct kv_due *due, int layer,
                                         struct kv_scratch *scratch)
{
    const struct kv_shape *shape = &pool->shape;
    const struct policy *policy = due->policy;
    const struct kv_model none = {0}, *model = due->model != NULL ? due->model : &none;
    int values = (scorer_at(policy->scorer)->needs & NEEDS_VALUES) && scratch->gathered_values != NULL;
    int64_t query_row = (int64_t)shape->kv_heads * shape->group * shape->head_dim;
    int by_rows = compact_reads_rows(policy);
    int positions = (scorer_at(policy->scorer)->needs & NEEDS_POSITIONS) || due->protected_tokens > 0;
    for (int h = 0; h < shape->kv_heads; h++)
        head_gather(pool, due->seq, layer, h, by_rows, values, positions, scratch);
    int rows = kv_queries(pool, due->seq, layer, policy->window_tokens, scratch->queries);
    return (struct compact_input){
        .kv_heads = shape->kv_heads,
        .group = shape->group,
        .head_dim = shape->head_dim,
        .keys = by_rows ? scratch->head_keys : NULL,
        .key_tiles = scratch->head_tiles,
        .values = values ? scratch->head_values : NULL,
        .mass = due->seq->mass != NULL ? scratch->head_mass : NULL,
        .positions = positions ? scratch->head_positions : NULL,
        .entries = scratch->head_entries,
        .queries = scratch->queries,
        .query_rows = rows,
        .query_position = due->seq->tokens_seen - 1,
        .rope_frequency = model->rope_frequency,
        .output = model->output != NULL ? model->output + layer * query_row * model->hidden : NULL,
        .hidden = model->hidden,
        .protected_positions = due->protected_tokens,
        .random_key = layer_key(due->seed, layer),
        .demand = policy_memory_layer(due->memory, shape->layers, shape->kv_heads, layer),
    };
}

/* Keys of one page, a row of 16 lanes at a time: lane i of `to` becomes lane from[i] of `near`, or of `far` from 16 on;
 * `to` may be either of them. */
#define KEYS_PACK(name, number, index)                                                                                 \
    KVF_WIDE static void name(const void *near, const void *far, const int *from, int dim, void *to)                   \
    {                                                                                                                  \
        typedef number row __attribute__((vector_size(KV_PAGE_ENTRIES * sizeof(number))));                             \
        index __attribute__((vector_size(KV_PAGE_ENTRIES * sizeof(number)))) lanes;                                    \
        for (int i = 0; i < KV_PAGE_ENTRIES; i++) lanes[i] = (index)from[i];                                           \
        for (ptrdiff_t k = 0; k < (ptrdiff_t)dim * KV_PAGE_ENTRIES; k += KV_PAGE_ENTRIES) {                            \
            row a, b;                                                                                                  \
            memcpy(&a, (const number *)near + k, sizeof a);                                                            \
            memcpy(&b, (const number *)far + k, sizeof b);                                                             \
            a = __builtin_shuffle(a, b, lanes);                                                                        \
            memcpy((number *)to + k, &a, sizeof a);                                                                    \
        }                                                                                                              \
    }
KEYS_PACK(keys_pack_float, float, int32_t)
KEYS_PACK(keys_pack_half, uint16_t, int16_t)

/* Keys of `lanes` entries kept[] make up one page. They ascend and come from it or from later pages: the first two
 * sources in one go, each further one into what is there. */
static void page_pack(const struct kv_pool *pool, const struct kv_list *list, const int32_t *kept, int lanes, int page)
{
    const int first = kept[0] / KV_PAGE_ENTRIES, last = kept[lanes - 1] / KV_PAGE_ENTRIES;
    const void *near = list->pages[first];
    int far = first, is_begun = 0;
    do {
        int from[KV_PAGE_ENTRIES];
        far += far < last;
        for (int i = 0; i < KV_PAGE_ENTRIES; i++) { /* lanes past the last entry: anything that is there */
            const int entry = kept[i < lanes ? i : lanes - 1], lane = entry % KV_PAGE_ENTRIES;
            from[i] = entry / KV_PAGE_ENTRIES == far ? KV_PAGE_ENTRIES + lane : is_begun ? i : lane;
        }
        (pool->shape.half ? keys_pack_half : keys_pack_float)(near, list->pages[far], from, pool->shape.head_dim,
                                                              list->pages[page]);
        near = list->pages[page];
        is_begun = 1;
    } while (far < last);
}

static inline void value_copy(void *to, const void *from, size_t bytes)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    for (; bytes >= 64; bytes -= 64, in += 64, out += 64) memcpy(out, in, 64); /* which is no call */
    if (bytes > 0) memcpy(out, in, bytes);
}

/* kept[] ascends, so an entry only ever moves towards the front, onto one that moved before it or that goes. */
static void head_pack(const struct kv_pool *pool, const struct kv_seq *seq, int layer, int head,
                      const struct kv_scratch *scratch)
{
    struct kv_list *list = kv_list_of(pool, seq, layer, head);
    float *mass = kv_list_mass(pool, seq, layer, head);
    const int count = scratch->keep_count[head];
    const int32_t *kept = scratch->kept[head];
    const size_t value_bytes = (size_t)pool->shape.head_dim * (size_t)pool->number_bytes;
    int first = 0;
    while (first < count && kept[first] == first) first++;
    for (int e = first; e < count; e++) {
        value_copy(kv_entry_value(pool, list, e), kv_entry_value(pool, list, kept[e]), value_bytes);
        *kv_entry_position(pool, list, e) = *kv_entry_position(pool, list, kept[e]);
        if (mass != NULL) mass[e] = mass[kept[e]];
    }
    for (first -= first % KV_PAGE_ENTRIES; first < count; first += KV_PAGE_ENTRIES) {
        const int lanes = count - first < KV_PAGE_ENTRIES ? count - first : KV_PAGE_ENTRIES;
        page_pack(pool, list, kept + first, lanes, first / KV_PAGE_ENTRIES);
    }
    list->entries = count;
}

/* Puts the layer's number before what was refused in it. */
static int layer_fail(struct kvf_err *err, int code, int layer)
{
    if (err == NULL) return code;
    struct kvf_err inner = *err;
    return kvf_fail(err, (enum kvf_code)code, "layer %d: %.*s", layer, KVF_ERR_MAX - 32, inner.text);
}

static int window_check(const struct kv_pool *pool, const struct policy *policy, struct kvf_err *err)
{
    if (policy->scorer == SCORER_NONE || policy->window_tokens <= pool->shape.window_tokens) return 0;
    return kvf_fail(err, KVF_EINVAL, "kv compact: window of policy %s: expected at most %d tokens, got %d",
                    policy->name, pool->shape.window_tokens, policy->window_tokens);
}

struct compaction {
    struct kv_pool *pool;
    struct kv_due *due;
    const struct compact_kernels *kernels;
};

/* Freed pages stay in their list until due_settle: only the lists of this layer are touched. */
static int layer_compact(const struct compaction *c, int item, struct kv_scratch *scratch, struct kvf_err *err)
{
    struct kv_pool *pool = c->pool;
    const struct kv_due *due = &c->due[item / pool->shape.layers];
    int layer = item % pool->shape.layers, noop = 0;
    int rc = window_check(pool, due->policy, err);
    if (rc != 0) return layer_fail(err, rc, layer);
    struct compact_input input = layer_gather(pool, due, layer, scratch);
    input.layer_budget = policy_plan_is_online(due->policy) ? pool->measured_budget[item] : due->layer_budget[layer];
    rc = compact_layer(due->policy, &input, c->kernels, scratch->work, scratch->kept, scratch->keep_count, &noop, err);
    if (rc != 0) return layer_fail(err, rc, layer);
    for (int h = 0; !noop && h < pool->shape.kv_heads; h++) head_pack(pool, due->seq, layer, h, scratch);
    return 0;
}

static int layer_measure(const struct compaction *c, int item, struct kv_scratch *scratch, struct kvf_err *err)
{
    struct kv_pool *pool = c->pool;
    const struct kv_due *due = &c->due[item / pool->shape.layers];
    int layer = item % pool->shape.layers;
    int rc = window_check(pool, due->policy, err);
    if (rc != 0) return layer_fail(err, rc, layer);
    struct compact_input input = layer_gather(pool, due, layer, scratch);
    rc = plan_measure(due->policy, &input, c->kernels, scratch->work, &pool->statistic[item], err);
    return rc == 0 ? 0 : layer_fail(err, rc, layer);
}

/* Items: one layer of one sequence. */
static void measure_item(void *arg, int item, int thread)
{
    const struct compaction *c = arg;
    if (!policy_plan_is_online(c->due[item / c->pool->shape.layers].policy)) return;
    const int64_t begin = clock_ns();
    c->pool->layer_rc[item] = layer_measure(c, item, &c->pool->scratch[thread], NULL);
    c->pool->layer_ns[item] += clock_ns() - begin;
}

static void compact_item(void *arg, int item, int thread)
{
    const struct compaction *c = arg;
    if (c->pool->plan_rc[item / c->pool->shape.layers] != 0) return;
    const int64_t begin = clock_ns();
    c->pool->layer_rc[item] = layer_compact(c, item, &c->pool->scratch[thread], NULL);
    c->pool->layer_ns[item] += clock_ns() - begin;
}

/* The budgets of an online plan, from what its layers were measured at. */
static int plan_settle(const struct compaction *c, int index, struct kvf_err *err)
{
    const struct kv_shape *shape = &c->pool->shape;
    const struct kv_due *due = &c->due[index];
    int64_t held[PROFILE_MAX_LAYERS] = {0};
    int first = index * shape->layers;
    if (!policy_plan_is_online(due->policy)) return 0;
    if (shape->layers > PROFILE_MAX_LAYERS)
        return kvf_fail(err, KVF_EUNSUPPORTED, "policy %s: expected a model of at most %d layers, got %d",
                        due->policy->name, PROFILE_MAX_LAYERS, shape->layers);
    for (int l = 0; l < shape->layers; l++) {
        /* A refusal changed nothing, so asking again says why. */
        if (c->pool->layer_rc[first + l] != 0) return layer_measure(c, first + l, &c->pool->scratch[0], err);
        for (int h = 0; h < shape->kv_heads; h++) held[l] += kv_list_of(c->pool, due->seq, l, h)->entries;
    }
    return plan_refresh(due->policy, c->pool->statistic + first, held, policy_memory_plan(due->memory), shape->layers,
                        shape->kv_heads, due->budget_tokens, c->pool->measured_budget + first, err);
}

static void due_settle(const struct compaction *c, int index)
{
    struct kv_pool *pool = c->pool;
    struct kv_due *due = &c->due[index];
    const struct kv_shape *shape = &pool->shape;
    due->rc = pool->plan_rc[index];
    due->stats.kept_entries = due->stats.work_ns = 0;
    for (int layer = 0; layer < shape->layers; layer++) {
        int item = index * shape->layers + layer;
        if (due->rc == 0 && pool->layer_rc[item] != 0)
            due->rc = layer_compact(c, item, &pool->scratch[0], &due->err); /* as in plan_settle */
        due->stats.work_ns += pool->layer_ns[item];
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

static void items_run(struct compaction *c, void (*work)(void *, int, int), int items, struct pool *threads)
{
    if (threads != NULL) {
        pool_run(threads, work, c, items);
        return;
    }
    for (int item = 0; item < items; item++) work(c, item, 0);
}

void kv_compact(struct kv_pool *pool, struct kv_due *due, int count, const struct compact_kernels *kernels,
                struct pool *threads)
{
    const int items = count * pool->shape.layers;
    struct compaction compaction = {pool, due, kernels};
    int online = 0;
    memset(pool->layer_ns, 0, (size_t)items * sizeof *pool->layer_ns);
    for (int i = 0; i < count; i++) {
        due[i].stats.evicted_entries = kv_seq_entries(due[i].seq);
        online |= policy_plan_is_online(due[i].policy);
    }
    if (online) items_run(&compaction, measure_item, items, threads);
    for (int i = 0; i < count; i++) pool->plan_rc[i] = plan_settle(&compaction, i, &due[i].err);
    items_run(&compaction, compact_item, items, threads);
    for (int i = 0; i < count; i++) due_settle(&compaction, i);
}
