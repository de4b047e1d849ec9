/* err.h: how every kvfleet library call reports a failure.
 *
 * A function that can fail returns 0 or one of the negative codes below and, where it takes a `struct kvf_err *`,
 * leaves one line there: what went wrong, where, what was expected, what was got. The caller owns the struct, may
 * pass NULL, and only `main` turns a code into an exit status. Header only: `alloc/` links nothing.
 */
#ifndef KVF_ERR_H
#define KVF_ERR_H

#include <stdarg.h>
#include <stdio.h>

enum kvf_code {
    KVF_OK = 0,
    KVF_EINVAL = -1,       /* bad argument, flag or input file */
    KVF_ENOMEM = -2,       /* out of memory, or out of cache pages */
    KVF_EIO = -3,          /* the operating system refused: file, socket */
    KVF_ENOTFOUND = -4,    /* file, tensor, job, message that is not there */
    KVF_EUNSUPPORTED = -5, /* well formed, but not something this build can do */
    KVF_ECORRUPT = -6,     /* truncated or contradictory data */
    KVF_EAGAIN = -7,       /* not now: queue full, no message */
    KVF_EUNAVAIL = -8,     /* database or coordinator not reachable */
    KVF_EDENIED = -9,      /* key or role not allowed */
    KVF_ECONFLICT = -10,   /* held by somebody else: port, lock, fence */
};

#define KVF_ERR_MAX 1024
struct kvf_err {
    char text[KVF_ERR_MAX];
};

#define KVF_MUSTCHECK __attribute__((warn_unused_result))

/* Writes the line (cut at KVF_ERR_MAX) and returns `code`, so that `return kvf_fail(err, KVF_EINVAL, ...)` reads well.
 */
__attribute__((format(printf, 3, 4))) static inline int kvf_fail(struct kvf_err *err, enum kvf_code code,
                                                                 const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return code;
}

#endif
