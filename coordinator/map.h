/* map.h: hash table from a few bytes or a number to a pointer. The table copies its keys and owns no values. */
#ifndef KVF_MAP_H
#define KVF_MAP_H

#include <stddef.h>
#include <stdint.h>
#include "alloc/err.h"

struct map_entry {
    uint64_t hash;
    size_t key_len;
    unsigned char *key; /* NULL: free slot */
    void *value;
};
struct map {
    struct map_entry *entries;
    size_t cap, count;
};

void map_free(struct map *map);
/* Adds or replaces. KVF_ENOMEM leaves the map as it was. */
KVF_MUSTCHECK int map_put(struct map *map, const void *key, size_t key_len, void *value);
void *map_get(const struct map *map, const void *key, size_t key_len);
void map_remove(struct map *map, const void *key, size_t key_len);

static inline void *map_get_int(const struct map *map, int64_t key)
{
    return map_get(map, &key, sizeof key);
}
KVF_MUSTCHECK static inline int map_put_int(struct map *map, int64_t key, void *value)
{
    return map_put(map, &key, sizeof key, value);
}
static inline void map_remove_int(struct map *map, int64_t key)
{
    map_remove(map, &key, sizeof key);
}

#endif
