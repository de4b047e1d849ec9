/* streaming.c: recency (StreamingLLM, arXiv 2309.17453): the first `sinks` entries, then the most recent. Entries keep
 * the rotation of their original position; none is put on again. */
#include "alloc/scorer.h"

static void streaming_score(const struct policy *policy, const struct compact_input *in,
                            const struct compact_kernels *kernels, struct score_scratch *scratch, int window,
                            float *const *score)
{
    (void)policy, (void)kernels, (void)scratch;
    for (int h = 0; h < in->kv_heads; h++)
        for (int j = 0; j < in->entries[h] - window; j++) score[h][j] = (float)j;
}

/* An index is a place in a head's own list: those of two heads say nothing about each other. */
const struct scorer scorer_streaming = {
    .name = "streaming",
    .source = "StreamingLLM, arXiv 2309.17453",
    .sinks_tokens = 4,
    .keys = "",
    .incomparable = 1,
    .score = streaming_score,
};
