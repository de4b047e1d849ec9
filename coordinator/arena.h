/* arena.h: many small texts that live and go together. */
#ifndef KVF_ARENA_H
#define KVF_ARENA_H

#include <stddef.h>
#include "proto/message.h"

struct arena_block;
struct arena {
    struct arena_block *first;
};
/* A copy with a NUL behind it; text NULL when there is no memory. */
struct str arena_copy(struct arena *arena, const char *text, size_t len);
void arena_free(struct arena *arena);

#endif
