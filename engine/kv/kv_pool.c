/* kv_pool.c: pages, page lists, sequences, query rings. */
#include "engine/kv/kv_internal.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "alloc/scorer.h"

/* Attention mass of one page's entries. */
#define MASS_PAGE_BYTES ((int64_t)(KV_PAGE_ENTRIES * sizeof(float)))

/* ---- the pool ---- */

/* count[0] * count[1] * count[2] zeroed elements; counted as workspace. Large blocks are untouched address space. */
static void *zeroed_new(struct kv_pool *pool, size_t size, int64_t a, int64_t b, int64_t c)
{
    int64_t count;
    size_t bytes;
    if (__builtin_mul_overflow(a, b, &count) || __builtin_mul_overflow(count, c, &count)) return NULL;
    if (__builtin_mul_overflow((size_t)count, size, &bytes) || bytes > PTRDIFF_MAX) return NULL;
    pool->workspace_bytes += (int64_t)bytes;
    return calloc((size_t)count, size);
}

static int shape_check(const struct kv_shape *shape, struct kvf_err *err)
{
    const struct {
        const char *name;
        int value;
    } fields[] = {{"layers", shape->layers},
                  {"kv_heads", shape->kv_heads},
                  {"group", shape->group},
                  {"head_dim", shape->head_dim},
                  {"window_tokens", shape->window_tokens},
                  {"max_entries", shape->max_entries},
                  {"max_sequences", shape->max_sequences}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].value < 1 || fields[i].value > 1 << 24) {
            return kvf_fail(err, KVF_EINVAL, "kv pool: %s: expected 1 to %d, got %d", fields[i].name, 1 << 24,
                            fields[i].value);
        }
    }
    if ((int64_t)shape->layers * shape->kv_heads > 1 << 20) {
        return kvf_fail(err, KVF_EINVAL, "kv pool: layers x kv_heads: expected at most %d, got %d x %d", 1 << 20,
                        shape->layers, shape->kv_heads);
    }
    return 0;
}

/* False when memory is short; kv_pool_destroy frees what is there. */
static int pool_allocate(struct kv_pool *pool)
{
    const struct kv_shape *shape = &pool->shape;
    int64_t sequences = shape->max_sequences, layers = shape->layers, heads = shape->kv_heads;
    int64_t query_row = heads * shape->group * (int64_t)shape->head_dim;

    size_t slab_bytes = (size_t)pool->pages * (size_t)pool->page_bytes;
    void *slab = mmap(NULL, slab_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == MAP_FAILED) return 0;
    /* Attention jumps from page to page: small pages of the system cost a TLB miss each. A refusal changes nothing
     * else. */
    madvise(slab, slab_bytes, MADV_HUGEPAGE);
    pool->slab = slab;

    return (pool->free = zeroed_new(pool, sizeof *pool->free, pool->pages, 1, 1)) != NULL &&
           (pool->seqs = zeroed_new(pool, sizeof *pool->seqs, sequences, 1, 1)) != NULL &&
           (pool->lists = zeroed_new(pool, sizeof *pool->lists, sequences, layers, heads)) != NULL &&
           (pool->tables = zeroed_new(pool, sizeof *pool->tables, sequences, layers * heads, pool->list_pages)) !=
               NULL &&
           (pool->room = zeroed_new(pool, sizeof *pool->room, sequences, layers, 1)) != NULL &&
           (pool->queries_put = zeroed_new(pool, sizeof *pool->queries_put, sequences, layers, 1)) != NULL &&
           (pool->rings = zeroed_new(pool, sizeof *pool->rings, sequences * layers, shape->window_tokens, query_row)) !=
               NULL &&
           (pool->layer_rc = zeroed_new(pool, sizeof *pool->layer_rc, sequences, layers, 1)) != NULL &&
           (pool->layer_ns = zeroed_new(pool, sizeof *pool->layer_ns, sequences, layers, 1)) != NULL &&
           (pool->plan_rc = zeroed_new(pool, sizeof *pool->plan_rc, sequences, 1, 1)) != NULL &&
           (pool->statistic = zeroed_new(pool, sizeof *pool->statistic, sequences, layers, 1)) != NULL &&
           (pool->measured_budget = zeroed_new(pool, sizeof *pool->measured_budget, sequences, layers, 1)) != NULL &&
           (pool->scratch = zeroed_new(pool, sizeof *pool->scratch, pool->threads, 1, 1)) != NULL;
}

