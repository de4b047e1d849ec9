/* seed.h: the sample seed and the hash of a problem: fixed formulas, the same for ever and in every cell. */
#ifndef KVF_SEED_H
#define KVF_SEED_H

#include <stdbool.h>
#include <stdint.h>
#include "proto/message.h"

/* First 8 bytes, little endian, of SHA-256 of "kvfleet-seed/CONTENT_HASH/ORDINAL/REPEAT/SEED" (numbers as decimal
 * text). */
uint64_t sample_seed(struct str content_hash, uint64_t ordinal, uint64_t repeat, uint64_t job_seed);
/* Whether content_hash is the lower-case hex SHA-256 of problem, a zero byte, answer. */
bool problem_hash_matches(const struct rec_problem *problem);

#endif
