#include "coordinator/map.h"

#include <stdlib.h>
#include <string.h>

static uint64_t bytes_hash(const unsigned char *bytes, size_t len)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < len; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash ^ (hash >> 29); /* the low bits of the product depend on few input bits */
}

/* The entry of the key, or the free slot where it would go. */
static struct map_entry *entry_find(const struct map *map, uint64_t hash, const void *key, size_t key_len)
{
    size_t at = hash & (map->cap - 1);

    for (;; at = (at + 1) & (map->cap - 1)) {
        struct map_entry *entry = &map->entries[at];
        if (entry->key == NULL) return entry;
        if (entry->hash == hash && entry->key_len == key_len && memcmp(entry->key, key, key_len) == 0) return entry;
    }
}

static int map_grow(struct map *map)
{
    struct map grown = {.cap = map->cap == 0 ? 64 : map->cap * 2, .count = map->count};

    grown.entries = calloc(grown.cap, sizeof *grown.entries);
    if (grown.entries == NULL) return KVF_ENOMEM;
    for (size_t i = 0; i < map->cap; i++) {
        const struct map_entry *old = &map->entries[i];
        if (old->key != NULL) *entry_find(&grown, old->hash, old->key, old->key_len) = *old;
    }
    free(map->entries);
    *map = grown;
    return KVF_OK;
}

void map_free(struct map *map)
{
    for (size_t i = 0; i < map->cap; i++) free(map->entries[i].key);
    free(map->entries);
    memset(map, 0, sizeof *map);
}

int map_put(struct map *map, const void *key, size_t key_len, void *value)
{
    uint64_t hash = bytes_hash(key, key_len);
    struct map_entry *entry;

    if ((map->count + 1) * 4 > map->cap * 3 && map_grow(map) != KVF_OK) return KVF_ENOMEM;
    entry = entry_find(map, hash, key, key_len);
    if (entry->key == NULL) {
        unsigned char *copy = malloc(key_len == 0 ? 1 : key_len);
        if (copy == NULL) return KVF_ENOMEM;
        memcpy(copy, key, key_len);
        *entry = (struct map_entry){.hash = hash, .key_len = key_len, .key = copy};
        map->count++;
    }
    entry->value = value;
    return KVF_OK;
}

void *map_get(const struct map *map, const void *key, size_t key_len)
{
    if (map->cap == 0) return NULL;
    return entry_find(map, bytes_hash(key, key_len), key, key_len)->value;
}

void map_remove(struct map *map, const void *key, size_t key_len)
{
    struct map_entry *entry;
    size_t hole, at;

    if (map->cap == 0) return;
    entry = entry_find(map, bytes_hash(key, key_len), key, key_len);
    if (entry->key == NULL) return;
    free(entry->key);
    map->count--;
    /* later entries of the same run move into the hole, so that no search stops early */
    hole = (size_t)(entry - map->entries);
    for (at = (hole + 1) & (map->cap - 1); map->entries[at].key != NULL; at = (at + 1) & (map->cap - 1)) {
        size_t home = map->entries[at].hash & (map->cap - 1);
        if (((at - home) & (map->cap - 1)) < ((at - hole) & (map->cap - 1))) continue;
        map->entries[hole] = map->entries[at];
        hole = at;
    }
    map->entries[hole] = (struct map_entry){0};
}
