/* select.h: order statistics over float scores in O(n). Order: score descending, index ascending; NaN is minus
 * infinity. Internal to alloc/. No allocation. */
#ifndef KVF_SELECT_H
#define KVF_SELECT_H

#include <stdint.h>

/* Maps a score to a number that orders the same way; NaN and minus infinity map alike, -0 as +0. */
static inline uint32_t score_rank(float score)
{
    if (score != score) score = -__builtin_inff();
    score += 0.0f;
    union {
        float f;
        uint32_t u;
    } bits = {score};
    return bits.u & 0x80000000u ? ~bits.u : bits.u | 0x80000000u;
}

/* The score that has this rank. */
static inline float rank_score(uint32_t rank)
{
    union {
        uint32_t u;
        float f;
    } bits = {rank & 0x80000000u ? rank ^ 0x80000000u : ~rank};
    return bits.f;
}

/* How many of n ranks are at least `least`. */
int select_count(const uint32_t *rank, int n, uint32_t least);

/* The k-th largest of n ranks, 1 <= k <= n, in at most 32 sweeps. */
uint32_t select_rank(const uint32_t *rank, int n, int k);

/* Indices of the k best of n, ascending, each plus `offset`; k is cut to 0...n. Returns how many. */
int select_best(const uint32_t *rank, int n, int k, int offset, int32_t *out);

#endif
