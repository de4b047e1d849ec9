/* exit_code.h: what the kvfleet command exits with. */
#ifndef KVF_EXIT_CODE_H
#define KVF_EXIT_CODE_H

#include "alloc/err.h"

enum exit_code {
    EXIT_DONE = 0,
    EXIT_ERRORS = 3,  /* finished, some samples ended in an error */
    EXIT_NOTHING = 4, /* finished, no sample ran */
    EXIT_USAGE = 64,  /* flags or input files */
    EXIT_UNREACHABLE = 69,
    EXIT_INTERNAL = 70,
    EXIT_TEMPORARY = 75,  /* the coordinator has no database just now */
    EXIT_DENIED = 77,     /* key or role */
    EXIT_CANCELLED = 130, /* by Ctrl-C here, or the job by somebody */
};

static inline int exit_code_of(int code)
{
    switch (code) {
    case KVF_OK:
        return EXIT_DONE;
    case KVF_EUNAVAIL:
        return EXIT_UNREACHABLE;
    case KVF_EAGAIN:
    case KVF_ECONFLICT:
        return EXIT_TEMPORARY;
    case KVF_EDENIED:
        return EXIT_DENIED;
    case KVF_ENOMEM:
        return EXIT_INTERNAL;
    default:
        return EXIT_USAGE; /* EINVAL, ENOTFOUND, EIO, ECORRUPT, EUNSUPPORTED: an input that is not as it should be */
    }
}

#endif
