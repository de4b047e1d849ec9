/* panels.h: packs weights into the panels that a kernel set streams. Internal to engine/. */
#ifndef KVF_CPU_PANELS_H
#define KVF_CPU_PANELS_H

#include "alloc/err.h"
#include "engine/cpu/ops.h"
#include "engine/model/model.h"

/* Stacks `count` matrices of the same width one under the other: [sum of rows][cols]. bf16 stays bf16 where all are,
 * anything else becomes f32. bias[i] may have no data (zeros then, or no bias at all when none has). */
KVF_MUSTCHECK int panels_pack(struct panels *out, enum panel_kind bf16_kind, const struct weight *const *weights,
                              const struct weight *const *biases, int count, struct kvf_err *err);
void panels_free(struct panels *panels);

#endif
