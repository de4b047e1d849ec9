/* decoder.h: the forward pass of one loaded model: packed weights and work buffers. Internal to engine/.
 *
 * A pass takes rows of several sequences (a prefill chunk, or one row of each running sequence), appends their keys and
 * values to the page cache and leaves logits for the last row of each segment that asks. The cache has room for the
 * rows (kv_reserve). Nothing is allocated after decoder_new. One thread calls; the compute threads are inside.
 */
#ifndef KVF_CPU_DECODER_H
#define KVF_CPU_DECODER_H

#include "alloc/err.h"
#include "engine/cpu/ops.h"
#include "engine/cpu/pool.h"
#include "engine/kv/kv.h"
#include "engine/model/model.h"

struct decoder;

struct segment {
    struct kv_seq *seq;
    const int32_t *tokens; /* [count] */
    int count;
    int first_position; /* logical position of tokens[0] */
    int wants_logits;
    int first_row;       /* set by decoder_forward: its place among the rows of the pass */
    const float *logits; /* set by decoder_forward: [vocab] of the last row, valid until the next pass */
};

/* The model stays mapped as long as the decoder lives: embeddings are read in place. max_rows bounds the rows of a
 * pass, max_segments its segments. */
KVF_MUSTCHECK int decoder_new(const struct model *model, const struct cpu_ops *ops, int threads, int max_rows,
                              int max_segments, struct decoder **out, struct kvf_err *err);
void decoder_destroy(struct decoder **decoder);

/* hidden: NULL, or [layers + 2][hidden]: the last row after the embedding, each layer, and the final norm. */
void decoder_forward(struct decoder *decoder, struct kv_pool *kv, struct segment *segments, int count, float *hidden);

/* Of the last pass: the time of attention, the one part whose work goes with a sequence's entries. */
int64_t decoder_attend_ns(const struct decoder *decoder);

/* The compute threads, idle between passes, for other work of the thread that calls. */
struct pool *decoder_threads(const struct decoder *decoder);

/* Rotation frequencies [head_dim / 2], radians a position; the decoder's. */
const float *decoder_rope_frequency(const struct decoder *decoder);

int64_t decoder_weights_bytes(const struct decoder *decoder);
int64_t decoder_workspace_bytes(const struct decoder *decoder);

#endif
