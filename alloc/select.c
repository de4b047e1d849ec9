/* select.c: radix selection. */
#include "alloc/select.h"

#include <string.h>

#include "alloc/wide.h"
#define DIGIT_BITS 8
#define FEW        64

/* Of `rank`, those that agree with `prefix` above bit `shift`; at most FEW; one more place takes what follows the last.
 */
KVF_WIDE static int survivors_take(const uint32_t *rank, int n, uint32_t prefix, int shift, uint32_t *few)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        few[count] = rank[i];
        count += (rank[i] ^ prefix) >> shift == 0;
    }
    return count;
}

/* The highest digit is cut where ranks first differ: scores of one layer mostly share sign and exponent. */
KVF_WIDE uint32_t select_rank(const uint32_t *rank, int n, int k)
{
    uint32_t few[FEW + 1], differ = 0;
    for (int i = 0; i < n; i++) differ |= rank[i] ^ rank[0];
    if (differ == 0) return rank[0];
    int shift = 32 - __builtin_clz(differ); /* ranks that are left agree from this bit on */
    uint32_t prefix = rank[0];
    while (shift > 0) {
        const int low = shift > DIGIT_BITS ? shift - DIGIT_BITS : 0, digits = 1 << (shift - low);
        int count[1 << DIGIT_BITS] = {0};
        for (int i = 0; i < n; i++)
            if ((uint64_t)(rank[i] ^ prefix) >> shift == 0) count[rank[i] >> low & (uint32_t)(digits - 1)]++;
        int digit = digits - 1;
        while (k > count[digit]) k -= count[digit--];
        prefix = (prefix >> low & ~(uint32_t)(digits - 1)) << low | (uint32_t)digit << low;
        shift = low;
        if (count[digit] <= FEW && n > FEW) {
            n = survivors_take(rank, n, prefix, shift, few);
            rank = few;
        }
    }
    return prefix;
}

KVF_WIDE int select_best(const uint32_t *rank, int n, int k, int offset, int32_t *out)
{
    if (k <= 0) return 0;
    if (k >= n) {
        for (int i = 0; i < n; i++) out[i] = offset + i;
        return n;
    }
    uint32_t cut = select_rank(rank, n, k);
    int at_cut = k; /* of those that equal the cut, the first ones stay */
    for (int i = 0; i < n; i++) at_cut -= rank[i] > cut;
    int kept = 0;
    for (int i = 0; i < n; i++) {
        if (rank[i] > cut || (rank[i] == cut && at_cut-- > 0)) out[kept++] = offset + i;
    }
    return kept;
}
