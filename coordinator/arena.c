#include "coordinator/arena.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES (64u << 10)

struct arena_block {
    struct arena_block *next;
    size_t used, cap;
    char bytes[];
};

struct str arena_copy(struct arena *arena, const char *text, size_t len)
{
    struct arena_block *block = arena->first;
    struct str copy;

    if (block == NULL || block->cap - block->used < len + 1) {
        size_t cap = len + 1 > BLOCK_BYTES ? len + 1 : BLOCK_BYTES;
        block = malloc(sizeof *block + cap);
        if (block == NULL) return (struct str){NULL, 0};
        block->next = arena->first;
        block->used = 0;
        block->cap = cap;
        arena->first = block;
    }
    copy = (struct str){block->bytes + block->used, (uint32_t)len};
    memcpy(block->bytes + block->used, text, len);
    block->bytes[block->used + len] = '\0';
    block->used += len + 1;
    return copy;
}

void arena_free(struct arena *arena)
{
    while (arena->first != NULL) {
        struct arena_block *next = arena->first->next;
        free(arena->first);
        arena->first = next;
    }
}
