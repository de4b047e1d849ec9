/* bpe.c: byte-pair merges of one word.
 *
 * Symbols are a doubly linked list over an array; a heap holds candidate merges as rank << 32 | position. A candidate
 * whose pair has changed since it was pushed is dropped when it comes up (symbols only grow, so the pair at a position
 * never comes back to an earlier rank), and a word of n bytes costs O(n log n).
 */
#include <stdlib.h>
#include "engine/tokenizer/internal.h"

int ids_push(struct ids *ids, int32_t id)
{
    if (ids->count == ids->room) {
        int room = ids->room < 64 ? 64 : ids->room * 2;
        int32_t *grown = realloc(ids->id, (size_t)room * sizeof *grown);
        if (grown == NULL) return KVF_ENOMEM;
        ids->id = grown;
        ids->room = room;
    }
    ids->id[ids->count++] = id;
    return KVF_OK;
}

/* Four children a node: half the levels of a binary heap, and they lie in one cache line. */
static int heap_push(struct bpe_scratch *scratch, uint64_t key)
{
    if (scratch->heap_count == scratch->heap_room) {
        int room = scratch->heap_room < 64 ? 64 : scratch->heap_room * 2;
        uint64_t *grown = realloc(scratch->heap, (size_t)room * sizeof *grown);
        if (grown == NULL) return KVF_ENOMEM;
        scratch->heap = grown;
        scratch->heap_room = room;
    }
    uint64_t *heap = scratch->heap;
    int at = scratch->heap_count++;
    for (int up; at > 0 && key < heap[up = (at - 1) / 4]; at = up) heap[at] = heap[up];
    heap[at] = key;
    return KVF_OK;
}

static uint64_t heap_pop(struct bpe_scratch *scratch)
{
    uint64_t *heap = scratch->heap, top = heap[0], last = heap[--scratch->heap_count];
    int at = 0, count = scratch->heap_count;
    for (int child; (child = 4 * at + 1) < count; at = child) {
        int end = child + 4 < count ? child + 4 : count;
        for (int other = child + 1; other < end; other++) child = heap[other] < heap[child] ? other : child;
        if (heap[child] >= last) break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

static int candidate_push(const struct tokenizer *tokenizer, struct bpe_scratch *scratch, int left)
{
    int right = left < 0 ? -1 : scratch->symbol[left].next;
    if (right < 0) return KVF_OK;
    const struct merge *merge = merge_find(tokenizer, scratch->symbol[left].id, scratch->symbol[right].id);
    return merge == NULL ? KVF_OK : heap_push(scratch, (uint64_t)merge->rank << 32 | (uint32_t)left);
}

int bpe_word(const struct tokenizer *tokenizer, struct bpe_scratch *scratch, const char *bytes, size_t len,
             struct ids *out)
{
    if (len == 0) return KVF_OK;
    if (tokenizer->ignore_merges) {
        int32_t id = vocab_word_id(tokenizer, bytes, len);
        if (id >= 0) return ids_push(out, id);
    }
    if (len > (size_t)scratch->symbol_room) {
        struct bpe_symbol *grown = realloc(scratch->symbol, len * sizeof *grown);
        if (grown == NULL) return KVF_ENOMEM;
        scratch->symbol = grown;
        scratch->symbol_room = (int)len;
    }
    struct bpe_symbol *symbol = scratch->symbol;
    int count = 0;
    for (size_t i = 0; i < len; i++) {
        int32_t id = tokenizer->byte_id[(unsigned char)bytes[i]];
        if (id < 0) continue;
        symbol[count] = (struct bpe_symbol){id, count - 1, count + 1};
        count++;
    }
    if (count == 0) return KVF_OK;
    symbol[count - 1].next = -1;
    scratch->heap_count = 0;
    for (int i = 0; i + 1 < count; i++)
        if (candidate_push(tokenizer, scratch, i) != KVF_OK) return KVF_ENOMEM;
    while (scratch->heap_count > 0) {
        uint64_t top = heap_pop(scratch);
        int position = (int)(uint32_t)top;
        struct bpe_symbol *left = &symbol[position];
        if (left->id < 0 || left->next < 0) continue;
        struct bpe_symbol *right = &symbol[left->next];
        const struct merge *merge = merge_find(tokenizer, left->id, right->id);
        if (merge == NULL || (uint64_t)merge->rank != top >> 32) continue;
        left->id = merge->id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) symbol[left->next].prev = position;
        if (candidate_push(tokenizer, scratch, left->prev) != KVF_OK ||
            candidate_push(tokenizer, scratch, position) != KVF_OK)
            return KVF_ENOMEM;
    }
    for (int i = 0; i >= 0; i = symbol[i].next)
        if (ids_push(out, symbol[i].id) != KVF_OK) return KVF_ENOMEM;
    return KVF_OK;
}

void bpe_scratch_free(struct bpe_scratch *scratch)
{
    free(scratch->symbol);
    free(scratch->heap);
    *scratch = (struct bpe_scratch){0};
}
