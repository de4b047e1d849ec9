/* apportion.c: ALLOC: water level by an active set, floors, then largest remainders. */
#include "alloc/apportion.h"

#include <math.h>
#include <string.h>

static int inputs_check(const double *weight, int64_t total, const int64_t *lo, const int64_t *hi, int n,
                        struct kvf_err *err)
{
    if (n < 0 || n > APPORTION_MAX)
        return kvf_fail(err, KVF_EINVAL, "apportion: %d entries, expected 0 to %d", n, APPORTION_MAX);
    if (total < 0) return kvf_fail(err, KVF_EINVAL, "apportion: total %lld, expected 0 or more", (long long)total);
    int64_t lows = 0, highs = 0;
    for (int i = 0; i < n; i++) {
        if (!(weight[i] >= 0) || isinf(weight[i]))
            return kvf_fail(err, KVF_EINVAL, "apportion: weight %d is %g, expected a finite number of 0 or more", i,
                            weight[i]);
        if (lo[i] < 0 || lo[i] > hi[i])
            return kvf_fail(err, KVF_EINVAL,
                            "apportion: entry %d has floor %lld and cap %lld, expected 0 <= floor <= cap", i,
                            (long long)lo[i], (long long)hi[i]);
        if (__builtin_add_overflow(lows, lo[i], &lows)) lows = INT64_MAX;
        if (__builtin_add_overflow(highs, hi[i], &highs)) highs = INT64_MAX;
    }
    if (lows > total)
        return kvf_fail(err, KVF_EINVAL, "apportion: floors need %lld, the total is %lld", (long long)lows,
                        (long long)total);
    if (highs < total)
        return kvf_fail(err, KVF_EINVAL, "apportion: caps hold %lld, the total is %lld", (long long)highs,
                        (long long)total);
    return 0;
}

/* The real-valued level: x[i] = clamp(c * w[i], lo[i], hi[i]) with sum x = total, where weights allow it. Each round
 * freezes the side that is farther out, so the set only shrinks: at most n rounds. Extended precision, so that a
 * fraction that is exactly one half comes out as one half for totals up to 2^51. */
static void level_find(const long double *w, int64_t total, const int64_t *lo, const int64_t *hi, int n, long double *x)
{
    unsigned char frozen[APPORTION_MAX] = {0};
    for (;;) {
        long double rest = total, weights = 0;
        for (int i = 0; i < n; i++) {
            if (frozen[i])
                rest -= x[i];
            else
                weights += w[i];
        }
        long double over = 0, under = 0;
        for (int i = 0; i < n; i++) {
            if (frozen[i]) continue;
            x[i] = weights > 0 ? rest * w[i] / weights : 0;
            if (x[i] > hi[i]) over += x[i] - hi[i];
            if (x[i] < lo[i]) under += lo[i] - x[i];
        }
        if (over == 0 && under == 0) return;
        for (int i = 0; i < n; i++) {
            if (frozen[i]) continue;
            if (over >= under ? x[i] > hi[i] : x[i] < lo[i]) {
                x[i] = over >= under ? hi[i] : lo[i];
                frozen[i] = 1;
            }
        }
    }
}

/* Whether entry a takes the next unit before entry b. */
static int goes_first(const long double *fraction, const long double *w, int a, int b)
{
    if (fraction[a] != fraction[b]) return fraction[a] > fraction[b];
    if (w[a] != w[b]) return w[a] > w[b];
    return a < b;
}

int apportion(const double *weight, int64_t total, const int64_t *lo, const int64_t *hi, int n, int64_t *share,
              struct kvf_err *err)
{
    int rc = inputs_check(weight, total, lo, hi, n, err);
    if (rc != 0) return rc;

    long double w[APPORTION_MAX], x[APPORTION_MAX], fraction[APPORTION_MAX];
    double largest = 0;
    for (int i = 0; i < n; i++) largest = fmax(largest, weight[i]);
    /* Divided by the largest: sums do not overflow, and a scale common to all weights cannot change the result. */
    for (int i = 0; i < n; i++) w[i] = largest > 0 ? (long double)weight[i] / largest : 1;
    level_find(w, total, lo, hi, n, x);

    int64_t left = total;
    int order[APPORTION_MAX];
    for (int i = 0; i < n; i++) {
        share[i] = (int64_t)floorl(x[i]);
        if (share[i] < lo[i]) share[i] = lo[i];
        if (share[i] > hi[i]) share[i] = hi[i];
        fraction[i] = x[i] - share[i];
        left -= share[i];
        int at = i;
        for (; at > 0 && goes_first(fraction, w, i, order[at - 1]); at--) order[at] = order[at - 1];
        order[at] = i;
    }
    /* One unit each in that order; more than one round only when zero weights take what the others cannot hold. The
     * second and later rounds go by index. */
    for (int round = 0; left != 0; round++) {
        for (int k = 0; k < n && left != 0; k++) {
            int i = round == 0 ? order[k] : k;
            if (left > 0 && share[i] < hi[i]) {
                share[i]++;
                left--;
            } else if (left < 0 && share[order[n - 1 - k]] > lo[order[n - 1 - k]]) {
                share[order[n - 1 - k]]--;
                left++;
            }
        }
    }
    return 0;
}