static int scratch_allocate(struct kv_pool *pool, struct kv_scratch *scratch)
{
    const struct kv_shape *shape = &pool->shape;
    int64_t heads = shape->kv_heads, entries = pool->gather_entries, dim = shape->head_dim;
    if ((scratch->gathered = zeroed_new(pool, sizeof(float), heads, entries, dim)) == NULL ||
        (scratch->gathered_positions = zeroed_new(pool, sizeof(int32_t), heads, entries, 1)) == NULL ||
        (scratch->queries = zeroed_new(pool, sizeof(float), shape->window_tokens, heads * shape->group, dim)) == NULL ||
        (scratch->head_keys = zeroed_new(pool, sizeof *scratch->head_keys, heads, 1, 1)) == NULL ||
        (scratch->head_tiles = zeroed_new(pool, sizeof *scratch->head_tiles, heads, 1, 1)) == NULL ||
        (scratch->head_values = zeroed_new(pool, sizeof *scratch->head_values, heads, 1, 1)) == NULL ||
        (scratch->head_mass = zeroed_new(pool, sizeof *scratch->head_mass, heads, 1, 1)) == NULL ||
        (scratch->head_positions = zeroed_new(pool, sizeof *scratch->head_positions, heads, 1, 1)) == NULL ||
        (scratch->head_entries = zeroed_new(pool, sizeof *scratch->head_entries, heads, 1, 1)) == NULL ||
        (scratch->kept = zeroed_new(pool, sizeof *scratch->kept, heads, 1, 1)) == NULL ||
        (scratch->keep_count = zeroed_new(pool, sizeof *scratch->keep_count, heads, 1, 1)) == NULL ||
        (scratch->work = compact_work_new(shape->kv_heads, shape->group, shape->head_dim, shape->window_tokens,
                                          pool->gather_entries)) == NULL) {
        return 0;
    }
    for (int h = 0; h < shape->kv_heads; h++) {
        scratch->head_keys[h] = scratch->gathered + h * entries * dim;
        scratch->head_positions[h] = scratch->gathered_positions + h * entries;
    }
    return 1;
}

static void scratch_free(struct kv_scratch *scratch)
{
    compact_work_destroy(&scratch->work);
    free(scratch->gathered);
    free(scratch->gathered_values);
    free(scratch->gathered_positions);
    free(scratch->queries);
    free(scratch->head_keys);
    free(scratch->head_tiles);
    free(scratch->head_values);
    free(scratch->head_mass);
    free(scratch->head_positions);
    free(scratch->head_entries);
    free(scratch->kept);
    free(scratch->keep_count);
}

static void pool_link(struct kv_pool *pool)
{
    const struct kv_shape *shape = &pool->shape;
    int64_t lists = (int64_t)shape->layers * shape->kv_heads;
    int64_t ring_row = (int64_t)shape->kv_heads * shape->group * shape->head_dim;
    for (int s = 0; s < shape->max_sequences; s++) {
        struct kv_seq *seq = &pool->seqs[s];
        seq->list_count = (int)lists;
        seq->lists = pool->lists + s * lists;
        seq->room = pool->room + (int64_t)s * shape->layers;
        seq->queries_put = pool->queries_put + (int64_t)s * shape->layers;
        seq->ring = pool->rings + (int64_t)s * shape->layers * shape->window_tokens * ring_row;
        for (int64_t i = 0; i < lists; i++) {
            seq->lists[i].pages = pool->tables + (s * lists + i) * pool->list_pages;
        }
    }
    /* A stack that hands out page 0 first keeps a small load in the front of the slab. */
    for (int64_t p = 0; p < pool->pages; p++) pool->free[p] = (int32_t)(pool->pages - 1 - p);
    pool->free_count = pool->pages;
}

