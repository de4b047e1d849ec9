/* bpe.c: byte-pair merges of one word.
 *
 * Symbols are a doubly linked list over an array; a heap holds candidate merges by (rank, position). A candidate whose
 * pair has changed since it was pushed is dropped when it comes up, so a word of n bytes costs O(n log n).
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

static int candidate_before(const struct bpe_candidate *a, const struct bpe_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static int heap_push(struct bpe_scratch *scratch, struct bpe_candidate candidate)
{
    if (scratch->heap_count == scratch->heap_room) {
        int room = scratch->heap_room < 64 ? 64 : scratch->heap_room * 2;
        struct bpe_candidate *grown = realloc(scratch->heap, (size_t)room * sizeof *grown);
        if (grown == NULL) return KVF_ENOMEM;
        scratch->heap = grown;
        scratch->heap_room = room;
    }
    struct bpe_candidate *heap = scratch->heap;
    int at = scratch->heap_count++;
    for (int up; at > 0 && candidate_before(&candidate, &heap[up = (at - 1) / 2]); at = up) heap[at] = heap[up];
    heap[at] = candidate;
    return KVF_OK;
}

static struct bpe_candidate heap_pop(struct bpe_scratch *scratch)
{
    struct bpe_candidate *heap = scratch->heap, top = heap[0], last = heap[--scratch->heap_count];
    int at = 0;
    for (int child; (child = 2 * at + 1) < scratch->heap_count; at = child) {
        child += child + 1 < scratch->heap_count && candidate_before(&heap[child + 1], &heap[child]);
        if (!candidate_before(&heap[child], &last)) break;
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
    return merge == NULL ? KVF_OK : heap_push(scratch, (struct bpe_candidate){merge->rank, left, merge->id});
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
        struct bpe_candidate top = heap_pop(scratch);
        struct bpe_symbol *left = &symbol[top.position];
        if (left->id < 0 || left->next < 0) continue;
        struct bpe_symbol *right = &symbol[left->next];
        const struct merge *merge = merge_find(tokenizer, left->id, right->id);
        if (merge == NULL || merge->id != top.id) continue;
        left->id = top.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) symbol[left->next].prev = top.position;
        if (candidate_push(tokenizer, scratch, left->prev) != KVF_OK ||
            candidate_push(tokenizer, scratch, top.position) != KVF_OK)
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
