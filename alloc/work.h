/* work.h: the scratch of a compaction, see compact.h. Internal to alloc/. */
#ifndef KVF_WORK_H
#define KVF_WORK_H

#include "alloc/route.h"
#include "alloc/scorer.h"

struct compact_work {
    int kv_heads, group, head_dim, max_window, max_entries;
    int64_t bytes;
    struct score_scratch scratch;
    float *score[ROUTE_MAX_HEADS]; /* [kv_head] -> [max_entries] */
    uint32_t *rank;                /* [kv_heads * max_entries] candidates of all heads, one after the other */
    int32_t *kept;                 /* [kv_heads][max_entries] */
    struct route route;
};

/* The engine's kernels where it lent any, else the plain ones. */
struct compact_kernels compact_kernels_of(const struct compact_kernels *lent);
/* Refuses a layer that `work` is not made for. */
KVF_MUSTCHECK int compact_shape_check(const struct compact_input *in, const struct compact_work *work, int window,
                                      struct kvf_err *err);

#endif
