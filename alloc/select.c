/* select.c: radix selection. */
#include "alloc/select.h"

#include <string.h>

uint32_t select_rank(const uint32_t *rank, int n, int k)
{
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int count[256] = {0};
        for (int i = 0; i < n; i++)
            if ((rank[i] & mask) == prefix) count[rank[i] >> shift & 255]++;
        int digit = 255;
        while (k > count[digit]) k -= count[digit--];
        prefix |= (uint32_t)digit << shift;
        mask |= 255u << shift;
    }
    return prefix;
}

int select_best(const uint32_t *rank, int n, int k, int offset, int32_t *out)
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
