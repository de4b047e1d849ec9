/* sample.h: one token from one row of logits. Pure; internal to engine/.
 *
 * The random number is a hash of (seed, position), not the next of a stream: a sample draws the same numbers alone, in
 * any batch, and after a retry. exp and the generator are our own plain double arithmetic, so that every machine draws
 * the same token from the same logits.
 */
#ifndef KVF_SAMPLE_H
#define KVF_SAMPLE_H

#include <stdint.h>
#include "alloc/err.h"
#include "engine/engine.h"

/* Uniform in [0, 1), 53 bits. */
double sample_uniform(uint64_t seed, uint64_t position);

struct sample_place {
    double weight;
    int32_t id;
};

struct choice {
    int32_t token;
    float margin; /* best logit less the second, whatever was drawn; 0 for a vocabulary of one */
};

/* Greedy (temperature 0): the largest logit, the lowest id on a tie. Else softmax(logits / temperature), cut to the
 * top_k largest, then to the smallest set of largest with a share of top_p of what is left. `work` holds vocab places.
 * KVF_ECORRUPT, with the id, when a logit is NaN or infinite. */
KVF_MUSTCHECK int sample_token(const float *logits, int vocab, const struct sampling *sampling, uint64_t seed,
                               uint64_t position, struct sample_place *work, struct choice *out, struct kvf_err *err);

/* KVF_EINVAL for a temperature below 0, a top_p outside (0, 1], a negative top_k, or a NaN; greedy
 * looks at the temperature only. */
KVF_MUSTCHECK int sampling_check(const struct sampling *sampling, struct kvf_err *err);

#endif
