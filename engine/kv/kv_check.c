/* kv_check.c: the walk that proves that no page is lost or shared and that every list is as long as its length says. */
#include "engine/kv/kv_internal.h"

#include <stdlib.h>

/* Who a page belongs to, one byte a page. */
enum owner { OWNER_NOBODY, OWNER_FREE, OWNER_LIST };

struct walk {
    const struct kv_pool *pool;
    unsigned char *owner; /* [pages] */
    struct kvf_err *err;
};

static int free_walk(struct walk *w)
{
    const struct kv_pool *pool = w->pool;
    if (pool->free_count < 0 || pool->free_count > pool->pages) {
        return kvf_fail(w->err, KVF_ECORRUPT, "kv check: free list: expected 0 to %lld pages, got %lld",
                        (long long)pool->pages, (long long)pool->free_count);
    }
    for (int64_t i = 0; i < pool->free_count; i++) {
        int32_t page = pool->free[i];
        if (page < 0 || page >= pool->pages) {
            return kvf_fail(w->err, KVF_ECORRUPT, "kv check: free list entry %lld: expected a page below %lld, got %d",
                            (long long)i, (long long)pool->pages, page);
        }
        if (w->owner[page] != OWNER_NOBODY) {
            return kvf_fail(w->err, KVF_ECORRUPT, "kv check: page %d is on the free list twice", page);
        }
        w->owner[page] = OWNER_FREE;
    }
    return 0;
}

static int list_pages_walk(struct walk *w, const struct kv_list *list, int s, int layer, int head)
{
    const struct kv_pool *pool = w->pool;
    for (int p = 0; p < list->held; p++) {
        ptrdiff_t offset = list->pages[p] == NULL ? -1 : list->pages[p] - pool->slab;
        int64_t page = offset / pool->page_bytes;
        if (offset < 0 || page >= pool->pages || offset % pool->page_bytes != 0) {
            return kvf_fail(w->err, KVF_ECORRUPT,
                            "kv check: sequence %d layer %d head %d: page %d of its list is not a page of the slab", s,
                            layer, head, p);
        }
        if (w->owner[page] != OWNER_NOBODY) {
            return kvf_fail(w->err, KVF_ECORRUPT, "kv check: sequence %d layer %d head %d: page %lld is also %s", s,
                            layer, head, (long long)page,
                            w->owner[page] == OWNER_FREE ? "on the free list" : "in another list");
        }
        w->owner[page] = OWNER_LIST;
    }
    return 0;
}

static int list_walk(struct walk *w, const struct kv_seq *seq, int s, int layer, int head)
{
    const struct kv_pool *pool = w->pool;
    const struct kv_list *list = kv_list_of(pool, seq, layer, head);
    if (list->entries < 0 || list->entries > pool->gather_entries) {
        return kvf_fail(w->err, KVF_ECORRUPT,
                        "kv check: sequence %d layer %d head %d: expected 0 to %d entries, got %d", s, layer, head,
                        pool->gather_entries, list->entries);
    }
    int needed = kv_pages_of((int64_t)list->entries + seq->room[layer]);
    if (list->held != needed || needed > pool->list_pages) {
        return kvf_fail(
            w->err, KVF_ECORRUPT,
            "kv check: sequence %d layer %d head %d: expected %d pages for %d entries and room for %d, got %d", s,
            layer, head, needed, list->entries, seq->room[layer], list->held);
    }
    int rc = list_pages_walk(w, list, s, layer, head);
    if (rc != 0) return rc;

    int32_t before = -1;
    for (int e = 0; e < list->entries; e++) {
        int32_t position = *kv_entry_position(pool, list, e);
        if (position <= before || position >= seq->tokens_seen) {
            return kvf_fail(
                w->err, KVF_ECORRUPT,
                "kv check: sequence %d layer %d head %d entry %d: expected a position above %d and below %d, "
                "got %d",
                s, layer, head, e, before, seq->tokens_seen, position);
        }
        before = position;
    }
    return 0;
}

static int seq_walk(struct walk *w, int s)
{
    const struct kv_shape *shape = &w->pool->shape;
    const struct kv_seq *seq = &w->pool->seqs[s];
    int64_t held = 0;
    for (int layer = 0; layer < shape->layers; layer++) {
        for (int head = 0; head < shape->kv_heads; head++) {
            int rc = list_walk(w, seq, s, layer, head);
            if (rc != 0) return rc;
            held += kv_list_of(w->pool, seq, layer, head)->held;
        }
    }
    if (held != seq->held || (!seq->open && held != 0)) {
        return kvf_fail(w->err, KVF_ECORRUPT, "kv check: %s sequence %d: expected %lld pages, its lists hold %lld",
                        seq->open ? "open" : "closed", s, (long long)(seq->open ? seq->held : 0), (long long)held);
    }
    return 0;
}

int kv_check(const struct kv_pool *pool, struct kvf_err *err)
{
    struct walk w = {.pool = pool, .owner = calloc((size_t)pool->pages, 1), .err = err};
    if (w.owner == NULL) return kvf_fail(err, KVF_ENOMEM, "kv check: out of memory");

    int rc = free_walk(&w);
    for (int s = 0; rc == 0 && s < pool->shape.max_sequences; s++) rc = seq_walk(&w, s);
    for (int64_t page = 0; rc == 0 && page < pool->pages; page++) {
        if (w.owner[page] == OWNER_NOBODY) {
            rc =
                kvf_fail(err, KVF_ECORRUPT, "kv check: page %lld is lost: neither free nor in a list", (long long)page);
        }
    }
    free(w.owner);
    return rc;
}