int kv_pool_new(const struct kv_shape *shape, int64_t bytes, struct kv_pool **out, struct kvf_err *err)
{
    *out = NULL;
    int rc = shape_check(shape, err);
    if (rc != 0) return rc;

    int number_bytes = shape->half ? (int)sizeof(uint16_t) : (int)sizeof(float);
    int64_t page_bytes = (int64_t)KV_PAGE_ENTRIES * (2 * (int64_t)shape->head_dim * number_bytes + 4);
    int64_t lists = (int64_t)shape->layers * shape->kv_heads;
    int64_t pages = bytes / page_bytes;
    if (pages < lists) {
        return kvf_fail(
            err, KVF_EINVAL,
            "kv pool: bytes: expected at least %lld (%lld pages of %lld bytes, one a layer and head), got %lld",
            (long long)(lists * page_bytes), (long long)lists, (long long)page_bytes, (long long)bytes);
    }
    if (pages > INT32_MAX) {
        return kvf_fail(err, KVF_EINVAL, "kv pool: bytes: expected at most %d pages of %lld bytes, got %lld bytes",
                        INT32_MAX, (long long)page_bytes, (long long)bytes);
    }

    struct kv_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return kvf_fail(err, KVF_ENOMEM, "kv pool: out of memory");
    pool->shape = *shape;
    pool->number_bytes = number_bytes;
    pool->page_bytes = page_bytes;
    pool->threads = shape->threads < 1 ? 1 : shape->threads;
    pool->pages = pages;
    pool->list_pages = kv_pages_of(shape->max_entries);
    if (pool->list_pages > pages) pool->list_pages = (int)pages;
    pool->gather_entries = shape->max_entries;
    if (pool->gather_entries > pages * KV_PAGE_ENTRIES) pool->gather_entries = (int)(pages * KV_PAGE_ENTRIES);

    int ok = pool_allocate(pool);
    for (int t = 0; ok && t < pool->threads; t++) ok = scratch_allocate(pool, &pool->scratch[t]);
    if (!ok) {
        int64_t wanted = pool->workspace_bytes;
        kv_pool_destroy(&pool);
        return kvf_fail(err, KVF_ENOMEM, "kv pool: no memory for a slab of %lld bytes and %lld bytes of work space",
                        (long long)bytes, (long long)wanted);
    }
    pool_link(pool);
    *out = pool;
    return 0;
}

static size_t mass_bytes(const struct kv_pool *pool)
{
    size_t lists = (size_t)pool->shape.max_sequences * (size_t)pool->shape.layers * (size_t)pool->shape.kv_heads;
    return lists * (size_t)pool->list_pages * KV_PAGE_ENTRIES * sizeof(float);
}

/* Room for the values of a layer's heads, in every thread's scratch. */
static int values_prepare(struct kv_pool *pool)
{
    int64_t heads = pool->shape.kv_heads, entries = pool->gather_entries, dim = pool->shape.head_dim;
    for (int t = 0; t < pool->threads; t++) {
        struct kv_scratch *scratch = &pool->scratch[t];
        if (scratch->gathered_values != NULL) continue;
        if ((scratch->gathered_values = zeroed_new(pool, sizeof(float), heads, entries, dim)) == NULL) return 0;
        for (int h = 0; h < heads; h++) scratch->head_values[h] = scratch->gathered_values + h * entries * dim;
    }
    return 1;
}

static int mass_prepare(struct kv_pool *pool)
{
    if (pool->mass != NULL) return 1;
    void *mass =
        mmap(NULL, mass_bytes(pool), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mass == MAP_FAILED) return 0;
    pool->mass = mass;
    return 1;
}

