#include "coordinator/seed.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

uint64_t sample_seed(struct str content_hash, uint64_t ordinal, uint64_t repeat, uint64_t job_seed)
{
    unsigned char digest[crypto_hash_sha256_BYTES];
    char text[160];
    uint64_t seed = 0;
    int len =
        snprintf(text, sizeof text, "kvfleet-seed/%.*s/%" PRIu64 "/%" PRIu64 "/%" PRIu64,
                 (int)(content_hash.len > 64 ? 64 : content_hash.len), content_hash.text, ordinal, repeat, job_seed);

    crypto_hash_sha256(digest, (const unsigned char *)text, (unsigned long long)len);
    for (int i = 7; i >= 0; i--) seed = seed << 8 | digest[i];
    return seed;
}

bool problem_hash_matches(const struct rec_problem *problem)
{
    unsigned char digest[crypto_hash_sha256_BYTES];
    char hex[2 * crypto_hash_sha256_BYTES + 1];
    crypto_hash_sha256_state state;

    crypto_hash_sha256_init(&state);
    crypto_hash_sha256_update(&state, (const unsigned char *)problem->problem.text, problem->problem.len);
    crypto_hash_sha256_update(&state, (const unsigned char *)"", 1);
    crypto_hash_sha256_update(&state, (const unsigned char *)problem->answer.text, problem->answer.len);
    crypto_hash_sha256_final(&state, digest);
    sodium_bin2hex(hex, sizeof hex, digest, sizeof digest);
    return problem->content_hash.len == 64 && memcmp(problem->content_hash.text, hex, 64) == 0;
}
