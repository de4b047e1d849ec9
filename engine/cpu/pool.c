/* pool.c
 *
 * `ticket` holds the job's number in its upper half and the items not yet taken in its lower; a thread takes the first
 * of them by moving the ticket down with compare-and-swap: in order, so that what an item prefetches past its end is
 * what somebody reads next. It reads the job's fields (work, arg, items) before that. The
 * fields change only after every item of the job was counted as done, so while a ticket says that items are left they
 * belong to that job; if they were read too late, the ticket has changed too and the exchange fails.
 */
#include "engine/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* About 20 us of pause instructions: longer than the serial stretches inside a step, far shorter than a time slice. */
#define SPINS 1000

struct helper {
    struct pool *pool;
    pthread_t thread;
    int index;
};

struct pool {
    int threads;
    struct helper *helpers; /* [threads - 1] */

    void (*_Atomic work)(void *, int, int);
    void *_Atomic arg;
    atomic_int items;
    atomic_uint_fast64_t ticket; /* release: publishes the job */
    atomic_int done;             /* release: publishes an item's results */

    atomic_int stop;
    atomic_int sleepers; /* with `ticket` sequentially consistent: no wake-up is lost */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Takes items until none is left. */
static void pool_take(struct pool *pool, int thread)
{
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    while ((uint32_t)ticket > 0) {
        void (*work)(void *, int, int) = atomic_load_explicit(&pool->work, memory_order_relaxed);
        void *arg = atomic_load_explicit(&pool->arg, memory_order_relaxed);
        int items = atomic_load_explicit(&pool->items, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                                                   memory_order_acquire)) {
            continue;
        }
        work(arg, items - (int)(uint32_t)ticket, thread);
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
        ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    }
}

static void *helper_main(void *arg)
{
    struct helper *helper = arg;
    struct pool *pool = helper->pool;
    uint32_t seen = 0;
    for (;;) {
        uint32_t job = seen;
        for (int i = 0; i < SPINS && job == seen; i++) {
            pause_cpu();
            job = (uint32_t)(atomic_load_explicit(&pool->ticket, memory_order_acquire) >> 32);
        }
        if (job == seen) {
            pthread_mutex_lock(&pool->mutex);
            atomic_fetch_add(&pool->sleepers, 1);
            while ((uint32_t)(atomic_load(&pool->ticket) >> 32) == seen && !atomic_load(&pool->stop)) {
                pthread_cond_wait(&pool->wake, &pool->mutex);
            }
            atomic_fetch_sub(&pool->sleepers, 1);
            pthread_mutex_unlock(&pool->mutex);
            if (atomic_load(&pool->stop)) return NULL;
            job = (uint32_t)(atomic_load(&pool->ticket) >> 32);
        }
        seen = job;
        pool_take(pool, helper->index);
    }
}

int pool_new(int threads, struct pool **out, struct kvf_err *err)
{
    if (threads < 1 || threads > 256) {
        return kvf_fail(err, KVF_EINVAL, "compute threads: expected 1...256, got %d", threads);
    }
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return kvf_fail(err, KVF_ENOMEM, "compute threads: no memory");
    pool->threads = 1;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->helpers = calloc((size_t)threads, sizeof *pool->helpers);
    if (pool->helpers == NULL) {
        pool_destroy(&pool);
        return kvf_fail(err, KVF_ENOMEM, "compute threads: no memory");
    }
    while (pool->threads < threads) {
        struct helper *helper = &pool->helpers[pool->threads - 1];
        helper->pool = pool;
        helper->index = pool->threads;
        int code = pthread_create(&helper->thread, NULL, helper_main, helper);
        if (code != 0) {
            kvf_fail(err, KVF_EIO, "starting compute thread %d of %d: %s", pool->threads + 1, threads, strerror(code));
            pool_destroy(&pool);
            return KVF_EIO;
        }
        pool->threads++;
    }
    *out = pool;
    return 0;
}

void pool_destroy(struct pool **pool)
{
    struct pool *p = *pool;
    if (p == NULL) return;
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->stop, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mutex);
    for (int i = 0; i < p->threads - 1; i++) pthread_join(p->helpers[i].thread, NULL);
    free(p->helpers);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mutex);
    free(p);
    *pool = NULL;
}

int pool_threads(const struct pool *pool)
{
    return pool->threads;
}

void pool_run(struct pool *pool, void (*work)(void *arg, int item, int thread), void *arg, int items)
{
    if (pool->threads == 1 || items <= 1) {
        for (int i = 0; i < items; i++) work(arg, i, 0);
        return;
    }
    atomic_store_explicit(&pool->work, work, memory_order_relaxed);
    atomic_store_explicit(&pool->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&pool->items, items, memory_order_relaxed);
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    uint64_t job = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store(&pool->ticket, job << 32 | (uint32_t)items);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
    pool_take(pool, 0);
    for (int spins = 0; atomic_load_explicit(&pool->done, memory_order_acquire) < items; spins++) {
        if (spins < SPINS)
            pause_cpu();
        else
            sched_yield(); /* the helper that holds the last item may need this CPU */
    }
}