int kv_pool_prepare(struct kv_pool *pool, const struct policy *policy, struct kvf_err *err)
{
    unsigned needs = scorer_at(policy->scorer)->needs;
    if ((needs & NEEDS_VALUES) && !values_prepare(pool))
        return kvf_fail(err, KVF_ENOMEM, "kv pool: no memory for the values that policy %s reads", policy->name);
    if ((needs & NEEDS_MASS) && !mass_prepare(pool))
        return kvf_fail(err, KVF_ENOMEM, "kv pool: no memory for the attention mass that policy %s reads",
                        policy->name);
    return 0;
}

void kv_pool_destroy(struct kv_pool **pool)
{
    struct kv_pool *p = *pool;
    *pool = NULL;
    if (p == NULL) return;
    if (p->slab != NULL) munmap(p->slab, (size_t)p->pages * (size_t)p->page_bytes);
    if (p->mass != NULL) munmap(p->mass, mass_bytes(p));
    for (int t = 0; p->scratch != NULL && t < p->threads; t++) scratch_free(&p->scratch[t]);
    free(p->scratch);
    free(p->layer_rc);
    free(p->layer_ns);
    free(p->plan_rc);
    free(p->statistic);
    free(p->measured_budget);
    free(p->free);
    free(p->seqs);
    free(p->lists);
    free(p->tables);
    free(p->room);
    free(p->queries_put);
    free(p->rings);
    free(p);
}

/* ---- sequences ---- */

int kv_seq_open(struct kv_pool *pool, const struct policy *policy, struct kv_seq **out, struct kvf_err *err)
{
    *out = NULL;
    int mass = policy != NULL && (scorer_at(policy->scorer)->needs & NEEDS_MASS) != 0;
    if (mass && pool->mass == NULL)
        return kvf_fail(err, KVF_EINVAL, "kv pool: not prepared for policy %s, which reads attention mass",
                        policy->name);
    for (int s = 0; s < pool->shape.max_sequences; s++) {
        struct kv_seq *seq = &pool->seqs[s];
        if (seq->open) continue;
        seq->open = 1;
        seq->mass = mass ? pool->mass + (int64_t)s * seq->list_count * pool->list_pages * KV_PAGE_ENTRIES : NULL;
        *out = seq;
        return 0;
    }
    return kvf_fail(err, KVF_ENOMEM, "kv pool: expected at most %d open sequences, got one more",
                    pool->shape.max_sequences);
}

void kv_list_trim(struct kv_pool *pool, struct kv_seq *seq, struct kv_list *list)
{
    int needed = kv_pages_of(list->entries);
    while (list->held > needed) {
        const unsigned char *page = list->pages[--list->held];
        pool->free[pool->free_count++] = (int32_t)((page - pool->slab) / pool->page_bytes);
        seq->held--;
    }
}

void kv_seq_close(struct kv_pool *pool, struct kv_seq **seq)
{
    struct kv_seq *s = *seq;
    *seq = NULL;
    if (s == NULL) return;
    for (int i = s->list_count - 1; i >= 0; i--) {
        s->lists[i].entries = 0;
        kv_list_trim(pool, s, &s->lists[i]);
    }
    memset(s->room, 0, (size_t)pool->shape.layers * sizeof *s->room);
    memset(s->queries_put, 0, (size_t)pool->shape.layers * sizeof *s->queries_put);
    s->tokens_seen = s->compacted_at = 0;
    s->open = 0;
}

int kv_reserve(struct kv_pool *pool, struct kv_seq *seq, int tokens)
{
    int lists = seq->list_count;
    int64_t missing = 0;
    for (int i = 0; i < lists; i++) {
        int64_t entries = (int64_t)seq->lists[i].entries + tokens;
        if (entries > pool->gather_entries) return KVF_ENOMEM;
        int pages = kv_pages_of(entries);
        if (pages > seq->lists[i].held) missing += pages - seq->lists[i].held;
    }
    if (missing > pool->free_count) return KVF_ENOMEM;

    for (int i = 0; i < lists; i++) {
        struct kv_list *list = &seq->lists[i];
        int pages = kv_pages_of((int64_t)list->entries + tokens);
        while (list->held < pages) {
            list->pages[list->held++] = pool->slab + (int64_t)pool->free[--pool->free_count] * pool->page_bytes;
        }
    }
    seq->held += missing;
    for (int l = 0; l < pool->shape.layers; l++) {
        if (seq->room[l] < tokens) seq->room[l] = tokens;
    }
    if (pool->pages - pool->free_count > pool->peak_in_use) pool->peak_in_use = pool->pages - pool->free_count;
    return 0;
}

