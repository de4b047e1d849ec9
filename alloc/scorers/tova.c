/* tova.c: TOVA (arXiv 2401.06104; golden/compress tova): the newest query's softmax over all entries, averaged over all
 * query heads of the layer. One list of scores and one set of entries for all kv heads. */
#include <string.h>

#include "alloc/attention.h"

/* score[j] += attention of the entry at the same position, j < past. Both position lists ascend; heads of a layer that
 * share their entries have the same ones, and then this is a plain sum. */
static void position_add(const int32_t *from, const float *attention, int n, const int32_t *to, int past, float *score)
{
    for (int i = 0, j = 0; i < n && j < past;) {
        if (from[i] == to[j]) score[j] += attention[i];
        const int step = from[i] <= to[j];
        j += to[j] <= from[i];
        i += step;
    }
}

static void tova_score(const struct policy *policy, const struct compact_input *in,
                       const struct compact_kernels *kernels, struct score_scratch *scratch, int window,
                       float *const *score)
{
    (void)policy;
    for (int h = 0; h < in->kv_heads; h++) {
        const int past = in->entries[h] - window;
        if (past > 0) memset(score[h], 0, (size_t)past * sizeof *score[h]);
    }
    for (int from = 0; from < in->kv_heads; from++) {
        if (in->entries[from] < 1) continue;
        attention_newest(in, kernels, scratch, from, scratch->first);
        for (int to = 0; to < in->kv_heads; to++)
            position_add(in->positions[from], scratch->first, in->entries[from], in->positions[to],
                         in->entries[to] - window, score[to]);
    }
    for (int h = 0; h < in->kv_heads; h++)
        for (int j = 0; j < in->entries[h] - window; j++) score[h][j] /= (float)in->kv_heads;
}

const struct scorer scorer_tova = {
    .name = "tova",
    .source = "TOVA, arXiv 2401.06104",
    .needs = NEEDS_ROWS | NEEDS_QUERIES | NEEDS_POSITIONS,
    .keys = "",
    .shared_entries = 1,
    .score = tova_score,
};
