/* kv_map.c: recording, figures, the grid over time. See kv_map.h; kv_map_text.c prints it. */
#include "worker/kv_map.h"

#include <stdlib.h>
#include <string.h>

/* Columns of a sequence that is never compacted: enough to see it grow. */
#define RAMP_COLUMNS 32

static int map_lists(const struct kv_map *map)
{
    return map->layers * map->kv_heads;
}

static const int32_t *map_point(const struct kv_map *map, int point)
{
    return map->entries + (int64_t)point * map_lists(map);
}

static int64_t map_sum(const struct kv_map *map, int point, int first, int lists)
{
    int64_t sum = 0;
    for (int i = first; i < first + lists; i++) sum += map_point(map, point)[i];
    return sum;
}

/* ---- recording ---- */

void kv_map_begin(struct kv_map *map, int layers, int kv_heads)
{
    memset(map, 0, sizeof *map);
    map->layers = layers;
    map->kv_heads = kv_heads;
}

void kv_map_free(struct kv_map *map)
{
    free(map->tokens);
    free(map->after);
    free(map->entries);
    memset(map, 0, sizeof *map);
}

static bool map_room(struct kv_map *map)
{
    if (map->count < map->cap) return true;
    size_t cap = map->cap == 0 ? 64 : (size_t)map->cap * 2;
    int *tokens = realloc(map->tokens, cap * sizeof *tokens);
    if (tokens != NULL) map->tokens = tokens;
    bool *after = realloc(map->after, cap * sizeof *after);
    if (after != NULL) map->after = after;
    int32_t *entries = realloc(map->entries, cap * (size_t)map_lists(map) * sizeof *entries);
    if (entries != NULL) map->entries = entries;
    if (tokens == NULL || after == NULL || entries == NULL) return false;
    map->cap = (int)cap;
    return true;
}

void kv_map_add(struct kv_map *map, int tokens, bool after, const int32_t *entries)
{
    size_t bytes = (size_t)map_lists(map) * sizeof *entries;
    int last = map->count - 1;
    if (last >= 0 && tokens < map->tokens[last]) {
        map->count = 0;
        map->lost = false;
    } else if (last >= 0 && tokens == map->tokens[last] && !after &&
               memcmp(map_point(map, last), entries, bytes) == 0) {
        return;
    }
    if (map->lost || !map_room(map)) {
        map->lost = true;
        return;
    }
    map->tokens[map->count] = tokens;
    map->after[map->count] = after;
    memcpy(map->entries + (int64_t)map->count * map_lists(map), entries, bytes);
    map->count++;
}

/* ---- figures ---- */

int kv_map_compactions(const struct kv_map *map)
{
    int count = 0;
    for (int p = 0; p < map->count; p++) count += map->after[p];
    return count;
}

struct kv_map_figures kv_map_figures(const struct kv_map *map, int first, int lists)
{
    struct kv_map_figures out = {.kept = -1};
    double total = 0, kept = 0;
    int steps = 0, compactions = 0;
    for (int p = 0; p < map->count; p++) {
        int64_t sum = map_sum(map, p, first, lists);
        if (sum > out.peak) out.peak = sum;
        if (map->after[p]) {
            if (compactions == 0 || sum < out.kept_least) out.kept_least = sum;
            if (compactions == 0 || sum > out.kept_most) out.kept_most = sum;
            kept += (double)sum;
            compactions++;
        }
        if (p + 1 == map->count) {
            out.final = sum;
            continue;
        }
        /* the steps up to the next point see sum + lists, sum + 2 lists, ... */
        double grown = map->tokens[p + 1] - map->tokens[p];
        total += grown * (double)sum + (double)lists * grown * (grown + 1) / 2;
        steps += map->tokens[p + 1] - map->tokens[p];
    }
    if (compactions > 0) out.kept = kept / compactions;
    out.mean = steps > 0 ? total / steps : (double)out.final;
    return out;
}

int64_t kv_map_bytes(const struct kv_map *map, int point, int grown, int page_entries, int64_t page_bytes)
{
    int64_t pages = 0;
    for (int i = 0; i < map_lists(map); i++)
        pages += ((int64_t)map_point(map, point)[i] + grown + page_entries - 1) / page_entries;
    return pages * page_bytes;
}

void kv_map_live(const struct kv_map *map, int page_entries, int64_t page_bytes, double *mean, int64_t *peak)
{
    double sum = 0;
    int64_t bytes = 0;
    int steps = 0;
    *peak = 0;
    for (int p = 0; p < map->count; p++) {
        int grown = p + 1 < map->count ? map->tokens[p + 1] - map->tokens[p] : 0;
        for (int j = 0; j <= grown; j++) {
            bytes = kv_map_bytes(map, p, j, page_entries, page_bytes);
            if (bytes > *peak) *peak = bytes;
            if (j > 0) sum += (double)bytes;
        }
        steps += grown;
    }
    *mean = steps > 0 ? sum / steps : (double)bytes;
}