/* ---- one entry ---- */

void kv_key_write(const struct kv_pool *pool, const struct kv_list *list, int entry, const float *key)
{
    unsigned char *page = list->pages[entry / KV_PAGE_ENTRIES];
    int lane = entry % KV_PAGE_ENTRIES, dim = pool->shape.head_dim;
    if (pool->shape.half) {
        for (int k = 0; k < dim; k++) ((uint16_t *)page)[k * KV_PAGE_ENTRIES + lane] = kv_half_of(key[k]);
    } else {
        for (int k = 0; k < dim; k++) ((float *)page)[k * KV_PAGE_ENTRIES + lane] = key[k];
    }
}

void kv_key_read(const struct kv_pool *pool, const struct kv_list *list, int entry, float *key)
{
    const unsigned char *page = list->pages[entry / KV_PAGE_ENTRIES];
    int lane = entry % KV_PAGE_ENTRIES, dim = pool->shape.head_dim;
    if (pool->shape.half) {
        for (int k = 0; k < dim; k++) key[k] = kv_half_wide(((const uint16_t *)page)[k * KV_PAGE_ENTRIES + lane]);
    } else {
        for (int k = 0; k < dim; k++) key[k] = ((const float *)page)[k * KV_PAGE_ENTRIES + lane];
    }
}

void kv_value_write(const struct kv_pool *pool, const struct kv_list *list, int entry, const float *value)
{
    void *to = kv_entry_value(pool, list, entry);
    int dim = pool->shape.head_dim;
    if (pool->shape.half) {
        for (int k = 0; k < dim; k++) ((uint16_t *)to)[k] = kv_half_of(value[k]);
    } else {
        memcpy(to, value, (size_t)dim * sizeof *value);
    }
}

void kv_value_read(const struct kv_pool *pool, const struct kv_list *list, int entry, float *value)
{
    const void *from = kv_entry_value(pool, list, entry);
    int dim = pool->shape.head_dim;
    if (pool->shape.half) {
        for (int k = 0; k < dim; k++) value[k] = kv_half_wide(((const uint16_t *)from)[k]);
    } else {
        memcpy(value, from, (size_t)dim * sizeof *value);
    }
}

void kv_put(struct kv_pool *pool, struct kv_seq *seq, int layer, int tokens, int first_position, const float *key,
            const float *value, const float *query)
{
    const struct kv_shape *shape = &pool->shape;
    int heads = shape->kv_heads, dim = shape->head_dim;
    assert(seq->open && tokens <= seq->room[layer]);

    for (int h = 0; h < heads; h++) {
        struct kv_list *list = kv_list_of(pool, seq, layer, h);
        float *mass = kv_list_mass(pool, seq, layer, h);
        if (mass != NULL) memset(mass + list->entries, 0, (size_t)tokens * sizeof *mass);
        for (int t = 0; t < tokens; t++) {
            int64_t row = ((int64_t)t * heads + h) * dim;
            kv_key_write(pool, list, list->entries, key + row);
            kv_value_write(pool, list, list->entries, value + row);
            *kv_entry_position(pool, list, list->entries) = first_position + t;
            list->entries++;
        }
    }
    seq->room[layer] -= tokens;
    if (layer == 0) seq->tokens_seen = first_position + tokens;

    int64_t width = (int64_t)heads * shape->group * dim;
    float *ring = seq->ring + (int64_t)layer * shape->window_tokens * width;
    for (int t = tokens > shape->window_tokens ? tokens - shape->window_tokens : 0; t < tokens; t++) {
        int slot = (int)(((int64_t)seq->queries_put[layer] + t) % shape->window_tokens);
        memcpy(ring + slot * width, query + t * width, (size_t)width * sizeof *ring);
    }
    seq->queries_put[layer] += tokens;
}

