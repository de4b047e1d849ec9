/* panels.h: packs weights into the panels that a kernel set streams. Internal to engine/. */
#ifndef KVF_CPU_PANELS_H
#define KVF_CPU_PANELS_H

#include "alloc/err.h"
#include "engine/cpu/ops.h"
#include "engine/model/model.h"

/* What panels_pack will write: 64-byte multiples, so that matrices packed one after the other stay aligned. */
int64_t panels_bytes(const struct weight *const *weights, int count);

/* Stacks `count` matrices of the same width one under the other: [sum of rows][cols]. bf16 stays bf16 where all are,
 * anything else becomes f32. bias[i] may have no data (zeros then, or no bias at all when none has). `memory`, 64-byte
 * aligned, panels_bytes() long and zero, stays the caller's and holds the panels; the bias is out's. */
KVF_MUSTCHECK int panels_pack(struct panels *out, enum panel_kind bf16_kind, const struct weight *const *weights,
                              const struct weight *const *biases, int count, void *memory, struct kvf_err *err);
void panels_free(struct panels *panels);

#endif
