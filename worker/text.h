/* text.h: UTF-8 checks for what comes from files and from models. */
#ifndef KVF_WORKER_TEXT_H
#define KVF_WORKER_TEXT_H

#include <stddef.h>

/* Bytes up to the first that is not UTF-8 (RFC 3629: no surrogates, no overlong forms); `len` when all is well. */
size_t text_valid_len(const char *text, size_t len);
/* The largest length <= max that does not cut a character of text[len]. */
size_t text_cut(const char *text, size_t len, size_t max);
/* Takes a malloc'd text and returns it with each bad byte replaced by U+FFFD; where there is no memory for that, what
 * was good before the first bad byte. */
char *text_repair(char *text);

#endif
