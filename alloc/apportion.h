/* apportion.h: ALLOC of alloc.md 1.4: a whole number of units shared out in proportion to weights, within bounds,
 * exactly. */
#ifndef KVF_APPORTION_H
#define KVF_APPORTION_H

#include <stdint.h>
#include "alloc/err.h"

#define APPORTION_MAX 256

/* share[i], i < n <= APPORTION_MAX, whole, lo <= share <= hi, sum exactly `total`, as near to proportional to weight as
 * the bounds allow; ties by fraction, then weight, then index. All weights zero count as equal; a single zero weight
 * stays at its floor until the others are at their caps. KVF_EINVAL: sum(lo) > total, sum(hi) < total, lo > hi, a
 * negative total or floor, a weight that is negative or not finite, no entries for a total above 0. No allocation, any
 * thread. */
KVF_MUSTCHECK int apportion(const double *weight, int64_t total, const int64_t *lo, const int64_t *hi, int n,
                            int64_t *share, struct kvf_err *err);

#endif
