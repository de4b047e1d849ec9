/* select.c: selection by halving. */
#include "alloc/select.h"

#include <string.h>

#include "alloc/wide.h"
KVF_WIDE int select_count(const uint32_t *rank, int n, uint32_t least)
{
    int count = 0;
    for (int i = 0; i < n; i++) count += rank[i] >= least;
    return count;
}

KVF_WIDE static uint32_t smallest_from(const uint32_t *rank, int n, uint32_t least)
{
    uint32_t smallest = UINT32_MAX;
    for (int i = 0; i < n; i++) {
        const uint32_t own = rank[i] >= least ? rank[i] : UINT32_MAX;
        smallest = own < smallest ? own : smallest;
    }
    return smallest;
}

/* Halves the range of ranks: at most 32 sweeps, which vectors make cheaper than the scattered counts of a radix. */
uint32_t select_rank(const uint32_t *rank, int n, int k)
{
    uint32_t low = 0, high = UINT32_MAX;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2 + 1;
        const int count = select_count(rank, n, middle);
        if (count == k) return smallest_from(rank, n, middle);
        if (count > k)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
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
