/* dataset.h: a data set file: JSON Lines, one problem a line. Read strictly: whatever is wrong is refused with
 * "FILE:LINE: what, expected, got", or left out and counted where the caller asks for that.
 *
 * A line is a JSON object with `problem` (or `question`), `answer` (text or number) and, optionally, `id` (or
 * `unique_id`, text or integer; without it the line number is the name). Other fields are ignored. A byte order mark,
 * CRLF, blank lines and a missing last line end are accepted. No globals: any thread.
 */
#ifndef KVF_DATASET_H
#define KVF_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "alloc/err.h"

#define DATASET_HASH_HEX      64
#define DATASET_PROBLEM_BYTES 262144 /* the wire's limits: what is read can be sent */
#define DATASET_ANSWER_BYTES  4096
#define DATASET_NAME_BYTES    255

struct dataset_problem {
    char *name, *problem, *answer; /* NUL-terminated UTF-8 without NUL inside, never NULL; name and problem not empty */
    char content_hash[DATASET_HASH_HEX + 1]; /* hex SHA-256 of problem text, one NUL byte, answer text */
    uint64_t ordinal;                        /* 0, 1, ... among problems of equal content, in file order */
    int64_t line;                            /* 1-based */
};
struct dataset {
    char name[DATASET_NAME_BYTES + 1]; /* file name without folder and ".jsonl" */
    char hash[DATASET_HASH_HEX + 1];   /* hex SHA-256 of the whole file, whatever the limit */
    struct dataset_problem *problems;
    size_t count;
    int64_t skipped_lines;        /* bad lines left out */
    struct kvf_err first_skipped; /* why the first of them is bad; "" */
};
struct dataset_options {
    int64_t limit; /* at most so many problems, the first ones; 0: all. Lines after the last one are not looked at */
    bool skip_bad_lines; /* leave bad lines out and count them; a file without any good line is still refused */
};

/* KVF_EINVAL, KVF_ENOTFOUND, KVF_EIO, KVF_ECORRUPT (a bad line), KVF_ENOMEM; then `out` is empty. `options` may be
 * NULL. The content belongs to `out`: dataset_free. */
KVF_MUSTCHECK int dataset_read(const char *path, const struct dataset_options *options, struct dataset *out,
                               struct kvf_err *err);
void dataset_free(struct dataset *dataset);

#endif
