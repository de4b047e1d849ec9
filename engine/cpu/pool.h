/* pool.h: the compute threads of one engine. Internal to engine/.
 *
 * pool_run cuts a piece of work in items that the caller's thread and the helpers take, the first one first; it returns
 * when all are done. Which thread takes an item must not matter to its result. One thread may call pool_run, never from
 * inside an item. A helper that the operating system keeps off the CPU delays nobody: only taken items are waited for.
 */
#ifndef KVF_CPU_POOL_H
#define KVF_CPU_POOL_H

#include "alloc/err.h"

struct pool;

/* `threads` counts the caller's: 1 starts none. */
KVF_MUSTCHECK int pool_new(int threads, struct pool **out, struct kvf_err *err);
void pool_destroy(struct pool **pool);
int pool_threads(const struct pool *pool);
/* thread: 0 for the caller, 1...threads - 1 for helpers; picks scratch memory. */
void pool_run(struct pool *pool, void (*work)(void *arg, int item, int thread), void *arg, int items);

#endif