/* ---- reading ---- */

struct kv_view kv_head(const struct kv_pool *pool, const struct kv_seq *seq, int layer, int head)
{
    const struct kv_list *list = kv_list_of(pool, seq, layer, head);
    return (struct kv_view){
        .pages = (const void *const *)list->pages,
        .entries = list->entries,
        .half = pool->shape.half,
        .mass = kv_list_mass(pool, seq, layer, head),
    };
}

int kv_tokens_seen(const struct kv_seq *seq)
{
    return seq->tokens_seen;
}

int kv_queries(const struct kv_pool *pool, const struct kv_seq *seq, int layer, int wanted, float *out)
{
    const struct kv_shape *shape = &pool->shape;
    int64_t width = (int64_t)shape->kv_heads * shape->group * shape->head_dim;
    const float *ring = seq->ring + (int64_t)layer * shape->window_tokens * width;
    int put = seq->queries_put[layer];
    int rows = put < shape->window_tokens ? put : shape->window_tokens;
    if (rows > wanted) rows = wanted;
    for (int r = 0; r < rows; r++) {
        int slot = (put - rows + r) % shape->window_tokens;
        memcpy(out + r * width, ring + slot * width, (size_t)width * sizeof *out);
    }
    return rows;
}

void kv_read_head(const struct kv_pool *pool, const struct kv_seq *seq, int layer, int head, float *keys, float *values,
                  int32_t *positions)
{
    const struct kv_list *list = kv_list_of(pool, seq, layer, head);
    int dim = pool->shape.head_dim;
    for (int e = 0; e < list->entries; e++) {
        if (keys != NULL) kv_key_read(pool, list, e, keys + (int64_t)e * dim);
        if (values != NULL) kv_value_read(pool, list, e, values + (int64_t)e * dim);
        if (positions != NULL) positions[e] = *kv_entry_position(pool, list, e);
    }
}

/* ---- figures ---- */

int64_t kv_pool_free_pages(const struct kv_pool *pool)
{
    return pool->free_count;
}

int64_t kv_pool_peak_pages(const struct kv_pool *pool)
{
    return pool->peak_in_use;
}

int64_t kv_pages_needed(const struct kv_pool *pool, int64_t entries)
{
    /* The worst split of a given total leaves one entry in the last page of every list. */
    int64_t lists = (int64_t)pool->shape.layers * pool->shape.kv_heads;
    int64_t most = lists * kv_pages_of(pool->shape.max_entries);
    if (entries >= pool->shape.max_entries) return most;
    int64_t ragged = lists * (entries + KV_PAGE_ENTRIES - 1) / KV_PAGE_ENTRIES;
    return ragged < most ? ragged : most;
}

int64_t kv_seq_live_bytes(const struct kv_pool *pool, const struct kv_seq *seq)
{
    return seq->held * (pool->page_bytes + (seq->mass != NULL ? MASS_PAGE_BYTES : 0));
}

int64_t kv_seq_entries(const struct kv_seq *seq)
{
    int64_t entries = 0;
    for (int i = 0; i < seq->list_count; i++) entries += seq->lists[i].entries;
    return entries;
}

int64_t kv_pool_reserved_bytes(const struct kv_pool *pool)
{
    return pool->pages * (pool->page_bytes + (pool->mass != NULL ? MASS_PAGE_BYTES : 0));
}

int64_t kv_pool_page_bytes(const struct kv_pool *pool)
{
    return pool->page_bytes;
}

int64_t kv_pool_workspace_bytes(const struct kv_pool *pool)
{
    return pool->workspace_bytes + pool->threads * compact_work_bytes(pool->scratch[0].work);
}