/* ---- over time ---- */

struct column {
    int tokens, point, grown; /* first token; its entries are those of the point, each head grown by so many */
};

/* The columns before any are merged; their number, or -1 without memory. */
static int columns_make(const struct kv_map *map, int step, struct column **out)
{
    int last = map->count - 1, count = 0;
    size_t most = (size_t)map->count + (size_t)(map->tokens[last] - map->tokens[0]) / (size_t)step + 1;
    struct column *columns = malloc(most * sizeof *columns);
    if (columns == NULL) return -1;
    for (int p = 0; p <= last; p++) {
        int end = p < last ? map->tokens[p + 1] : map->tokens[p];
        for (int at = map->tokens[p]; at < end; at += step)
            columns[count++] = (struct column){at, p, at - map->tokens[p]};
        /* what nothing followed is a column too: an only point, a compaction right before the end */
        if (p == last && (count == 0 || map->after[p])) columns[count++] = (struct column){end, p, 0};
    }
    *out = columns;
    return count;
}

int kv_grid_make(const struct kv_map *map, bool by_layer, int step, int most_columns, struct kv_grid *out,
                 struct kvf_err *err)
{
    memset(out, 0, sizeof *out);
    if (map->count == 0) return kvf_fail(err, KVF_EINVAL, "KV map: nothing was decoded");
    if (map->lost) return kvf_fail(err, KVF_ENOMEM, "KV map: out of memory");
    int span = map->tokens[map->count - 1] - map->tokens[0];
    if (kv_map_compactions(map) == 0) step = (span + RAMP_COLUMNS - 1) / RAMP_COLUMNS;
    if (step < 1) step = 1;
    struct column *columns = NULL;
    int found = columns_make(map, step, &columns), per_row = by_layer ? map->kv_heads : 1;
    if (found < 0) return kvf_fail(err, KVF_ENOMEM, "KV map: out of memory");
    out->rows = by_layer ? map->layers : map_lists(map);
    out->columns = found < most_columns ? found : most_columns;
    out->merged = (found + out->columns - 1) / out->columns;
    out->tokens = calloc((size_t)out->columns + 1, sizeof *out->tokens);
    out->cells = calloc((size_t)out->rows * (size_t)out->columns, sizeof *out->cells);
    if (out->tokens == NULL || out->cells == NULL) {
        free(columns);
        kv_grid_free(out);
        return kvf_fail(err, KVF_ENOMEM, "KV map: out of memory");
    }
    for (int b = 0; b < out->columns; b++) {
        int from = (int)((int64_t)b * found / out->columns), to = (int)((int64_t)(b + 1) * found / out->columns);
        out->tokens[b] = columns[from].tokens;
        for (int row = 0; row < out->rows; row++) {
            double sum = 0;
            for (int c = from; c < to; c++)
                sum +=
                    (double)map_sum(map, columns[c].point, row * per_row, per_row) + (double)columns[c].grown * per_row;
            double *cell = &out->cells[(int64_t)row * out->columns + b];
            *cell = sum / (to - from);
            if (*cell > out->top) out->top = *cell;
        }
    }
    int end = map->tokens[map->count - 1], begin = out->tokens[out->columns - 1];
    out->tokens[out->columns] = end > begin ? end : begin + 1;
    free(columns);
    return 0;
}

void kv_grid_free(struct kv_grid *grid)
{
    free(grid->tokens);
    free(grid->cells);
    memset(grid, 0, sizeof *grid);
}

/* ---- JSON ---- */

json_t *kv_map_json(const struct kv_map *map)
{
    json_t *out = json_object(), *tokens = json_array(), *after = json_array(), *entries = json_array();
    int bad = json_object_set_new(out, "tokens", tokens) | json_object_set_new(out, "after", after) |
              json_object_set_new(out, "entries", entries);
    for (int p = 0; p < map->count && bad == 0; p++) {
        json_t *layers = json_array();
        bad |= json_array_append_new(tokens, json_integer(map->tokens[p])) |
               json_array_append_new(after, json_boolean(map->after[p])) | json_array_append_new(entries, layers);
        for (int l = 0; l < map->layers && bad == 0; l++) {
            json_t *heads = json_array();
            bad |= json_array_append_new(layers, heads);
            for (int h = 0; h < map->kv_heads; h++)
                bad |= json_array_append_new(heads, json_integer(map_point(map, p)[l * map->kv_heads + h]));
        }
    }
    if (bad == 0) return out;
    json_decref(out);
    return NULL;
}
