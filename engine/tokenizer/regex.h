/* regex.h: the regular expressions of tokenizer.json on PCRE2. Internal to engine/tokenizer.
 *
 * The files are written for Oniguruma (Ruby syntax, Unicode). Where the two differ the pattern is translated (white
 * space is property White_Space, \w and \d by category, ^ and $ are line anchors) or refused.
 */
#ifndef KVF_REGEX_H
#define KVF_REGEX_H

#include <stddef.h>
#include "alloc/err.h"

struct regex;
struct regex_scratch; /* one a thread */

/* `literal`: the pattern is plain text. `where` begins the error line. */
KVF_MUSTCHECK int regex_compile(const char *pattern, int literal, const char *where, struct regex **out,
                                struct kvf_err *err);
void regex_free(struct regex **regex);

struct regex_scratch *regex_scratch_new(void); /* NULL: no memory */
void regex_scratch_free(struct regex_scratch **scratch);

/* First match in text[len] (well-formed UTF-8) at or after `from`: 1 with its place, 0 none, or a KVF_* code. */
KVF_MUSTCHECK int regex_match(const struct regex *regex, struct regex_scratch *scratch, const char *text, size_t len,
                              size_t from, size_t *start, size_t *end, struct kvf_err *err);

#endif
