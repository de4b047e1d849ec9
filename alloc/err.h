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
#include <string.h>

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

/* Bytes of the UTF-8 character at `at`, which a NUL ends; 0: none, or a control character, which a terminal obeys. */
static inline int kvf_err_step(const unsigned char *at)
{
    const int length = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : at[0] < 0xf5 ? 4 : 0;
    for (int i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    const int control = at[0] < 0x20 || at[0] == 0x7f || (at[0] == 0xc2 && at[1] < 0xa0);
    const int none = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) ||
                     (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f);
    return control || none ? 0 : length;
}

/* Makes the text one line of printable UTF-8: what it quotes comes from users and from files that nobody checked. Any
 * other byte becomes \n or \x1b, as in the log. */
static inline void kvf_err_escape(struct kvf_err *err)
{
    char raw[KVF_ERR_MAX];
    size_t put = 0;
    memcpy(raw, err->text, strlen(err->text) + 1);
    for (const char *at = raw; *at != '\0';) {
        const int step = kvf_err_step((const unsigned char *)at);
        char escaped[5];
        if (step == 0) snprintf(escaped, sizeof escaped, *at == '\n' ? "\\n" : "\\x%02x", (unsigned char)*at);
        const size_t length = step > 0 ? (size_t)step : strlen(escaped);
        if (put + length >= sizeof err->text) break;
        memcpy(err->text + put, step > 0 ? at : escaped, length);
        put += length;
        at += step > 0 ? step : 1;
    }
    err->text[put] = '\0';
}

/* Writes the line, escaped and cut at KVF_ERR_MAX, and returns `code`, so that `return kvf_fail(err, KVF_EINVAL, ...)`
 * reads well. */
__attribute__((format(printf, 3, 0))) static inline int kvf_vfail(struct kvf_err *err, int code, const char *format,
                                                                  va_list args)
{
    if (err != NULL) {
        vsnprintf(err->text, sizeof err->text, format, args);
        kvf_err_escape(err);
    }
    return code;
}
__attribute__((format(printf, 3, 4))) static inline int kvf_fail(struct kvf_err *err, enum kvf_code code,
                                                                 const char *format, ...)
{
    va_list args;
    va_start(args, format);
    kvf_vfail(err, code, format, args);
    va_end(args);
    return code;
}

#endif
