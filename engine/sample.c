#include "engine/sample.h"

#include <math.h>
#include <string.h>

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

double sample_uniform(uint64_t seed, uint64_t position)
{
    /* Both steps of the splitmix64 finaliser: neighbouring seeds and positions share no pattern. */
    uint64_t bits = mix(mix(seed + 0x9e3779b97f4a7c15u) + (position + 1) * 0x9e3779b97f4a7c15u);
    return (double)(bits >> 11) * 0x1p-53;
}

/* exp for x <= 0: |r| <= ln 2 / 2, so the 14th term of the series is below half an ulp. */
static double exp_falling(double x)
{
    if (x < -700.0) return 0.0;
    double n = rint(x * 1.4426950408889634);
    double r = x - n * 6.93147180369123816490e-01;
    r -= n * 1.90821492927058770002e-10;
    double sum = 1.0;
    for (int k = 13; k >= 1; k--) sum = 1.0 + sum * r / k;
    return ldexp(sum, (int)n);
}

int sampling_check(const struct sampling *sampling, struct kvf_err *err)
{
    if (!(sampling->temperature >= 0.0) || !isfinite(sampling->temperature)) {
        return kvf_fail(err, KVF_EINVAL, "temperature: expected a number >= 0, got %g", sampling->temperature);
    }
    if (sampling->temperature == 0.0) return 0; /* greedy reads no other field */
    if (!(sampling->top_p > 0.0 && sampling->top_p <= 1.0)) {
        return kvf_fail(err, KVF_EINVAL, "top-p: expected a number in (0, 1], got %g", sampling->top_p);
    }
    if (sampling->top_k < 0) {
        return kvf_fail(err, KVF_EINVAL, "top-k: expected 0 (off) or more, got %d", sampling->top_k);
    }
    return 0;
}

/* ---- the largest first ---- */

static int comes_first(const struct sample_place *a, const struct sample_place *b)
{
    return a->weight > b->weight || (a->weight == b->weight && a->id < b->id);
}

static void heap_sink(struct sample_place *heap, int count, int at)
{
    for (;;) {
        int child = 2 * at + 1;
        if (child >= count) return;
        if (child + 1 < count && comes_first(&heap[child + 1], &heap[child])) child++;
        if (!comes_first(&heap[child], &heap[at])) return;
        struct sample_place swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
        at = child;
    }
}

/* Moves the largest `wanted` places to the end, largest last, and stops once their sum reaches `enough`. A heap and not
 * a sort: few of a large vocabulary are usually wanted. Returns how many. */
static int take_largest(struct sample_place *places, int count, int wanted, double enough, double *sum)
{
    int left = count;
    *sum = 0.0;
    for (int at = count / 2 - 1; at >= 0; at--) heap_sink(places, count, at);
    while (left > 0 && count - left < wanted && *sum < enough) {
        struct sample_place top = places[0];
        places[0] = places[--left];
        places[left] = top;
        heap_sink(places, left, 0);
        *sum += top.weight;
    }
    return count - left;
}

/* ---- choice ---- */

/* Of places[count] taken from the end, the first whose running sum exceeds u * total. */
static int32_t draw_from_end(const struct sample_place *places, int count, int taken, double u, double total)
{
    double sum = 0.0;
    for (int i = count - 1; i > count - taken; i--) {
        sum += places[i].weight;
        if (sum > u * total) return places[i].id;
    }
    return places[count - taken].id;
}

static int32_t draw(const float *logits, int vocab, float best, const struct sampling *sampling, double u,
                    struct sample_place *work)
{
    double total = 0.0;
    for (int i = 0; i < vocab; i++) {
        work[i].id = i;
        work[i].weight = exp_falling(((double)logits[i] - (double)best) / sampling->temperature);
        total += work[i].weight;
    }
    int top_k = sampling->top_k > 0 && sampling->top_k < vocab ? sampling->top_k : vocab;
    if (top_k == vocab && sampling->top_p >= 1.0) {
        double sum = 0.0;
        int32_t last = 0;
        for (int i = 0; i < vocab; i++) {
            if (work[i].weight == 0.0) continue;
            sum += work[i].weight;
            last = i;
            if (sum > u * total) break;
        }
        return last;
    }
    double sum = total;
    int taken = vocab;
    if (top_k < vocab) taken = take_largest(work, vocab, top_k, INFINITY, &sum);
    if (sampling->top_p < 1.0) {
        taken = take_largest(work + vocab - taken, taken, taken, sampling->top_p * sum, &sum);
    }
    return draw_from_end(work, vocab, taken, u, sum);
}

int sample_token(const float *logits, int vocab, const struct sampling *sampling, uint64_t seed, uint64_t position,
                 struct sample_place *work, struct choice *out, struct kvf_err *err)
{
    float best = -INFINITY, second = -INFINITY;
    int32_t token = 0;
    for (int i = 0; i < vocab; i++) {
        if (!isfinite(logits[i])) {
            return kvf_fail(err, KVF_ECORRUPT, "logit of token %d at position %llu: expected a finite number, got %g",
                            i, (unsigned long long)position, (double)logits[i]);
        }
        if (logits[i] > best) {
            second = best;
            best = logits[i];
            token = i;
        } else if (logits[i] > second) {
            second = logits[i];
        }
    }
    out->margin = vocab > 1 ? best - second : 0.0f;
    out->token = token;
    if (sampling->temperature > 0.0) {
        out->token = draw(logits, vocab, best, sampling, sample_uniform(seed, position), work);
    }
    return 0;
}
