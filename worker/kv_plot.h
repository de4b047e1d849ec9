/* kv_plot.h: a KV map as a picture: SVG that needs nothing else. */
#ifndef KVF_KV_PLOT_H
#define KVF_KV_PLOT_H

#include "worker/kv_map.h"

struct kv_plot {
    const struct kv_map *map;
    const char *model, *policy;
    int budget_tokens, interval_tokens; /* budget 0: nothing is evicted */
    bool by_layer;                      /* a row a layer, its heads summed */
    int page_entries;                   /* of engine_info, as are page_bytes */
    int64_t page_bytes;
};
/* Writes a heat map, a row a (layer, head) and a `cell` rectangle a column of the grid, and under it live cache bytes
 * over tokens beside full cache. KVF_EINVAL: nothing was decoded; KVF_ENOMEM. Whether the stream took it is the
 * caller's to check. */
KVF_MUSTCHECK int kv_plot_write(const struct kv_plot *plot, FILE *out, struct kvf_err *err);

#endif
