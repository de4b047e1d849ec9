/* random.h: the generator of the property tests: seeded, the same on every machine. One stream a program. */
#ifndef KVF_TEST_RANDOM_H
#define KVF_TEST_RANDOM_H

#include <stdint.h>

static uint64_t state; /* a test sets it to its own non-zero seed first */

static inline uint64_t next_bits(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static inline int next_int(int least, int most)
{
    return least + (int)(next_bits() % (uint64_t)(most - least + 1));
}

#endif
