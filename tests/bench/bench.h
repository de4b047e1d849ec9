/* bench.h: what the benches of the engine share. */
#ifndef KVF_BENCH_H
#define KVF_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "alloc/err.h"

static inline double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A bench has nobody to hand an error to. */
static inline void check(int rc, const struct kvf_err *err)
{
    if (rc == 0) return;
    fprintf(stderr, "bench: %s\n", err->text);
    exit(1);
}

#endif
